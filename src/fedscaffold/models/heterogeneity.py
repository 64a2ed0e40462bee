"""How different the clients of a table are: spread of gradients, Hessians and classes."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedscaffold.core.machine import grouped, one_blas_thread, spans
from fedscaffold.core.types import Array, evenly_spaced_clients
from fedscaffold.data.encoded import EncodedProblem
from fedscaffold.models.compare import ModelScore, run_fedavg, score_model
from fedscaffold.models.planning.planned import FitSettings, PlannedFit, plan_fit
from fedscaffold.theory.problem_constants import gradient_heterogeneity, hessian_heterogeneity

MAX_NUMBERS = 20_000_000  # numbers in all clients' Hessians; above it, a sample of clients


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
        """κ = largest_curvature / smallest_curvature; infinite where the loss is flat in some direction."""
        floor = 1e-13 * self.largest_curvature
        return self.largest_curvature / self.smallest_curvature if self.smallest_curvature > floor else np.inf


@one_blas_thread
def heterogeneity(problem: EncodedProblem, optimum: Array, *, max_numbers: int = MAX_NUMBERS) -> Heterogeneity:
    """ζ₁, ζ₂ and the condition number of a problem of any kind, at its optimum.

    Where all clients' Hessians are more than `max_numbers` numbers, ζ₂ is that of some clients.
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
    """Rows of each class on each client, (clients, classes); None for a numeric target."""
    if problem.classes is None:
        return None
    K = len(problem.classes)
    counts = []
    targets = problem.targets
    for begin, end in spans(problem.offsets, problem.y):
        y = targets[begin:end]
        counts.append(np.bincount(((y + 1.0) / 2.0 if K == 2 else y).astype(np.int64), minlength=K))
    return np.array(counts, dtype=np.int64)


@dataclass(frozen=True, kw_only=True, eq=False)
class ClientsReport:
    """How a table's clients differ, and where FedAvg ends with the settings that Scaffold would need.

    Attributes
    ----------
    planned
        The problem and its plan for Scaffold.
    tolerance
        Relative distance to the pooled model that the plan aims for.
    class_counts
        Rows of each class on each client, (clients, classes); None for a numeric target.
    heterogeneity
        At the optimum.
    fedavg, pooled
        Scores of FedAvg's model and of the pooled one.
    """

    planned: PlannedFit
    tolerance: float
    class_counts: NDArray[np.int64] | None
    heterogeneity: Heterogeneity
    fedavg: ModelScore
    pooled: ModelScore


def inspect_clients(problem: EncodedProblem, settings: FitSettings) -> ClientsReport:
    """Measure how different clients are, plan for Scaffold, and run FedAvg with the same settings."""
    planned = plan_fit(problem, settings)
    averaged = run_fedavg(planned, settings, rounds=planned.rounds)
    return ClientsReport(
        planned=planned,
        tolerance=planned.aim,
        class_counts=class_counts(planned.problem),
        heterogeneity=heterogeneity(planned.problem, planned.optimum),
        fedavg=score_model("FedAvg", planned, averaged.theta[0]),
        pooled=score_model("Pooled", planned, planned.optimum),
    )
