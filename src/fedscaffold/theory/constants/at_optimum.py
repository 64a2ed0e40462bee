"""The constants of assumptions A1 to A6 at θ*, for any loss whose records have Hessians."""

from typing import NamedTuple

import numpy as np

from fedscaffold.core.capabilities import HasRecordHessians
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.random.batches import Batches
from fedscaffold.core.threads import one_blas_thread
from fedscaffold.core.types import Array
from fedscaffold.theory.constants.batch_moments import batch_moments, noise_constants, sixth_moment
from fedscaffold.theory.constants.heterogeneity import client_constants

ROUNDING = 1e-9  # of the largest curvature: a negative curvature smaller than this is taken for zero


class RecordCurvatures(NamedTuple):
    """Moments of the Hessians A_i of one client's records, without penalty."""

    drift: Array  # ‖E A‖
    moments: tuple[Array, Array, Array]  # λ_max(E ‖A‖^{p−2} A²) ≥ E‖A u‖^p for p = 2, 4, 6
    largest: float  # max ‖A_i‖


@one_blas_thread
def constants_at_optimum(problem: HasRecordHessians, batches: Batches) -> dict[str, float]:
    """Values of the fields of `theory.Constants` at θ*, by name."""
    theta = problem.optimum()
    clients = client_constants(problem, theta)
    mu = clients["mu_at_optimum"]
    if mu < -ROUNDING * clients["L_at_optimum"]:
        smallest = np.linalg.eigvalsh(problem.client_hessians(theta))[:, 0]
        raise InvalidInput(
            f"client {int(smallest.argmin())}'s loss curves downwards at θ* (eigenvalue {mu:.3g}); the "
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
        slope2 = max(slope2, float(sixth_moment(found.drift, *found.moments, batches.size)[0]))
    return {
        "mu": max(mu, 0.0),
        "L": smooth + problem.l2,
        "L_record": record + problem.l2,
        "Q": float(third.max()),
        "G": float(fourth.max()),
        **clients,
        **noise_constants(sixth, variance, slope2),
    }


def _curvatures(problem: HasRecordHessians, client: int, theta: Array) -> RecordCurvatures:
    """Moments of A_i = ∇²ℓ_i(θ) without penalty, by ‖A u‖^p ≤ ‖A‖^{p−2} uᵀA²u for ‖u‖ = 1."""
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
    return RecordCurvatures(drift, (b2, b4, b6), largest)
