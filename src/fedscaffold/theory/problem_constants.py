"""The constants of the paper's assumptions A1 to A6, computed from a problem.

For generalised linear problems every derivative of a record's loss is bounded by that derivative in its margin
times a power of ‖x‖, for all θ. For any other loss whose records have Hessians the constants are values at θ*.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fedscaffold.core import capabilities
from fedscaffold.core.capabilities import GeneralisedLinear, HasRecordHessians, PopulationMoments, SmoothProblem
from fedscaffold.core.checks import check_problem
from fedscaffold.core.display import Summarised
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.machine import one_blas_thread
from fedscaffold.core.random.stream import Batches, Sampling
from fedscaffold.core.types import Array
from fedscaffold.theory.exact.quadratic import client_rows, noise_factors, taken

LOCAL = ("zeta1", "zeta2", "mu_at_optimum", "L_at_optimum", "noise_at_optimum", "noise_variance_at_optimum")


@dataclass(frozen=True, kw_only=True, repr=False)
class Constants(Summarised):
    """Constants μ, L, Q, G, ζ₁, ζ₂, σ*², β of assumptions A1 to A6, each the smallest that can be certified.

    Fields named in `local` are exact values at θ*; the others hold for all θ. For a `Differentiable` loss all are
    local: the constants if second derivatives stayed as they are at θ*, with ‖∇³f_c(θ*)‖ and ‖∇⁴f_c(θ*)‖, found by
    ascents from several starts, for Q and G. They prove nothing, and `theory.bounds` rejects them.

    Attributes
    ----------
    mu
        A1, strong convexity: ∇²f_c(θ) ≥ μI for all c and θ. For logistic regression the smallest penalty.
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
    design_effect
        N Σ w_c² ≥ 1, Kish's design effect: the variance of a weighted mean over clients relative to that of a mean
        with equal weights.
    local
        Names of the constants that are about θ* only; all but `design_effect` for a `Differentiable` loss.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> problem = fs.problems.Ridge([[[1.0], [1.0]], [[2.0], [2.0]]], [[0.0, 2.0], [0.0, 4.0]])
    >>> found = fs.theory.constants(problem, batch_size=1)
    >>> found.mu, found.L, found.zeta2
    (1.0, 4.0, 1.5)
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
    design_effect: float = 1.0
    local: tuple[str, ...] = LOCAL

    def _facts(self) -> dict[str, object]:
        names = ("mu", "L", "L_record", "Q", "G", "zeta1", "zeta2", "sigma_star2", "beta")
        return {name: f"{getattr(self, name):.4g}" for name in names}

    def noise_bound(self, slack: float) -> tuple[float, float]:
        """Return A5's pair (σ*², β) = ((1 + a) s², (1 + 1/a) ℓ²) for slack a > 0; the fields have a = 1.

        By Minkowski's inequality in L⁶ and 2st ≤ a s² + t²/a. A small a brings σ*² near the noise at θ*.
        """
        if not slack > 0:
            raise InvalidInput(f"slack must be positive, got {slack!r}")
        return (1.0 + slack) * self.noise_at_optimum, (1.0 + 1.0 / slack) * self.noise_lipschitz2


def constants(
    problem: SmoothProblem, *, batch_size: int | None, sampling: Sampling = "with_replacement"
) -> Constants:
    """Return μ, L, Q, G, ζ₁, ζ₂, σ*², β of A1 to A6: bounds that hold for all θ, or values at θ*, see `Constants`.

    Parameters
    ----------
    problem
        Ridge or logistic regression, on tables or streams; or a strongly convex `Differentiable` loss of up to a
        few hundred parameters, as the Hessians of all records are computed.
    batch_size
        Records in each stochastic gradient; None for full gradients.
    sampling
        "with_replacement" or "without_replacement", within a batch.

    Returns
    -------
    Constants
        Upper bounds (μ: a lower bound), except for the fields that `local` names.

    Raises
    ------
    InvalidInput
        If the problem has no such constants, or a client's loss is not convex at θ*.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> problem = fs.problems.Ridge([[[1.0], [1.0]], [[2.0], [2.0]]], [[0.0, 2.0], [0.0, 4.0]])
    >>> round(fs.theory.constants(problem, batch_size=1).noise_variance_at_optimum, 6)  # client 1: xy is 0 or 8
    16.0
    """
    check_problem(problem)
    batches = Batches(batch_size, sampling)
    batches.check_fits(problem.sizes)
    effect = problem.n_clients * float(problem.weights @ problem.weights)
    if isinstance(problem, PopulationMoments):
        return Constants(**_of_stream(problem, batches), design_effect=effect, local=LOCAL)
    if isinstance(problem, GeneralisedLinear):
        return Constants(**_of_table(problem, batches), design_effect=effect, local=LOCAL)
    if isinstance(problem, HasRecordHessians):
        values = _at_optimum(problem, batches)
        return Constants(**values, design_effect=effect, local=tuple(values))
    raise InvalidInput(
        f"constants are known for ridge, logistic and losses with record_hessians, not for {problem.kind}"
    )


