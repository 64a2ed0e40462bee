"""Averages over a cloud of local models for any loss, from the gradients of its records.

A Gaussian N(mean, cov) is replaced by the 2d points mean ± √d s_j, with s_j the columns of a square root of cov:
the spherical-radial rule of degree three (Arasaratnam & Haykin, IEEE Transactions on Automatic Control 54, 2009).
The mean curvature follows from Stein's identity, E ∇²f = E[∇f (θ − mean)ᵀ] cov⁻¹, so that no second derivative is
asked for.
"""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedscaffold.core.types import Array

FLOOR = 1e-8  # of 1 + ‖mean‖²/d, added to cov: a step for differences where the cloud is a point


class ByRecord(Protocol):
    """A problem that tells its records' gradients."""

    n_clients: int
    dim: int

    def record_gradients(self, client: int, points: Array) -> Array:
        """∇ℓ_i(θ), penalty included, of a client's records at some points: (p, d) → (p, n, d)."""


def averages(
    problem: ByRecord, clients: NDArray[np.int64], mean: Array, cov: Array, factors: Array
) -> tuple[Array, Array, Array]:
    """E ∇f_c, E C_c and E ∇²f_c under θ ~ N(mean, cov), for mean (k, m, d) and cov (k, m, d, d)."""
    k, m, d = mean.shape
    gradient, noise, hessian = np.empty((k, m, d)), np.empty((k, m, d, d)), np.empty((k, m, d, d))
    floor = FLOOR * (1.0 + np.square(mean).mean(axis=-1))
    lam, U = np.linalg.eigh(cov + floor[..., None, None] * np.eye(d))
    spread = np.sqrt(d * np.maximum(lam, floor[..., None]))
    for a, client in enumerate(clients):
        for q in range(m):
            steps = (U[a, q] * spread[a, q]).T
            each = problem.record_gradients(int(client), mean[a, q] + np.concatenate([steps, -steps]))
            own = each.mean(axis=1)
            gradient[a, q] = own.mean(axis=0)
            centred = (each - own[:, None]).reshape(-1, d)
            noise[a, q] = factors[a] / len(centred) * (centred.T @ centred)
            slopes = 0.5 * (own[:d] - own[d:]).T / spread[a, q] @ U[a, q].T
            hessian[a, q] = 0.5 * (slopes + slopes.T)
    return gradient, noise, hessian


def gradients(problem: ByRecord, clients: NDArray[np.int64], points: Array) -> Array:
    """∇f_c at some points, (k, m, d)."""
    each = (problem.record_gradients(int(c), own).mean(axis=1) for c, own in zip(clients, points, strict=True))
    return np.stack(list(each))


def noise_at(problem: ByRecord, clients: NDArray[np.int64], points: Array, factors: Array) -> Array:
    """C_c at some points, (k, m, d, d)."""
    blocks = []
    for client, own, factor in zip(clients, points, factors, strict=True):
        each = problem.record_gradients(int(client), own)
        each = each - each.mean(axis=1, keepdims=True)
        blocks.append(factor / each.shape[1] * np.swapaxes(each, 1, 2) @ each)
    return np.stack(blocks)
