"""The constants of assumptions A1 to A6 of generalised linear problems on tables; they hold for all θ."""

import numpy as np

from fedscaffold.core.capabilities import GeneralisedLinear
from fedscaffold.core.random.batches import Batches
from fedscaffold.core.types import Array
from fedscaffold.theory.client_blocks import ClientBlock, for_blocks, noise_factors
from fedscaffold.theory.constants.batch_moments import batch_moments, noise_constants, sixth_moment
from fedscaffold.theory.constants.heterogeneity import client_constants


def margin_constants(problem: GeneralisedLinear, batches: Batches) -> dict[str, float]:
    """Values of the fields of `theory.Constants`, by name.

    Every derivative of a record's loss is bounded by that derivative in its margin times a power of ‖x‖.
    """
    factors, batch_size = noise_factors(problem, batches), batches.size
    kappa, (kappa3, kappa4) = problem.curvature, problem.margin_derivative_bounds
    theta = problem.optimum()
    N = problem.n_clients
    record, third, fourth, sixth, variance, slope2 = (np.zeros(N) for _ in range(6))

    def work(block: ClientBlock) -> None:
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
    return {
        "mu": problem.strong_convexity(),
        "L": problem.smoothness(batches),
        "L_record": kappa * float(record.max()) + problem.l2,
        "Q": kappa3 * float(third.max()),
        "G": kappa4 * float(fourth.max()),
        **client_constants(problem, theta),
        **noise_constants(noise, float(variance.max()), slope),
    }


def _largest_eigenvalues(block: ClientBlock, weight: Array) -> Array:
    """λ_max(mean_i weight_i x_i x_iᵀ), shape (k,)."""
    weighted = (block.share * weight)[..., None] * block.x
    eigenvalues = np.linalg.eigvalsh(np.swapaxes(block.x, 1, 2) @ weighted)
    return np.asarray(eigenvalues[:, -1], dtype=np.float64)


def _lipschitz2(block: ClientBlock, squares: Array, kappa: float, B: int) -> Array:
    """ℓ² with E^{1/3}‖ε(θ) − ε(θ')‖⁶ ≤ ℓ²‖θ − θ'‖², an upper bound, shape (k,).

    A record contributes a = b − Eb, b = κ_i x_i x_iᵀu with 0 ≤ κ_i ≤ κ, and E‖b‖^p ≤ κ^p λ_max(E‖x‖^{2p−2} x xᵀ)
    for ‖u‖ = 1.
    """
    drift = kappa * _largest_eigenvalues(block, np.ones_like(squares))
    b2, b4, b6 = (kappa**p * _largest_eigenvalues(block, squares ** (p - 1)) for p in (2, 4, 6))
    return sixth_moment(drift, b2, b4, b6, B)