def gradient_heterogeneity(weights: Array, gradients: Array) -> float:
    """Return ζ₁ with ζ₁² = Σ w_c‖∇f_c(θ*)‖², from weights (n,) and gradients (n, d) of clients at θ*.

    Examples
    --------
    >>> import numpy as np
    >>> gradient_heterogeneity(np.array([0.5, 0.5]), np.array([[3.0, 4.0], [-3.0, -4.0]]))
    5.0
    """
    return float(np.sqrt(weights @ np.square(gradients).sum(axis=1)))


def hessian_heterogeneity(weights: Array, hessians: Array) -> float:
    """Return ζ₂ with ζ₂² = Σ w_c‖∇²f_c(θ*) − ∇²f(θ*)‖² (spectral norm), from weights (n,), Hessians (n, d, d).

    Examples
    --------
    >>> import numpy as np
    >>> hessian_heterogeneity(np.array([0.5, 0.5]), np.array([[[1.0]], [[2.0]]]))
    0.5
    """
    spread = hessians - np.tensordot(weights, hessians, axes=1)
    return float(np.sqrt(weights @ np.abs(np.linalg.eigvalsh(spread)).max(axis=1) ** 2))


def _of_clients(problem: SmoothProblem, theta: Array) -> dict[str, float]:
    """Return ζ₁, ζ₂ and the extreme eigenvalues of all ∇²f_c(θ), by their names in `Constants`."""
    hessians = problem.client_hessians(theta)
    eigenvalues = np.linalg.eigvalsh(hessians)
    return {
        "zeta1": gradient_heterogeneity(problem.weights, problem.client_gradients(theta)),
        "zeta2": hessian_heterogeneity(problem.weights, hessians),
        "mu_at_optimum": float(eigenvalues[:, 0].min()),
        "L_at_optimum": float(eigenvalues[:, -1].max()),
    }


def _batch_moments(share: Array, a: Array, B: int) -> tuple[Array, Array]:
    """Return (E^{1/3}‖mean of B draws of a_i‖⁶, E‖a_i‖²) for centred a_i (k, n, d) of shares (k, n), each (k,).

    Exact with replacement, by the ways to split six factors into groups that share a draw: {6}, {4, 2}, {3, 3},
    {2, 2, 2}. Without replacement the moment is smaller (Hoeffding 1963).
    """
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


def _sixth_moment(drift: Array | float, b2: Array, b4: Array | float, b6: Array | float, B: int) -> Array:
    """Return an upper bound on E^{1/3}‖mean of B draws of a_i‖⁶.

    Here a_i = b_i − E b with E‖a‖² ≤ b2, ‖E b‖ ≤ drift and E‖b‖^p ≤ b_p: the expansion of `_batch_moments` with
    each term at its largest. For matrices b_i with E‖b u‖^p ≤ b_p‖u‖^p it bounds ℓ² of the noise's slope.
    """
    m2, m4, m6 = b2, (b4**0.25 + drift) ** 4, (b6 ** (1 / 6) + drift) ** 6
    total = B * m6 + 25 * B * (B - 1) * m4 * m2 + 15 * B * (B - 1) * (B - 2) * m2**3
    return np.cbrt(total) / B**2


def _of_noise(sixth: float, variance: float, slope2: float) -> dict[str, float]:
    """Return A5's pair (2 s², 2 ℓ²) and its parts s², the variance and ℓ², by their names in `Constants`."""
    return {
        "sigma_star2": 2.0 * sixth,
        "beta": 2.0 * slope2,
        "noise_at_optimum": sixth,
        "noise_variance_at_optimum": variance,
        "noise_lipschitz2": slope2,
    }


