"""How different clients are, and what that does to FedAvg."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedscaffold.core.memmap import grouped, spans
from fedscaffold.core.threads import one_blas_thread
from fedscaffold.core.types import Array
from fedscaffold.data.encoded import EncodedProblem

LARGEST = 20_000_000  # numbers in all clients' Hessians; above it, a sample of clients


@dataclass(frozen=True, kw_only=True)
class Heterogeneity:
    """ζ₁² = Σ w_c‖∇f_c(θ*)‖², ζ₂² = Σ w_c‖∇²f_c(θ*) − ∇²f(θ*)‖² (spectral norm), and κ of ∇²f(θ*).

    `sampled` is how many clients ζ₂ was computed from.
    """

    zeta1: float
    zeta2: float
    smallest_curvature: float
    largest_curvature: float
    sampled: int

    @property
    def condition_number(self) -> float:
        """κ = largest over smallest curvature; infinite where nothing curves in some direction."""
        floor = 1e-13 * self.largest_curvature
        return self.largest_curvature / self.smallest_curvature if self.smallest_curvature > floor else np.inf


@one_blas_thread
def heterogeneity(problem: EncodedProblem, optimum: Array) -> Heterogeneity:
    """ζ₁, ζ₂ and the condition number of a problem of any kind, at its optimum."""
    eigenvalues = np.linalg.eigvalsh(problem.hessian(optimum))
    most = max(2, LARGEST // problem.dim**2)
    if problem.n_clients <= most:
        weights, hessians = problem.weights, problem.client_hessians(optimum)
    else:
        chosen = np.linspace(0, problem.n_clients - 1, most).round().astype(np.int64)
        blocks = grouped(problem.sizes[chosen] * problem.n_features, LARGEST)
        hessians = np.concatenate([problem.subset(chosen[i:j]).client_hessians(optimum) for i, j in blocks])
        weights = problem.weights[chosen] / problem.weights[chosen].sum()
    spread = hessians - np.tensordot(weights, hessians, axes=1)
    norms = np.abs(np.linalg.eigvalsh(spread)).max(axis=1)
    gradients = problem.client_gradients(optimum)
    return Heterogeneity(
        zeta1=float(np.sqrt(problem.weights @ np.square(gradients).sum(axis=1))),
        zeta2=float(np.sqrt(weights @ norms**2)),
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
    for begin, end in spans(problem.offsets, problem.y):
        y = problem.y[begin:end]
        counts.append(np.bincount(((y + 1.0) / 2.0 if K == 2 else y).astype(np.int64), minlength=K))
    return np.array(counts, dtype=np.int64)
