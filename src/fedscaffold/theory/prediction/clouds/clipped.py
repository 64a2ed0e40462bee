"""Averages over clouds of local models where every record's gradient is clipped and steps get noise.

A record's gradient ℓ' x is clipped to norm C by bounding ℓ' to ±C/‖x‖. So the clipped problem is a generalised
linear one too, whose loss goes on linearly where ℓ' reaches its bound.
"""

from dataclasses import dataclass

import numpy as np

from fedscaffold.core.capabilities import GeneralisedLinear
from fedscaffold.core.types import Array
from fedscaffold.theory.client_blocks import ClientBlock
from fedscaffold.theory.prediction.clouds.averages import Averages
from fedscaffold.theory.prediction.clouds.margins import MarginAverages, gauss_points


@dataclass(frozen=True, eq=False)
class ClippedSlopes:
    """The slopes of a generalised linear problem, bounded; what `MarginAverages` asks of a problem."""

    problem: GeneralisedLinear
    bounds: Array  # of |ℓ'|, in a shape that goes with the margins

    @property
    def penalty(self) -> Array:
        """The diagonal of the penalty's Hessian, which is not clipped."""
        return self.problem.penalty

    def d1(self, z: Array, y: Array) -> Array:
        """ℓ', but no further from 0 than its bound."""
        return np.clip(self.problem.d1(z, y), -self.bounds, self.bounds)

    def d2(self, z: Array, y: Array) -> Array:
        """ℓ'', and 0 where ℓ' is at its bound."""
        return np.where(np.abs(self.problem.d1(z, y)) < self.bounds, self.problem.d2(z, y), 0.0)


class KinkedAverages(MarginAverages):
    """Averages of losses whose slope has kinks: with the most points, however narrow the cloud."""

    def _over_margins(self, z: Array, spread: Array, y: Array) -> tuple[Array, Array, Array]:
        own, square, slope = np.zeros_like(z), np.zeros_like(z), np.zeros_like(z)
        for point, weight in zip(*gauss_points(np.inf), strict=True):
            value = self.problem.d1(z + point * spread, y)
            own += weight * value
            square += weight * np.square(value)
            slope += (weight * point) * value
        return own, square, slope / spread


@dataclass(frozen=True, eq=False)
class ClippedAverages(MarginAverages):
    """Averages of a generalised linear problem whose records are clipped, with noise of given variances."""

    clip: float
    variances: Array  # of every coordinate of the noise, by client, (N,)

    def over_clouds(self, block: ClientBlock, mean: Array, cov: Array, factors: Array) -> Averages:
        """E ∇f_c, E C_c and E ∇²f_c under θ ~ N(mean, cov), for mean (k, m, d) and cov (k, m, d, d)."""
        found = self._of(block, axis=1).over_clouds(block, mean, cov, factors)
        return found._replace(noise=found.noise + self._added(block)[:, None])

    def at_point(self, block: ClientBlock, theta: Array, factors: Array) -> Averages:
        """∇f_c, C_c and ∇²f_c at one θ, (d,)."""
        found = self._of(block).at_point(block, theta, factors)
        return found._replace(noise=found.noise + self._added(block))

    def gradients(self, block: ClientBlock, points: Array) -> Array:
        """∇f_c at points (k, m, d), shape (k, m, d)."""
        return self._of(block, axis=1).gradients(block, points)

    def noise_at(self, block: ClientBlock, points: Array, factors: Array) -> Array:
        """C_c at points (k, m, d), shape (k, m, d, d)."""
        return self._of(block, axis=1).noise_at(block, points, factors) + self._added(block)[:, None]

    def clipped_share(self, block: ClientBlock, theta: Array) -> Array:
        """Share of each client's records that are clipped at θ, (k,)."""
        own = np.abs(self.problem.d1(block.x @ theta, block.y)) >= self._bounds(block)
        return (own * block.share).sum(axis=1)

    def _bounds(self, block: ClientBlock) -> Array:
        norms = np.linalg.norm(block.x, axis=2)
        return self.clip / np.maximum(norms, 1e-300)

    def _of(self, block: ClientBlock, axis: int | None = None) -> MarginAverages:
        bounds = self._bounds(block)
        bounds = bounds if axis is None else np.expand_dims(bounds, axis)
        return KinkedAverages(ClippedSlopes(self.problem, bounds), quadratic=False)  # type: ignore[arg-type]

    def _added(self, block: ClientBlock) -> Array:
        return self.variances[block.clients][:, None, None] * np.eye(self.problem.dim)
