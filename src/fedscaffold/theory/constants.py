"""The constants of the paper's assumptions A1 to A6, computed from a problem."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedscaffold.core.batches import Batches, Sampling
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array
from fedscaffold.theory import streams
from fedscaffold.theory.clients import QUADRATIC, Block, Glm, by_law, for_blocks, noise_factors

# largest |ℓ'''| and |ℓ''''| of a margin
HIGHER_DERIVATIVES = {"ridge": (0.0, 0.0), "logistic": (1.0 / (6.0 * np.sqrt(3.0)), 1.0 / 8.0)}
LOCAL = ("zeta1", "zeta2", "mu_at_optimum", "L_at_optimum", "noise_at_optimum", "noise_variance_at_optimum")


@dataclass(frozen=True, kw_only=True)
class Constants:
    """μ, L, Q, G, ζ₁, ζ₂, σ*², β of assumptions A1 to A6, each the smallest value that this room can certify.

    Those named in `local` are values at θ*, exact. The others hold for all θ ("global"): they are exact for
    ridge where nothing else is said, and upper bounds (μ: lower bound) for logistic regression.

    Attributes
    ----------
    mu
        A1, strong convexity: ∇²f_c(θ) ≥ μI for all c and θ. For logistic regression what the penalty gives.
    L
        A2 as the proofs use it, for this batch: E‖g_c(θ) − g_c(θ')‖² ≤ L⟨∇f_c(θ) − ∇f_c(θ'), θ − θ'⟩.
    L_record
        A2 as written: every record's function is L_record-smooth. Far larger than L; infinite for streams.
    Q
        A3, third derivative: ‖∇³f_c(θ) u⊗u‖ ≤ Q‖u‖².
    G
        A6, fourth derivative: ‖∇⁴f_c(θ) u⊗u⊗u‖ ≤ G‖u‖³.
    zeta1, zeta2
        A4, heterogeneity: ζ₁² = Σ w_c‖∇f_c(θ*)‖², ζ₂² = Σ w_c‖∇²f_c(θ*) − ∇²f(θ*)‖² (spectral norm).
    sigma_star2, beta
        A5: E^{1/p}‖ε_c(θ)‖^{2p} ≤ σ*² + β‖θ − θ*‖² for p = 1, 2, 3, all c and all θ. No such pair exists with
        σ*² the noise at θ* itself unless the noise has a local minimum there; this one is (2 s², 2 ℓ²) with s² =
        `noise_at_optimum` and ℓ = Lipschitz constant of the noise in L⁶, see `noise_bound`.
    noise_at_optimum
        max_c E^{1/3}‖ε_c(θ*)‖⁶. Exact with replacement, an upper bound without and for streams.
    noise_variance_at_optimum
        max_c E‖ε_c(θ*)‖² = max_c tr C_c(θ*).
    noise_lipschitz2
        ℓ²: E^{1/3}‖ε_c(θ) − ε_c(θ')‖⁶ ≤ ℓ²‖θ − θ'‖². An upper bound.
    mu_at_optimum, L_at_optimum
        Smallest and largest eigenvalue of any ∇²f_c(θ*).
    local
        Names of the constants that are about θ* only.
    """

    mu: float
    L: float
    L_record: float
    Q: float
    G: float
    zeta1: float
    zeta2: float
    sigma_star2: float
    beta: float
    noise_at_optimum: float
    noise_variance_at_optimum: float
    noise_lipschitz2: float
    mu_at_optimum: float
    L_at_optimum: float
    local: tuple[str, ...] = LOCAL

    def noise_bound(self, slack: float) -> tuple[float, float]:
        """A5's pair (σ*², β) = ((1 + a) s², (1 + 1/a) ℓ²) for any a > 0; the fields have a = 1.

        By Minkowski's inequality in L⁶ and 2st ≤ a s² + t²/a. A small a brings σ*² near the noise at θ*.
        """
        if not slack > 0:
            raise InvalidInput(f"slack must be positive, got {slack!r}")
        return (1.0 + slack) * self.noise_at_optimum, (1.0 + 1.0 / slack) * self.noise_lipschitz2


def constants(problem: Glm, *, batch_size: int | None, sampling: Sampling = "with_replacement") -> Constants:
    """μ, L, Q, G, ζ₁, ζ₂, σ*², β of A1 to A6 for ridge and logistic regression, on tables or streams.

    Upper bounds that hold for all θ, or exact values at θ*: see `Constants`.

    Parameters
    ----------
    problem
        Ridge or logistic regression.
    batch_size
        Records in each stochastic gradient; None for full gradients.
    sampling
        "with_replacement" or "without_replacement", within a batch.
    """
    if by_law(problem):
        return _of_law(problem, Batches(batch_size, sampling))
    if problem.kind not in HIGHER_DERIVATIVES:
        raise InvalidInput(f"constants are known for {', '.join(HIGHER_DERIVATIVES)}, not for {problem.kind}")
    batches = Batches(batch_size, sampling)
    factors = noise_factors(problem, batches)
    kappa, (kappa3, kappa4) = problem.curvature, HIGHER_DERIVATIVES[problem.kind]
    theta, w = problem.optimum(), problem.weights
    hessians = problem.client_hessians(theta)
    spread = hessians - np.tensordot(w, hessians, axes=1)
    gradients = problem.client_gradients(theta)
    eigenvalues = np.linalg.eigvalsh(hessians)

    N = problem.n_clients
    record, third, fourth, sixth, variance, lipschitz2 = (np.zeros(N) for _ in range(6))

    def work(block: Block) -> None:
        at, real = block.clients, block.share > 0
        squares = np.einsum("knd,knd->kn", block.x, block.x)
        record[at] = squares.max(axis=1)
        third[at], fourth[at] = (_largest_eigenvalues(block, squares**p) for p in (0.5, 1.0))
        if batch_size is not None:
            a = (problem.first(block.x @ theta, block.y) * real)[..., None] * block.x
            a = (a - np.einsum("kn,knd->kd", block.share, a)[:, None, :]) * real[..., None]
            sixth[at], second = _batch_moments(block, a, batch_size)
            variance[at] = factors[at] * second
            lipschitz2[at] = _lipschitz2(block, squares, kappa, batch_size)

    for_blocks(problem, work, copies=10)
    noise, slope = float((sixth * (factors > 0)).max()), float((lipschitz2 * (factors > 0)).max())
    return Constants(
        mu=problem.strong_convexity(),
        L=problem.smoothness(batches),
        L_record=kappa * float(record.max()) + problem.l2,
        Q=kappa3 * float(third.max()),
        G=kappa4 * float(fourth.max()),
        zeta1=float(np.sqrt(w @ np.square(gradients).sum(axis=1))),
        zeta2=float(np.sqrt(w @ np.abs(np.linalg.eigvalsh(spread)).max(axis=1) ** 2)),
        sigma_star2=2.0 * noise,
        beta=2.0 * slope,
        noise_at_optimum=noise,
        noise_variance_at_optimum=float(variance.max()),
        noise_lipschitz2=slope,
        mu_at_optimum=float(eigenvalues[:, 0].min()),
        L_at_optimum=float(eigenvalues[:, -1].max()),
    )


def _of_law(problem: Any, batches: Batches) -> Constants:
    """Of clients that are distributions: no record is bounded, so that L_record is infinite."""
    theta, w = problem.optimum(), problem.weights
    hessians, gradients = problem.client_hessians(theta), problem.client_gradients(theta)
    spread = hessians - np.tensordot(w, hessians, axes=1)
    eigenvalues = np.linalg.eigvalsh(hessians)
    kappa3, kappa4 = HIGHER_DERIVATIVES["ridge" if problem.kind in QUADRATIC else "logistic"]
    found = streams.moments(problem, theta, float(noise_factors(problem, batches)[0]), batches.size or 1)
    return Constants(
        mu=problem.strong_convexity(),
        L=problem.smoothness(batches),
        L_record=np.inf,
        Q=kappa3 * found.third,
        G=kappa4 * found.fourth,
        zeta1=float(np.sqrt(w @ np.square(gradients).sum(axis=1))),
        zeta2=float(np.sqrt(w @ np.abs(np.linalg.eigvalsh(spread)).max(axis=1) ** 2)),
        sigma_star2=2.0 * found.noise,
        beta=2.0 * found.lipschitz2,
        noise_at_optimum=found.noise,
        noise_variance_at_optimum=found.variance,
        noise_lipschitz2=found.lipschitz2,
        mu_at_optimum=float(eigenvalues[:, 0].min()),
        L_at_optimum=float(eigenvalues[:, -1].max()),
    )


def _largest_eigenvalues(block: Block, weight: Array) -> Array:
    """λ_max(mean_i weight_i x_i x_iᵀ), shape (k,)."""
    weighted = (block.share * weight)[..., None] * block.x
    eigenvalues = np.linalg.eigvalsh(np.swapaxes(block.x, 1, 2) @ weighted)
    return np.asarray(eigenvalues[:, -1], dtype=np.float64)


def _batch_moments(block: Block, a: Array, B: int) -> tuple[Array, Array]:
    """(E^{1/3}‖mean of B draws of a_i‖⁶, E‖a_i‖²) for centred a_i, exact for draws with replacement, (k,).

    The sixth moment of a sum of B independent centred vectors, by the ways to split six factors into
    groups that share a draw: {6}, {4, 2}, {3, 3}, {2, 2, 2}. Without replacement it is smaller (Hoeffding 1963).
    """
    share = block.share
    squares = np.einsum("knd,knd->kn", a, a)
    weighted = share[..., None] * a
    cov = np.swapaxes(a, 1, 2) @ weighted
    m2, m4, m6 = ((share * squares**p).sum(axis=1) for p in (1, 2, 3))
    cov_a = np.einsum("kn,knd,kde,kne->k", share * squares, a, cov, a, optimize=True)
    skew = np.square(np.einsum("kn,knd->kd", share * squares, a)).sum(axis=1)
    gram = a @ np.swapaxes(a, 1, 2)
    third: Any = np.einsum("ki,kij,kj->k", share, gram**3, share)
    t1, t2, t3 = (np.trace(power, axis1=1, axis2=2) for power in (cov, cov @ cov, cov @ cov @ cov))
    pairs = 3 * m4 * m2 + 12 * cov_a + 6 * skew + 4 * third
    triples = t1**3 + 6 * t1 * t2 + 8 * t3
    total = B * m6 + B * (B - 1) * pairs + B * (B - 1) * (B - 2) * triples
    return np.cbrt(total) / B**2, m2


def _lipschitz2(block: Block, squares: Array, kappa: float, B: int) -> Array:
    """ℓ² with E^{1/3}‖ε(θ) − ε(θ')‖⁶ ≤ ℓ²‖θ − θ'‖², an upper bound, shape (k,).

    A record contributes a = b − Eb, b = κ_i x_i x_iᵀu with 0 ≤ κ_i ≤ κ, and E‖b‖^p ≤ κ^p λ_max(E‖x‖^{2p−2} x xᵀ)
    for ‖u‖ = 1. Then the expansion of `_batch_moments` with each term at its largest.
    """
    drift = kappa * _largest_eigenvalues(block, np.ones_like(squares))
    b2, b4, b6 = (kappa**p * _largest_eigenvalues(block, squares ** (p - 1)) for p in (2, 4, 6))
    m2, m4, m6 = b2, (b4**0.25 + drift) ** 4, (b6 ** (1 / 6) + drift) ** 6
    total = B * m6 + 25 * B * (B - 1) * m4 * m2 + 15 * B * (B - 1) * (B - 2) * m2**3
    return np.cbrt(total) / B**2
