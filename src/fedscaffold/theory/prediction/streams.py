"""Theory of clients that are distributions: averages over clouds of local models, and moments of their records.

Such a problem tells ∇f_c, ∇²f_c and the covariance of a record's gradient at any point (`averages`). A Gaussian
cloud N(mean, cov) is replaced by the 2d points mean ± √d s_j, as in `theory.cubature`: exact for ridge regression,
whose covariance is quadratic in θ.
"""

import math
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fedscaffold.core.types import Array


class Streamed(Protocol):
    """What theory asks of a problem whose clients are distributions."""

    n_clients: int
    dim: int
    l2: float
    weights: Array
    spectrum: Array
    largest_scale: float

    @property
    def kind(self) -> str: ...  # noqa: D102
    @property
    def curvature(self) -> float: ...  # noqa: D102
    def averages(self, clients: NDArray[np.int64], points: Array) -> Any:
        """(gradient, hessian, noise) of one record, averaged over the p points of (k, m, p, d)."""

    def representatives(self, scales: int = 8) -> Any:
        """A few clients with weights, whose means are those of the distribution that clients are drawn from."""


def averages(
    problem: Streamed, clients: NDArray[np.int64], mean: Array, cov: Array, factors: Array
) -> tuple[Array, Array, Array]:
    """E ∇f_c, E C_c and E ∇²f_c under θ ~ N(mean, cov), for mean (k, m, d) and cov (k, m, d, d)."""
    d = problem.dim
    lam, U = np.linalg.eigh(cov)
    steps = np.swapaxes(U * np.sqrt(d * np.maximum(lam, 0.0))[..., None, :], -1, -2)
    at = problem.averages(clients, mean[:, :, None] + np.concatenate([steps, -steps], axis=2))
    return at.gradient, factors[:, None, None, None] * at.noise, at.hessian


def gradients(problem: Streamed, clients: NDArray[np.int64], points: Array) -> Array:
    """∇f_c at some points, (k, m, d)."""
    return np.asarray(problem.averages(clients, points[:, :, None]).gradient)


def noise_at(problem: Streamed, clients: NDArray[np.int64], points: Array, factors: Array) -> Array:
    """C_c at some points, (k, m, d, d)."""
    return factors[:, None, None, None] * np.asarray(problem.averages(clients, points[:, :, None]).noise)


class Moments(NamedTuple):
    """What A2, A3, A5 and A6 ask of the records: upper bounds, over all clients."""

    third: float  # E |xᵀu|²|xᵀv| for unit u and v
    fourth: float  # E |xᵀu|³|xᵀv|
    noise: float  # E^{1/3}‖ε_c(θ*)‖⁶
    variance: float  # E‖ε_c(θ*)‖², exact
    lipschitz2: float  # ℓ² with E^{1/3}‖ε_c(θ) − ε_c(θ')‖⁶ ≤ ℓ²‖θ − θ'‖²


def moments(problem: Any, theta: Array, factor: float, B: int) -> Moments:
    """Of records x ~ N(0, s_c Λ) at θ*; factor is 1/B, or 0 for full gradients.

    Hölder's inequality for third and fourth; Cauchy and Schwarz's between |ℓ'| and ‖x‖ for the noise; the sixth
    moment of a mean of B by the ways in which six factors share a record, each at its largest.
    """
    top = problem.largest_scale * float(problem.spectrum.max())
    third, fourth = 2.0 * math.sqrt(2.0 / math.pi) * top**1.5, 3.0 * top**2
    if factor == 0.0:
        return Moments(third, fourth, 0.0, 0.0, 0.0)
    everyone = np.arange(problem.n_clients)
    here = problem.averages(everyone, np.broadcast_to(theta, (everyone.size, 1, 1, problem.dim)))
    pull = np.linalg.norm(here.gradient[:, 0] - problem.l2 * theta, axis=1)
    m2 = np.trace(here.noise[:, 0], axis1=1, axis2=2)
    scale, w = problem.law(everyone)
    norms = {p: scale ** (p / 2) * norm_moment(problem.spectrum, p // 2) for p in (4, 6, 8, 12)}
    if problem.kind == "ridge_stream":
        square = scale * ((theta - w) ** 2 @ problem.spectrum) + problem.noise**2
        m4, m6 = np.sqrt(105.0 * square**4 * norms[8]), np.sqrt(10395.0 * square**6 * norms[12])
    else:  # |ℓ'| ≤ 1
        m4, m6 = norms[4], norms[6]
    noise = _sixth(m2, (m4**0.25 + pull) ** 4, (m6 ** (1 / 6) + pull) ** 6, B)
    kappa, drift = problem.curvature, problem.curvature * top
    total = problem.largest_scale * float(problem.spectrum.sum())
    worst = {p: problem.largest_scale ** (p / 2) * norm_moment(problem.spectrum, p // 2) for p in (8, 12)}
    b2 = kappa**2 * (total * top + 2.0 * top**2)
    b4 = kappa**4 * math.sqrt(105.0 * top**4 * worst[8])
    b6 = kappa**6 * math.sqrt(10395.0 * top**6 * worst[12])
    slope = _sixth(np.array(b2), np.array((b4**0.25 + drift) ** 4), np.array((b6 ** (1 / 6) + drift) ** 6), B)
    return Moments(third, fourth, float(noise.max()), factor * float(m2.max()), float(slope))


def norm_moment(spectrum: Array, n: int) -> float:
    """E‖x‖²ⁿ for x ~ N(0, diag(spectrum)), from the cumulants 2ʲ⁻¹ (j − 1)! Σ λʲ of ‖x‖²."""
    cumulants = [2.0 ** (j - 1) * math.factorial(j - 1) * float((spectrum**j).sum()) for j in range(1, n + 1)]
    found = [1.0]
    for k in range(1, n + 1):
        found.append(sum(math.comb(k - 1, j - 1) * cumulants[j - 1] * found[k - j] for j in range(1, k + 1)))
    return found[n]


def _sixth(m2: Array, m4: Array, m6: Array, B: int) -> Array:
    """An upper bound of E^{1/3}‖mean of B draws of a‖⁶, a centred, from its moments (see `constants`)."""
    total = B * m6 + 25 * B * (B - 1) * m4 * m2 + 15 * B * (B - 1) * (B - 2) * m2**3
    return np.asarray(np.cbrt(total) / B**2)
