"""What is proved for quadratic losses: Scaffold with γH = 1/√(μL) needs of the order of √κ rounds.

With Γ = I − γA_c, u = Γ^H and D = mean of Γ^h over h < H, all functions of client c's Hessian A_c, and
η_c = γH(ξ_c − ξ*_c), a round without noise is

    θ_c = u_c θ − D_c η_c,     θ⁺ = Σ w_c θ_c,     η_c⁺ = η_c + θ_c − θ⁺        (θ relative to θ*).

Here ‖θ⁺‖² + Σ w_c ‖η_c⁺‖² = Σ w_c ‖θ_c + η_c‖² = Σ w_c ‖u_c θ + (1 − D_c) η_c‖². Cauchy–Schwarz in the
eigenbasis of A_c bounds this by the largest u² + (1 − D)² over all curvatures, times ‖θ‖² + Σ w_c ‖η_c‖². The page
docs/explanation/theory/acceleration.md has the proof in full.
"""

import math

import numpy as np

from fedscaffold.core.types import Array

PROVED = 0.6  # 1 − factor ≥ PROVED · min(x, 1/x), x = γHλ
NOISE_SAME, NOISE_DIFFERENT = (
    3.4,
    71.0,
)  # of γσ²Σw_c²/μ: where Hessians are the same, and times κ where they differ


def squared_factor(step_size: float, local_steps: int, curvatures: Array) -> float:
    """The largest u² + (1 − D)² over curvatures: at most so much is left of ‖θ‖² + Σ w_c ‖η_c‖² after a round.

    Parameters
    ----------
    step_size, local_steps
        γ and H.
    curvatures
        Eigenvalues of the clients' Hessians, positive and at most 1/γ, of any shape.

    Examples
    --------
    >>> import numpy as np
    >>> from fedscaffold.paper.acceleration.proof import squared_factor
    >>> kappa = 100.0
    >>> found = squared_factor(0.1, 100, np.geomspace(1 / kappa, 1.0, 200))  # γH = √κ/L
    >>> bool(1 - 2.1 / kappa**0.5 < found < 1 - 0.6 / kappa**0.5)
    True
    """
    g = np.asarray(1.0 - step_size * np.asarray(curvatures))
    u = g**local_steps
    D = (1.0 - u) / (step_size * local_steps * np.asarray(curvatures))
    return float(np.max(u**2 + (1.0 - D) ** 2))


def enough_rounds(condition: float, reduction: float) -> int:
    """Rounds after which ‖θ‖² + Σ w_c ‖η_c‖² has fallen by a factor, with γH = 1/√(μL), for any quadratic losses.

    Parameters
    ----------
    condition
        κ = L/μ, at least 1.
    reduction
        The factor, below 1.
    """
    return math.ceil(math.sqrt(condition) / PROVED * math.log(1.0 / reduction))


def noise_bound(
    *, step_size: float, variance: float, weights: Array, smallest: float, largest: float, spread: float
) -> float:
    """An upper bound on tr Cov θ on the plateau, quadratic losses, γH = 1/√(μL) and γ ≤ 1/L.

    Parameters
    ----------
    step_size
        γ.
    variance
        σ²: the mean squared norm of a gradient's noise is at most this, on every client and at every θ.
    weights
        w_c, which add up to one.
    smallest, largest
        μ and L, between which all eigenvalues of all clients' Hessians lie.
    spread
        The largest spectral norm of D_c − Σ w_i D_i, at most 1; 0 where all Hessians are the same.
    """
    unit = step_size * variance * float(weights @ weights) / smallest
    return unit * (NOISE_SAME + NOISE_DIFFERENT * largest / smallest * spread**2)
