"""Gradients, their noise and their slope, averaged over a Gaussian cloud of local models."""

from typing import NamedTuple

import numpy as np

from fedscaffold.core.types import Array
from fedscaffold.theory.inputs import Block, Glm, has_record_gradients, is_streamed
from fedscaffold.theory.prediction import cubature, streams


class Averages(NamedTuple):
    """Means over θ ~ N(mean, cov), for some clients and nodes."""

    gradient: Array  # E ∇f_c(θ), (k, m, d)
    noise: Array  # E C_c(θ), (k, m, d, d)
    hessian: Array  # E ∇²f_c(θ), (k, m, d, d); (k, 1, d, d) where it is constant


def averages(problem: Glm, block: Block, mean: Array, cov: Array, factors: Array) -> Averages:
    """E ∇f_c, E C_c and E ∇²f_c under θ ~ N(mean, cov), for mean (k, m, d) and cov (k, m, d, d).

    E C = v ( E_i[E ℓ'² x xᵀ] − E ∇ E ∇ᵀ − E∇² cov E∇² ), v the batch's noise factor. The margins xᵀθ are
    Gaussian; their averages use three points (exact to the fifth power), and the gradient is linearised in the
    last term. Exact for ridge. Problems that are known by their records' gradients: `theory.cubature`; by their
    clients' distributions: `theory.streams`.
    """
    if is_streamed(problem):
        return Averages(*streams.averages(problem, block.clients, mean, cov, factors))
    if has_record_gradients(problem):
        return Averages(*cubature.averages(problem, block.clients, mean, cov, factors))
    x = block.x[:, None]
    z = np.swapaxes(block.x @ np.swapaxes(mean, 1, 2), 1, 2)
    s = np.sqrt(3.0 * np.maximum(np.einsum("kqij,kij->kqi", x @ cov, block.x), 0.0))
    y, share = block.y[:, None], block.share[:, None]
    low, middle, high = (problem.d1(point, y) for point in (z - s, z, z + s))
    gradient = ((low + 4.0 * middle + high) / 6.0 * share)[:, :, None, :] @ x
    second_moment = outer(x, (low * low + 4.0 * middle * middle + high * high) / 6.0 * share)
    if problem.kind == "ridge":
        hessian = outer(x[:, :1], share)
    else:
        low, middle, high = (problem.d2(point, y) for point in (z - s, z, z + s))
        hessian = outer(x, (low + 4.0 * middle + high) / 6.0 * share)
    centre = np.swapaxes(gradient, -1, -2) @ gradient + hessian @ cov @ hessian
    noise = factors[:, None, None, None] * (second_moment - centre)
    return Averages(gradient[:, :, 0] + problem.penalty * mean, noise, hessian + np.diag(problem.penalty))


def outer(x: Array, weight: Array) -> Array:
    """Σ_i weight_i x_i x_iᵀ for x (k, 1, n, d) and weight (k, m, n)."""
    return np.swapaxes(x, -1, -2) @ (weight[..., None] * x)


def gradients(problem: Glm, block: Block, mean: Array) -> Array:
    """∇f_c at some points, (k, m, d)."""
    if is_streamed(problem):
        return streams.gradients(problem, block.clients, mean)
    if has_record_gradients(problem):
        return cubature.gradients(problem, block.clients, mean)
    z = block.x @ np.swapaxes(mean, 1, 2)
    first = problem.d1(z, block.y[..., None]) * block.share[..., None]
    return np.swapaxes(first, 1, 2) @ block.x + problem.penalty * mean


def noise_at(problem: Glm, block: Block, mean: Array, factors: Array) -> Array:
    """C_c at some points, (k, m, d, d)."""
    if is_streamed(problem):
        return streams.noise_at(problem, block.clients, mean, factors)
    if has_record_gradients(problem):
        return cubature.noise_at(problem, block.clients, mean, factors)
    z = np.swapaxes(block.x @ np.swapaxes(mean, 1, 2), 1, 2)
    first = problem.d1(z, block.y[:, None])
    gradient = (first * block.share[:, None]) @ block.x
    second_moment = outer(block.x[:, None], first * first * block.share[:, None])
    return factors[:, None, None, None] * (second_moment - gradient[..., :, None] * gradient[..., None, :])