def _of_table(problem: GeneralisedLinear, batches: Batches) -> dict[str, float]:
    """Return the constants of a table by name; they hold for all θ."""
    factors, batch_size = noise_factors(problem, batches), batches.size
    kappa, (kappa3, kappa4) = problem.curvature, problem.margin_derivative_bounds
    theta = problem.optimum()
    record, third, fourth, sixth, variance, slope2 = (np.zeros(problem.n_clients) for _ in range(6))

    for at, rows in client_rows(problem.offsets, 10 * problem.dim):  # with about ten arrays as large as x
        real = rows >= 0
        block = ClientBlock(taken(problem.x, rows), problem.y[rows], real / real.sum(axis=1)[:, None])
        squares = np.einsum("knd,knd->kn", block.x, block.x)
        record[at] = squares.max(axis=1)
        third[at], fourth[at] = (_largest_eigenvalues(block, squares**p) for p in (0.5, 1.0))
        if batch_size is not None:
            a = (problem.d1(block.x @ theta, block.y) * real)[..., None] * block.x
            a = (a - np.einsum("kn,knd->kd", block.share, a)[:, None, :]) * real[..., None]
            sixth[at], second = _batch_moments(block.share, a, batch_size)
            variance[at] = factors[at] * second
            # a record adds b = κ_i x_i x_iᵀu, κ_i ≤ κ, and E‖b‖^p ≤ κ^p λ_max(E‖x‖^{2p−2} x xᵀ) for ‖u‖ = 1
            drift = kappa * _largest_eigenvalues(block, np.ones_like(squares))
            b2, b4, b6 = (kappa**p * _largest_eigenvalues(block, squares ** (p - 1)) for p in (2, 4, 6))
            slope2[at] = _sixth_moment(drift, b2, b4, b6, batch_size)

    noise, slope = float((sixth * (factors > 0)).max()), float((slope2 * (factors > 0)).max())
    return {
        "mu": problem.strong_convexity(),
        "L": problem.smoothness(batches),
        "L_record": kappa * float(record.max()) + problem.l2,
        "Q": kappa3 * float(third.max()),
        "G": kappa4 * float(fourth.max()),
        **_of_clients(problem, theta),
        **_of_noise(noise, float(variance.max()), slope),
    }


class ClientBlock(NamedTuple):
    """Records of some clients side by side, filled up with zeros to the same number of records."""

    x: Array  # (k, n, d)
    y: Array  # (k, n)
    share: Array  # (k, n): 1/n_c for a record, 0 for filling


def _largest_eigenvalues(block: ClientBlock, weight: Array) -> Array:
    """Return λ_max(mean_i weight_i x_i x_iᵀ), shape (k,)."""
    weighted = (block.share * weight)[..., None] * block.x
    eigenvalues = np.linalg.eigvalsh(np.swapaxes(block.x, 1, 2) @ weighted)
    return np.asarray(eigenvalues[:, -1], dtype=np.float64)


def _of_stream(problem: PopulationMoments, batches: Batches) -> dict[str, float]:
    """Return the constants of x ~ N(0, s_c Λ) by name, E|xᵀu|²|xᵀv| and E|xᵀu|³|xᵀv| by Hölder's inequality."""
    theta = problem.optimum()
    kappa3, kappa4 = problem.margin_derivative_bounds
    top = problem.largest_scale * float(problem.spectrum.max())
    return {
        "mu": problem.strong_convexity(),
        "L": problem.smoothness(batches),
        "L_record": math.inf,
        "Q": kappa3 * (2.0 * math.sqrt(2.0 / math.pi) * top**1.5),
        "G": kappa4 * (3.0 * top**2),
        **_of_clients(problem, theta),
        **_noise_of_stream(problem, theta, top, batches),
    }


