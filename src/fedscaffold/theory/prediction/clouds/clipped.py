"""Averages over clouds of local models where every record's gradient is clipped and steps get noise.

A record's gradient ℓ' x is clipped to norm C by bounding ℓ' to ±C/‖x‖. So the clipped problem is a generalised
linear one too, whose loss goes on linearly where ℓ' reaches its bound.
"""

from dataclasses import dataclass, field, replace

import numpy as np

from fedscaffold.core.types import Array
from fedscaffold.theory.client_blocks import ClientBlock
from fedscaffold.theory.prediction.clouds.averages import Averages
from fedscaffold.theory.prediction.clouds.kinked import ClippedSlopes, KinkedAverages
from fedscaffold.theory.prediction.clouds.margins import MarginAverages

SHORTEST = 1e-100  # norm of a record: of filling, which has none, the square of its bound must be a number too


@dataclass(frozen=True, eq=False)
class ClippedAverages(MarginAverages):
    """Averages of a generalised linear problem whose records are clipped, with noise of given variances."""

    clip: float
    variances: Array  # of every coordinate of the noise, by client, (N,)
    _kept: dict[int, tuple[ClientBlock, KinkedAverages]] = field(
        default_factory=dict, init=False
    )  # with its kinks

    def over_clouds(self, block: ClientBlock, mean: Array, cov: Array, factors: Array) -> Averages:
        """E ∇f_c, E C_c and E ∇²f_c under θ ~ N(mean, cov), for mean (k, m, d) and cov (k, m, d, d)."""
        known, of = self._kept.get(id(block), (None, None))
        if known is not block or of is None:
            of = replace(self._of(block, axis=1), labels=block.y[:, None])
            self._kept[id(block)] = block, of
        found = of.over_clouds(block, mean, cov, factors)
        return found._replace(noise=found.noise + self._added(block)[:, None])

    def at_point(self, block: ClientBlock, theta: Array, factors: Array) -> Averages:
        """∇f_c, C_c and ∇²f_c at one θ, (d,)."""
        found = self._of(block).at_point(block, theta, factors)
        return found._replace(noise=found.noise + self._added(block))

    def gradients(self, block: ClientBlock, points: Array) -> Array:
        """∇f_c at points (k, m, d), shape (k, m, d)."""
        return self._of(block, axis=2).gradients(block, points)  # of margins (k, n, m)

    def noise_at(self, block: ClientBlock, points: Array, factors: Array) -> Array:
        """C_c at points (k, m, d), shape (k, m, d, d)."""
        return self._of(block, axis=1).noise_at(block, points, factors) + self._added(block)[:, None]

    def clipped_share(self, block: ClientBlock, theta: Array) -> Array:
        """Share of each client's records that are clipped at θ, (k,)."""
        own = np.abs(self.problem.d1(block.x @ theta, block.y)) >= self._bounds(block)
        return (own * block.share).sum(axis=1)

    def _bounds(self, block: ClientBlock) -> Array:
        return self.clip / np.maximum(block.norms, SHORTEST)

    def _of(self, block: ClientBlock, axis: int | None = None) -> KinkedAverages:
        bounds = self._bounds(block)
        bounds = bounds if axis is None else np.expand_dims(bounds, axis)
        return KinkedAverages(ClippedSlopes(self.problem, bounds), quadratic=False)

    def _added(self, block: ClientBlock) -> Array:
        return self.variances[block.clients][:, None, None] * np.eye(self.problem.dim)
