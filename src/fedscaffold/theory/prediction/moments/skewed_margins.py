"""Averages over clouds of local models that are skewed, for generalised linear problems."""

from typing import TYPE_CHECKING

import numpy as np

from fedscaffold.core.capabilities import GeneralisedLinear
from fedscaffold.core.random.batches import Batches
from fedscaffold.core.types import Array
from fedscaffold.theory.client_blocks import ClientBlock
from fedscaffold.theory.prediction.clouds.averages import Averages
from fedscaffold.theory.prediction.clouds.margins import groups_of_like_spread
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
        own, square, slope, curve, tilt, cube = self.over_margins(z, spread, skewness, block.y)
        bent = 0.5 * skewness * spread * curve  # not by points and weights: three points see no skewness
        slope += bent
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

    def over_margins(self, z: Array, spread: Array, skewness: Array, y: Array) -> Array:
        """Means over skewed margins of ℓ', its square, ℓ'', the next derivative, the slope of ℓ'² and ℓ' cubed."""
        found = np.empty((6, *z.shape))
        for group, points, weights in groups_of_like_spread(spread):
            width, p = spread[group], points.reshape(-1, *[1] * z[group].ndim)
            plain = weights.reshape(p.shape)
            w = plain * (1.0 + skewness[group] / 6.0 * p * (p * p - 3.0))
            where = z[group] + width * p
            first, second = self.problem.d1(where, y[group]), self.problem.d2(where, y[group])
            weighted = w * first
            own = weighted.sum(axis=0)
            weighted *= first
            square = np.maximum(weighted.sum(axis=0), own * own)
            tilt, cube = (weighted * p).sum(axis=0) / width, (weighted * first).sum(axis=0)
            curve = (plain * p * second).sum(axis=0) / width
            found[(slice(None), *np.index_exp[group])] = own, square, (w * second).sum(axis=0), curve, tilt, cube
        return found

    @staticmethod
    def _sum(pairs: Array, weight: Array) -> Array:
        k, _, dd = pairs.shape
        d = round(dd**0.5)
        return (weight[:, None] @ pairs).reshape(k, d, d)

    @staticmethod
    def _cubes(x: Array, pairs: Array, weight: Array) -> Array:
        k, _, d = x.shape
        return (np.swapaxes(weight[..., None] * x, 1, 2) @ pairs).reshape(k, d, d, d)