def _noise_of_stream(problem: PopulationMoments, theta: Array, top: float, batches: Batches) -> dict[str, float]:
    """Return A5's constants by name; `top` is the largest variance of any xᵀu.

    By Cauchy and Schwarz's inequality between |ℓ'| and ‖x‖, with E z⁸ = 105 and E z¹² = 10395 of a normal z.
    """
    factor, B = float(noise_factors(problem, batches)[0]), batches.size or 1
    if factor == 0.0:
        return _of_noise(0.0, 0.0, 0.0)
    everyone = np.arange(problem.n_clients)
    gradient, _, covariance = problem.derivatives(everyone, theta)
    pull = np.linalg.norm(gradient - problem.l2 * theta, axis=1)
    m2 = np.trace(covariance, axis1=1, axis2=2)
    scale, _ = problem.law(everyone)
    norms = {p: scale ** (p / 2) * norm_moment(problem.spectrum, p // 2) for p in (4, 6, 8, 12)}
    if isinstance(problem, capabilities.HasResidualVariances):
        square = problem.residual_variances(theta, everyone)
        m4, m6 = np.sqrt(105.0 * square**4 * norms[8]), np.sqrt(10395.0 * square**6 * norms[12])
    else:  # logistic regression, with |ℓ'| ≤ 1
        m4, m6 = norms[4], norms[6]
    noise = _sixth_moment(pull, m2, m4, m6, B)
    kappa, total = problem.curvature, problem.largest_scale * float(problem.spectrum.sum())
    worst = {p: problem.largest_scale ** (p / 2) * norm_moment(problem.spectrum, p // 2) for p in (8, 12)}
    b2 = kappa**2 * (total * top + 2.0 * top**2)
    b4 = kappa**4 * math.sqrt(105.0 * top**4 * worst[8])
    b6 = kappa**6 * math.sqrt(10395.0 * top**6 * worst[12])
    slope = _sixth_moment(kappa * top, np.array(b2), b4, b6, B)
    return _of_noise(float(noise.max()), factor * float(m2.max()), float(slope))


def norm_moment(spectrum: Array, n: int) -> float:
    """Return E‖x‖²ⁿ for x ~ N(0, diag(spectrum)), from the cumulants 2ʲ⁻¹ (j − 1)! Σ λʲ of ‖x‖²."""
    cumulants = [2.0 ** (j - 1) * math.factorial(j - 1) * float((spectrum**j).sum()) for j in range(1, n + 1)]
    found = [1.0]
    for k in range(1, n + 1):
        found.append(sum(math.comb(k - 1, j - 1) * cumulants[j - 1] * found[k - j] for j in range(1, k + 1)))
    return found[n]


@one_blas_thread
def _at_optimum(problem: HasRecordHessians, batches: Batches) -> dict[str, float]:
    """Return the constants at θ* by name, for any loss whose records have Hessians."""
    theta = problem.optimum()
    clients = _of_clients(problem, theta)
    mu = clients["mu_at_optimum"]
    if mu < -1e-9 * clients["L_at_optimum"]:  # not rounding, which is about 1e-16 of the largest eigenvalue
        smallest = np.linalg.eigvalsh(problem.client_hessians(theta))[:, 0]
        raise InvalidInput(
            f"client {int(smallest.argmin())}'s loss curves downwards at θ* (eigenvalue {mu:.3g}), but the "
            "constants need convex losses: raise l2"
        )
    third, fourth = problem.client_derivative_norms(theta)
    smooth = record = sixth = variance = slope2 = 0.0
    for client, n in enumerate(problem.sizes):
        factor = batches.noise_factor(int(n))
        largest, drift, (b2, b4, b6) = _curvatures(problem, client, theta)
        record = max(record, largest)
        smooth = max(smooth, factor * largest + (1.0 - factor) * drift)
        if batches.size is None or factor == 0.0:
            continue
        each = problem.record_gradients(client, theta[None])[0]
        share = np.full((1, int(n)), 1.0 / n)
        moment, second = _batch_moments(share, (each - each.mean(axis=0))[None], batches.size)
        sixth, variance = max(sixth, float(moment[0])), max(variance, factor * float(second[0]))
        slope2 = max(slope2, float(_sixth_moment(drift, b2, b4, b6, batches.size)))
    return {
        "mu": max(mu, 0.0),
        "L": smooth + problem.l2,
        "L_record": record + problem.l2,
        "Q": float(third.max()),
        "G": float(fourth.max()),
        **clients,
        **_of_noise(sixth, variance, slope2),
    }


def _curvatures(problem: HasRecordHessians, client: int, theta: Array) -> tuple[float, float, Array]:
    """Return max ‖A_i‖, ‖E A‖, and λ_max(E ‖A‖^{p−2} A²) ≥ E‖A u‖^p for p = 2, 4, 6, of A_i = ∇²ℓ_i − l2 I."""
    d, n = problem.dim, int(problem.sizes[client])
    mean, sums, largest = np.zeros((d, d)), np.zeros((3, d, d)), 0.0
    for chunk in problem.record_hessians(client, theta):
        A = chunk - problem.l2 * np.eye(d)
        norms = np.abs(np.linalg.eigvalsh(A)).max(axis=1)
        largest = max(largest, float(norms.max()))
        mean += A.sum(axis=0) / n
        sums += np.stack([np.tensordot(norms ** (2 * k) / n, A @ A, axes=1) for k in range(3)])
    drift = float(np.abs(np.linalg.eigvalsh(mean)).max())
    return largest, drift, np.asarray(np.linalg.eigvalsh(sums)[:, -1], dtype=np.float64)
