"""The problem of a table with its optimum, and differences between its clients: gradients, Hessians, classes.

For `fedscaffold plan`, `compare` and `inspect`.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedscaffold.core.errors import InvalidInput, OutOfReach
from fedscaffold.core.machine import grouped, one_blas_thread, spans
from fedscaffold.core.types import Array, evenly_spaced_clients
from fedscaffold.data.encoded import EncodedProblem
from fedscaffold.inference.sums import MOST_COEFFICIENTS, slope_mask
from fedscaffold.inference.training import RELATIVE_TOLERANCE, parse_tolerance
from fedscaffold.methods import FedAvg
from fedscaffold.models.coding import standardize_target
from fedscaffold.models.fit import FitSettings, fit
from fedscaffold.planning import Plan
from fedscaffold.planning.batches import candidate_batches, fastest_plan, out_of_reach
from fedscaffold.simulation.run_method import run
from fedscaffold.theory.problem_constants import gradient_heterogeneity, hessian_heterogeneity

MAX_NUMBERS = 20_000_000  # numbers in all clients' Hessians; above it, a sample of clients


@dataclass(frozen=True, kw_only=True, eq=False)
class PreparedProblem:
    """A table's problem, its optimum, and a squared distance to aim for.

    Attributes
    ----------
    problem
        With a standardised target.
    optimum
        θ*, (dim,).
    target_mse
        Squared distance to the optimum that a run should reach.
    loss_scale
        Factor that turns a loss of this problem into one in the target's own units.
    """

    problem: EncodedProblem
    optimum: Array
    target_mse: float
    loss_scale: float

    @property
    def aim(self) -> float:
        """The distance that a run should reach, relative to the norm of the slopes."""
        return float(np.sqrt(self.target_mse)) / slope_length(self.problem, self.optimum)

    def loss(self, theta: Array) -> float:
        """Return the loss of a θ in the target's own units."""
        return float(self.problem.loss(theta)) * self.loss_scale

    def relative_distance(self, theta: Array) -> float:
        """Return ‖β − β*‖ / ‖β*‖ of the slopes β of a θ."""
        return slope_length(self.problem, theta - self.optimum) / slope_length(self.problem, self.optimum)


def prepare_problem(problem: EncodedProblem, settings: FitSettings) -> PreparedProblem:
    """Standardise a numeric target, find θ*, and choose the squared distance that a run should reach.

    Raises
    ------
    InvalidInput
        If the table does not determine the coefficients, or the best slopes are all 0.
    """
    standardized, _, scale = standardize_target(problem)
    if problem.dim <= MOST_COEFFICIENTS:
        fit(problem, settings=settings)  # names columns that the data do not determine
    optimum = standardized.optimum()
    unit, value = parse_tolerance(settings.tolerance)
    length = slope_length(standardized, optimum)
    if length == 0.0:
        raise InvalidInput(
            "the features say nothing about the target: the best coefficients are all 0; choose other features"
        )
    aim = value if unit == "relative" else RELATIVE_TOLERANCE
    return PreparedProblem(
        problem=standardized, optimum=optimum, target_mse=(aim * length) ** 2, loss_scale=scale**2
    )


def slope_length(problem: Any, theta: Array) -> float:
    """Return ‖β‖ of the coefficients β of θ, without unpenalised intercepts.

    An intercept follows from how frequent an outcome is; in the norm of θ it would hide errors of slopes.
    """
    slopes = slope_mask(problem.vectors, problem.n_features, problem.n_unpenalised)
    return float(np.linalg.norm(theta[slopes]))


@dataclass(frozen=True, kw_only=True)
class Heterogeneity:
    """ζ₁² = Σ w_c‖∇f_c(θ*)‖², ζ₂² = Σ w_c‖∇²f_c(θ*) − ∇²f(θ*)‖² (spectral norm), and κ of ∇²f(θ*).

    Attributes
    ----------
    zeta1, zeta2
        ζ₁ and ζ₂.
    smallest_curvature, largest_curvature
        Extreme eigenvalues of ∇²f(θ*).
    sampled
        Number of clients that ζ₂ was computed from.
    """

    zeta1: float
    zeta2: float
    smallest_curvature: float
    largest_curvature: float
    sampled: int

    @property
    def condition_number(self) -> float:
        """κ = largest_curvature / smallest_curvature; infinite if the loss is flat in some direction."""
        floor = 1e-13 * self.largest_curvature
        return self.largest_curvature / self.smallest_curvature if self.smallest_curvature > floor else np.inf


@one_blas_thread
def heterogeneity(problem: EncodedProblem, optimum: Array, *, max_numbers: int = MAX_NUMBERS) -> Heterogeneity:
    """Return ζ₁, ζ₂ and the condition number of a problem of any kind, at its optimum.

    If all clients' Hessians are more than `max_numbers` numbers, ζ₂ is that of some clients.
    """
    eigenvalues = np.linalg.eigvalsh(problem.hessian(optimum))
    most = max(2, max_numbers // problem.dim**2)
    if problem.n_clients <= most:
        weights, hessians = problem.weights, problem.client_hessians(optimum)
    else:
        chosen = evenly_spaced_clients(problem.n_clients, most)
        blocks = grouped(problem.sizes[chosen] * problem.n_features, max_numbers)
        hessians = np.concatenate([problem.subset(chosen[i:j]).client_hessians(optimum) for i, j in blocks])
        weights = problem.weights[chosen] / problem.weights[chosen].sum()
    return Heterogeneity(
        zeta1=gradient_heterogeneity(problem.weights, problem.client_gradients(optimum)),
        zeta2=hessian_heterogeneity(weights, hessians),
        smallest_curvature=float(eigenvalues[0]),
        largest_curvature=float(eigenvalues[-1]),
        sampled=weights.size,
    )


def class_counts(problem: EncodedProblem) -> NDArray[np.int64] | None:
    """Return the rows of each class on each client, (clients, classes); None for a numeric target."""
    if problem.classes is None:
        return None
    K = len(problem.classes)
    counts = []
    targets = problem.targets
    for begin, end in spans(problem.offsets, problem.y):
        y = targets[begin:end]
        counts.append(np.bincount(((y + 1.0) / 2.0 if K == 2 else y).astype(np.int64), minlength=K))
    return np.array(counts, dtype=np.int64)


def plan_beside_fedavg(prepared: PreparedProblem) -> tuple[Plan, Array]:
    """Return a plan for Scaffold, and θ of FedAvg after a run with the same settings, (dim,)."""
    made = prepared.problem
    try:
        batch_size, plan = fastest_plan(
            made, candidate_batches(made.sizes), optimum=prepared.optimum, target_mse=prepared.target_mse
        )
    except OutOfReach as error:
        raise out_of_reach(error, prepared.aim) from None
    method = FedAvg(step_size=plan.method.step_size, local_steps=plan.method.uniform_local_steps)
    trace = run(made, method, rounds=plan.rounds, batch_size=batch_size, record=())
    return plan, trace.theta[0]
