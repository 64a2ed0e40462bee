"""Averages over clouds of local models that are skewed, for generalised linear problems."""

from typing import TYPE_CHECKING

import numpy as np

from fedscaffold.core.capabilities import GeneralisedLinear
from fedscaffold.core.random.batches import Batches
from fedscaffold.core.types import Array
from fedscaffold.theory.client_blocks import ClientBlock
from fedscaffold.theory.prediction.clouds.averages import Averages
from fedscaffold.theory.prediction.clouds.margins import gauss_points
from fedscaffold.theory.prediction.moments.third_order import Tilts

if TYPE_CHECKING:
    from fedscaffold.core.capabilities import SmoothProblem

LARGEST_SKEWNESS = 1.0  # of a margin: beyond it the expansion of its law has no meaning
NARROW = 1e-7  # spread of a margin below which slopes are taken over this distance


class SkewedMargins:
    """Means over margins xᵀθ of given mean, variance and third cumulant, by Edgeworth's expansion of their law."""

    def __init__(self, problem: "SmoothProblem", blocks: list[ClientBlock], batches: Batches) -> None:
        assert isinstance(problem, GeneralisedLinear)
        self.problem = problem
        self.blocks = blocks
        self.skew_factors = np.array([batches.skew_factor(int(n)) for n in problem.sizes])

    def over_clouds(self, mean: Array, cov: Array, skew: Array, factors: Array) -> tuple[Averages, Tilts]:
        """Averages and their slopes for clouds of mean (N, d), covariance (N, d, d) and κ₃ (N, d, d, d)."""
        N, d = mean.shape
        shapes = [(N, d), (N, d, d), (N, d, d), *[(N, d, d, d)] * 4, (N, d, d)]
        out = [np.empty(shape) for shape in shapes]
        for block in self.blocks:
            at = block.clients
            for whole, part in zip(
                out, self.of_block(block, mean[at], cov[at], skew[at], factors[at]), strict=True
            ):
                whole[at] = part
        return Averages(*out[:3]), Tilts(*out[3:])

    def of_block(
        self, block: ClientBlock, mean: Array, cov: Array, skew: Array, factors: Array
    ) -> tuple[Array, ...]:
        """The arrays of `over_clouds` for the clients of a block."""
        problem, x, share = self.problem, block.x, block.share
        k, n, d = x.shape
        z = np.einsum("kni,ki->kn", x, mean)
        variance = np.maximum(np.einsum("kni,kni->kn", x @ cov, x), 0.0)
        pairs = (x[..., :, None] * x[..., None, :]).reshape(k, n, d * d)
        third = np.einsum("kni,kni->kn", pairs @ np.swapaxes(skew.reshape(k, d, d * d), 1, 2), x)
        spread = np.maximum(np.sqrt(variance), NARROW)
        skewness = third / spread**3
        kept = 1.0 / np.maximum(1.0, np.abs(skewness) / LARGEST_SKEWNESS)
        skewness = kept * skewness
        points, weights = gauss_points(float(spread.max()))
        p = points[:, None, None]
        w = weights[:, None, None] * (1.0 + skewness / 6.0 * p * (p * p - 3.0))
        first = problem.d1(z + spread * p, block.y)
        second = problem.d2(z + spread * p, block.y)
        own, plain = (w * first).sum(axis=0), weights[:, None, None]
        curve = (plain * p * second).sum(axis=0) / spread
        bent = 0.5 * skewness * spread * curve  # not by points and weights: three points see no skewness
        slope = (w * second).sum(axis=0) + bent
        square = np.maximum((w * first * first).sum(axis=0), own * own)
        tilt = (w * p * first * first).sum(axis=0) / spread
        cube = (w * first**3).sum(axis=0)
        gradient = np.einsum("kn,kni->ki", share * own, x)
        hessian = self._sum(pairs, share * slope)
        outer = gradient[:, :, None] * gradient[:, None, :]
        second_moment = self._sum(pairs, share * square)
        noise = factors[:, None, None] * (second_moment - outer - hessian @ cov @ hessian)
        T, S, third_moment = (self._cubes(x, pairs, share * value) for value in (curve, tilt, cube))
        trusted = T if kept.min() == 1.0 else self._cubes(x, pairs, share * curve * kept)
        centred = hessian[:, :, :, None] * gradient[:, None, None, :]
        S = factors[:, None, None, None] * (S - centred - np.swapaxes(centred, -1, -2))
        mixed = gradient[:, :, None, None] * second_moment[:, None]
        thrice = mixed + np.swapaxes(mixed, 1, 2) + np.moveaxis(mixed, 1, 3)
        skewed = third_moment - thrice + 2.0 * gradient[:, :, None, None] * outer[:, None]
        skewed = self.skew_factors[block.clients][:, None, None, None] * skewed
        penalty = np.diag(problem.penalty)
        return (
            gradient + problem.penalty * mean,
            noise,
            hessian + penalty,
            T,
            S,
            skewed,
            trusted,
            self._sum(pairs, share * bent),
        )

    @staticmethod
    def _sum(pairs: Array, weight: Array) -> Array:
        k, _, dd = pairs.shape
        d = round(dd**0.5)
        return (weight[:, None] @ pairs).reshape(k, d, d)

    @staticmethod
    def _cubes(x: Array, pairs: Array, weight: Array) -> Array:
        k, _, d = x.shape
        return (np.swapaxes(weight[..., None] * x, 1, 2) @ pairs).reshape(k, d, d, d)
