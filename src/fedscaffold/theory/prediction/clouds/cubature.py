"""Averages over a Gaussian cloud of local models by 2d points, for losses that are not functions of margins.

A Gaussian N(mean, cov) is replaced by the 2d points mean ± √d s_j, with s_j the columns of a square root of cov:
the spherical-radial rule of degree three (Arasaratnam & Haykin, IEEE Transactions on Automatic Control 54, 2009).
"""

from dataclasses import dataclass

import numpy as np

from fedscaffold.core.capabilities import HasRecordGradients, PopulationMoments
from fedscaffold.core.types import Array
from fedscaffold.theory.client_blocks import ClientBlock
from fedscaffold.theory.prediction.clouds.averages import Averages

FLOOR = 1e-8  # of 1 + ‖mean‖²/d, added to cov: a step for differences where the cloud is a point


@dataclass(frozen=True, eq=False)
class RecordAverages:
    """Averages of a problem that is known by the gradients of its records.

    The mean Hessian follows from Stein's identity, E ∇²f = E[∇f (θ − mean)ᵀ] cov⁻¹, so that no second derivative
    of the problem is needed.
    """

    problem: HasRecordGradients

    def over_clouds(self, block: ClientBlock, mean: Array, cov: Array, factors: Array) -> Averages:
        """E ∇f_c, E C_c and E ∇²f_c under θ ~ N(mean, cov), for mean (k, m, d) and cov (k, m, d, d)."""
        k, m, d = mean.shape
        gradient, noise, hessian = np.empty((k, m, d)), np.empty((k, m, d, d)), np.empty((k, m, d, d))
        floor = FLOOR * (1.0 + np.square(mean).mean(axis=-1))
        lam, U = np.linalg.eigh(cov + floor[..., None, None] * np.eye(d))
        spread = np.sqrt(d * np.maximum(lam, floor[..., None]))
        for a, client in enumerate(block.clients):
            for q in range(m):
                steps = (U[a, q] * spread[a, q]).T
                points = mean[a, q] + np.concatenate([steps, -steps])
                each = self.problem.record_gradients(int(client), points)
                own = each.mean(axis=1)
                gradient[a, q] = own.mean(axis=0)
                centred = (each - own[:, None]).reshape(-1, d)
                noise[a, q] = factors[a] / len(centred) * (centred.T @ centred)
                slopes = 0.5 * (own[:d] - own[d:]).T / spread[a, q] @ U[a, q].T
                hessian[a, q] = 0.5 * (slopes + slopes.T)
        return Averages(gradient, noise, hessian)

    def gradients(self, block: ClientBlock, points: Array) -> Array:
        """∇f_c at points (k, m, d), shape (k, m, d)."""
        pairs = zip(block.clients, points, strict=True)
        return np.stack([self.problem.record_gradients(int(c), own).mean(axis=1) for c, own in pairs])

    def noise_at(self, block: ClientBlock, points: Array, factors: Array) -> Array:
        """C_c at points (k, m, d), shape (k, m, d, d)."""
        blocks = []
        for client, own, factor in zip(block.clients, points, factors, strict=True):
            each = self.problem.record_gradients(int(client), own)
            each = each - each.mean(axis=1, keepdims=True)
            blocks.append(factor / each.shape[1] * np.swapaxes(each, 1, 2) @ each)
        return np.stack(blocks)


@dataclass(frozen=True, eq=False)
class StreamAverages:
    """Averages of a problem whose clients are distributions; exact for linear regression."""

    problem: PopulationMoments

    def over_clouds(self, block: ClientBlock, mean: Array, cov: Array, factors: Array) -> Averages:
        """E ∇f_c, E C_c and E ∇²f_c under θ ~ N(mean, cov), for mean (k, m, d) and cov (k, m, d, d)."""
        lam, U = np.linalg.eigh(cov)
        steps = np.swapaxes(U * np.sqrt(self.problem.dim * np.maximum(lam, 0.0))[..., None, :], -1, -2)
        points = mean[:, :, None] + np.concatenate([steps, -steps], axis=2)
        gradient, hessian, noise = self.problem.averages(block.clients, points)
        return Averages(gradient, factors[:, None, None, None] * noise, hessian)

    def gradients(self, block: ClientBlock, points: Array) -> Array:
        """∇f_c at points (k, m, d), shape (k, m, d)."""
        gradient, _, _ = self.problem.averages(block.clients, points[:, :, None])
        return gradient

    def noise_at(self, block: ClientBlock, points: Array, factors: Array) -> Array:
        """C_c at points (k, m, d), shape (k, m, d, d)."""
        _, _, noise = self.problem.averages(block.clients, points[:, :, None])
        return factors[:, None, None, None] * noise
