"""The constants of the paper's assumptions A1 to A6, computed from a problem."""

from dataclasses import dataclass

from fedscaffold.core.capabilities import GeneralisedLinear, HasRecordHessians, PopulationMoments, SmoothProblem
from fedscaffold.core.checks import check_problem
from fedscaffold.core.display.summaries import Summarised
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.random.batches import Batches, Sampling
from fedscaffold.theory.constants.at_optimum import constants_at_optimum
from fedscaffold.theory.constants.margins import margin_constants
from fedscaffold.theory.constants.streams import stream_constants

LOCAL = ("zeta1", "zeta2", "mu_at_optimum", "L_at_optimum", "noise_at_optimum", "noise_variance_at_optimum")


@dataclass(frozen=True, kw_only=True, repr=False)
class Constants(Summarised):
    """μ, L, Q, G, ζ₁, ζ₂, σ*², β of assumptions A1 to A6, each the smallest value that can be certified here.

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
    design_effect
        N Σ w_c² ≥ 1, Kish's design effect: by how much the variance of a weighted mean over clients is larger than
        with equal weights, for which it is 1.
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
        """A5's pair (σ*², β) = ((1 + a) s², (1 + 1/a) ℓ²) for any a > 0; the fields have a = 1.

        By Minkowski's inequality in L⁶ and 2st ≤ a s² + t²/a. A small a brings σ*² near the noise at θ*.
        """
        if not slack > 0:
            raise InvalidInput(f"slack must be positive, got {slack!r}")
        return (1.0 + slack) * self.noise_at_optimum, (1.0 + 1.0 / slack) * self.noise_lipschitz2


def constants(
    problem: SmoothProblem, *, batch_size: int | None, sampling: Sampling = "with_replacement"
) -> Constants:
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

    Examples
    --------
    >>> import fedscaffold as fs
    >>> problem = fs.problems.Ridge([[[1.0], [1.0]], [[2.0], [2.0]]], [[0.0, 2.0], [0.0, 4.0]])
    >>> fs.theory.constants(problem, batch_size=None).noise_variance_at_optimum
    0.0
    >>> round(fs.theory.constants(problem, batch_size=1).noise_variance_at_optimum, 6)  # client 1: xy is 0 or 8
    16.0
    """
    check_problem(problem)
    batches = Batches(batch_size, sampling)
    batches.check_fits(problem.sizes)
    effect = problem.n_clients * float(problem.weights @ problem.weights)
    if isinstance(problem, PopulationMoments):
        return Constants(**stream_constants(problem, batches), design_effect=effect, local=LOCAL)
    if isinstance(problem, GeneralisedLinear):
        return Constants(**margin_constants(problem, batches), design_effect=effect, local=LOCAL)
    if isinstance(problem, HasRecordHessians):
        values = constants_at_optimum(problem, batches)
        return Constants(**values, design_effect=effect, local=tuple(values))
    raise InvalidInput(
        f"constants are known for ridge, logistic and losses with record_hessians, not for {problem.kind}"
    )
