"""The constants of assumptions A1 to A6 at θ*, of any loss whose records tell Hessians."""

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol, TypeGuard

import numpy as np
from numpy.typing import NDArray

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.random.batches import Batches
from fedscaffold.core.threads import one_blas_thread
from fedscaffold.core.types import Array
from fedscaffold.theory.constants.noise_moments import batch_moments, lipschitz2

DOWNWARDS = 1e-9  # of the largest curvature: less is rounding


class TwiceByRecord(Protocol):
    """A problem that tells its records' gradients and Hessians."""

    n_clients: int
    dim: int
    weights: Array
    sizes: NDArray[np.int64]
    l2: float

    def optimum(self) -> Array: ...  # noqa: D102
    def client_gradients(self, theta: Array) -> Array: ...  # noqa: D102
    def client_hessians(self, theta: Array) -> Array: ...  # noqa: D102
    def client_derivative_norms(self, theta: Array) -> tuple[Array, Array]:
        """Of the third and fourth derivatives of every f_c, each (N,)."""

    def record_gradients(self, client: int, points: Array) -> Array: ...  # noqa: D102
    def record_hessians(self, client: int, theta: Array) -> Iterator[Array]:
        """∇²ℓ_i(θ), penalty included, of a client's records, (k, d, d) at a time."""


class Curvatures(NamedTuple):
    """Of one client's records, without penalty."""

    drift: Array  # ‖E A‖
    moments: tuple[Array, Array, Array]  # λ_max(E ‖A‖^{p−2} A²) ≥ E‖A u‖^p for p = 2, 4, 6
    largest: float  # max ‖A_i‖


def tells_hessians(problem: Any) -> TypeGuard[TwiceByRecord]:
    """Whether a problem tells what is needed here."""
    return hasattr(problem, "record_hessians") and hasattr(problem, "client_derivative_norms")


@one_blas_thread
def at_optimum(problem: TwiceByRecord, batches: Batches) -> dict[str, float]:
    """The fields of `theory.Constants` at θ*, by name."""
    theta, w = problem.optimum(), problem.weights
    gradients, hessians = problem.client_gradients(theta), problem.client_hessians(theta)
    eigenvalues = np.linalg.eigvalsh(hessians)
    spread = hessians - np.tensordot(w, hessians, axes=1)
    mu, largest = float(eigenvalues[:, 0].min()), float(eigenvalues[:, -1].max())
    if mu < -DOWNWARDS * largest:
        raise InvalidInput(
            f"client {int(eigenvalues[:, 0].argmin())}'s loss curves downwards at θ* (eigenvalue {mu:.3g}); the "
            "constants are those of strongly convex losses: raise l2"
        )
    third, fourth = problem.client_derivative_norms(theta)
    smooth = record = sixth = variance = slope2 = 0.0
    for client, n in enumerate(problem.sizes):
        factor = batches.noise_factor(int(n))
        found = _curvatures(problem, client, theta)
        record = max(record, found.largest)
        smooth = max(smooth, factor * found.largest + (1.0 - factor) * float(found.drift[0]))
        if batches.size is None or factor == 0.0:
            continue
        each = problem.record_gradients(client, theta[None])[0]
        share = np.full((1, int(n)), 1.0 / n)
        moment, second = batch_moments(share, (each - each.mean(axis=0))[None], batches.size)
        sixth, variance = max(sixth, float(moment[0])), max(variance, factor * float(second[0]))
        slope2 = max(slope2, float(lipschitz2(found.drift, *found.moments, batches.size)[0]))
    return {
        "mu": max(mu, 0.0),
        "L": smooth + problem.l2,
        "L_record": record + problem.l2,
        "Q": float(third.max()),
        "G": float(fourth.max()),
        "zeta1": float(np.sqrt(w @ np.square(gradients).sum(axis=1))),
        "zeta2": float(np.sqrt(w @ np.abs(np.linalg.eigvalsh(spread)).max(axis=1) ** 2)),
        "sigma_star2": 2.0 * sixth,
        "beta": 2.0 * slope2,
        "noise_at_optimum": sixth,
        "noise_variance_at_optimum": variance,
        "noise_lipschitz2": slope2,
        "mu_at_optimum": mu,
        "L_at_optimum": largest,
    }


def _curvatures(problem: TwiceByRecord, client: int, theta: Array) -> Curvatures:
    """Of A_i = ∇²ℓ_i(θ) without penalty, by ‖A u‖^p ≤ ‖A‖^{p−2} uᵀA²u for ‖u‖ = 1."""
    d, n = problem.dim, int(problem.sizes[client])
    mean, sums, largest = np.zeros((d, d)), np.zeros((3, d, d)), 0.0
    for chunk in problem.record_hessians(client, theta):
        A = chunk - problem.l2 * np.eye(d)
        norms = np.abs(np.linalg.eigvalsh(A)).max(axis=1)
        largest = max(largest, float(norms.max()))
        mean += A.sum(axis=0) / n
        squares = A @ A
        for k in range(3):
            sums[k] += np.tensordot(norms ** (2 * k) / n, squares, axes=1)
    drift = np.abs(np.linalg.eigvalsh(mean)).max(keepdims=True)
    b2, b4, b6 = np.asarray(np.linalg.eigvalsh(sums)[:, -1:], dtype=np.float64)
    return Curvatures(drift, (b2, b4, b6), largest)
