"""The constants of the paper's assumptions A1 to A6, computed from a problem."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.random.batches import Batches, Sampling
from fedscaffold.core.types import Array
from fedscaffold.theory.constants.at_optimum import at_optimum, tells_hessians
from fedscaffold.theory.constants.noise_moments import batch_moments, lipschitz2
from fedscaffold.theory.inputs import QUADRATIC, Block, Glm, for_blocks, is_streamed, noise_factors
from fedscaffold.theory.prediction import streams

# largest |ℓ'''| and |ℓ''''| of a margin
HIGHER_DERIVATIVES = {"ridge": (0.0, 0.0), "logistic": (1.0 / (6.0 * np.sqrt(3.0)), 1.0 / 8.0)}
LOCAL = ("zeta1", "zeta2", "mu_at_optimum", "L_at_optimum", "noise_at_optimum", "noise_variance_at_optimum")


@dataclass(frozen=True, kw_only=True)
class Constants:
    """μ, L, Q, G, ζ₁, ζ₂, σ*², β of assumptions A1 to A6, each the smallest value that this room can certify.

    Those named in `local` are values at θ*, exact. The others hold for all θ ("global"): they are exact for
    ridge where nothing else is said, and upper bounds (μ: lower bound) for logistic regression.

    Of a `Differentiable` loss nothing is known away from θ*, so all are local: what the constants would be if
    second derivatives stayed what they are at θ*, and ‖∇³f_c(θ*)‖ and ‖∇⁴f_c(θ*)‖ for Q and G, which ascents from
    several starts find. They describe a problem; they prove nothing, and `theory.bounds` refuses them.

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
        Names of the constants that are about θ* only; all of them for a `Differentiable` loss.
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


def constants(problem: Any, *, batch_size: int | None, sampling: Sampling = "with_replacement") -> Constants:
    """μ, L, Q, G, ζ₁, ζ₂, σ*², β of A1 to A6: upper bounds that hold for all θ, or values at θ*, see `Constants`.

    Parameters
    ----------
    problem
        Ridge or logistic regression, on tables or streams; or a strongly convex `Differentiable` loss of up to a
        few hundred parameters, for which all constants are about θ* only (the Hessians of all records are
        computed, some at a time).
    batch_size
        Records in each stochastic gradient; None for full gradients.
    sampling
        "with_replacement" or "without_replacement", within a batch.
    """
    batches = Batches(batch_size, sampling)
    batches.check_fits(problem.sizes)
    if is_streamed(problem):
        return _of_law(problem, batches)
    if problem.kind in HIGHER_DERIVATIVES:
        return _of_margins(problem, batches)
    if tells_hessians(problem):
        values = at_optimum(problem, batches)
        return Constants(**values, local=tuple(values))
    known = ", ".join(HIGHER_DERIVATIVES)
    raise InvalidInput(f"constants are known for {known} and losses with record_hessians, not for {problem.kind}")


def _of_margins(problem: Glm, batches: Batches) -> Constants:
    """Of ridge and logistic regression: every derivative of a record's loss is bounded by one of its margin."""
    factors, batch_size = noise_factors(problem, batches), batches.size
    kappa, (kappa3, kappa4) = problem.curvature, HIGHER_DERIVATIVES[problem.kind]
    theta, w = problem.optimum(), problem.weights
    hessians = problem.client_hessians(theta)
    spread = hessians - np.tensordot(w, hessians, axes=1)
    gradients = problem.client_gradients(theta)
    eigenvalues = np.linalg.eigvalsh(hessians)

    N = problem.n_clients
    record, third, fourth, sixth, variance, slope2 = (np.zeros(N) for _ in range(6))

    def work(block: Block) -> None:
        at, real = block.clients, block.share > 0
        squares = np.einsum("knd,knd->kn", block.x, block.x)
        record[at] = squares.max(axis=1)
        third[at], fourth[at] = (_largest_eigenvalues(block, squares**p) for p in (0.5, 1.0))
        if batch_size is not None:
            a = (problem.d1(block.x @ theta, block.y) * real)[..., None] * block.x
            a = (a - np.einsum("kn,knd->kd", block.share, a)[:, None, :]) * real[..., None]
            sixth[at], second = batch_moments(block.share, a, batch_size)
            variance[at] = factors[at] * second
            slope2[at] = _lipschitz2(block, squares, kappa, batch_size)

    for_blocks(problem, work, copies=10)
    noise, slope = float((sixth * (factors > 0)).max()), float((slope2 * (factors > 0)).max())
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


def _lipschitz2(block: Block, squares: Array, kappa: float, B: int) -> Array:
    """ℓ² with E^{1/3}‖ε(θ) − ε(θ')‖⁶ ≤ ℓ²‖θ − θ'‖², an upper bound, shape (k,).

    A record contributes a = b − Eb, b = κ_i x_i x_iᵀu with 0 ≤ κ_i ≤ κ, and E‖b‖^p ≤ κ^p λ_max(E‖x‖^{2p−2} x xᵀ)
    for ‖u‖ = 1.
    """
    drift = kappa * _largest_eigenvalues(block, np.ones_like(squares))
    b2, b4, b6 = (kappa**p * _largest_eigenvalues(block, squares ** (p - 1)) for p in (2, 4, 6))
    return lipschitz2(drift, b2, b4, b6, B)
