"""Averages over a Gaussian cloud of local models for generalised linear problems, from their margins xᵀθ."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from types import EllipsisType

import numpy as np
from numpy.typing import NDArray

from fedscaffold.core.capabilities import GeneralisedLinear, HasFastSlopes
from fedscaffold.core.types import Array, IntArray
from fedscaffold.theory.client_blocks import ClientBlock
from fedscaffold.theory.prediction.clouds.averages import Averages

POINTS = ((0.5, 3), (1.0, 5), (2.0, 9), (4.0, 15), (8.0, 25), (np.inf, 41))  # up to a spread, so many points
WORTH_GROUPING = (
    8192  # values of a loss, of all margins with as many points as the widest: with fewer, as they are
)
NARROW = 1e-6  # spread of a margin below which slopes are taken over this distance
MOST_PACKED = 48  # features: with more, the products of all pairs of features would not fit in a cache


def gauss_points(spread: float) -> tuple[Array, Array]:
    """Points and weights for means over a standard normal number of functions of `spread` times it.

    Losses bend over a distance of about one: the wider the spread, the more points.
    """
    return _gauss_hermite(next(count for limit, count in POINTS if spread <= limit))


def groups_of_like_spread(spread: Array) -> Iterator[tuple[NDArray[np.bool_] | EllipsisType, Array, Array]]:
    """Masks of margins, or ... for all of them, with the points and weights that their spreads ask for.

    One record far out would else have all the others seen at as many points as its own margin needs. Groups have
    more points than `gauss_points` gives them, so that this changes hardly anything.
    """
    points, weights = gauss_points(float(spread.max()))
    if spread.size * points.size <= WORTH_GROUPING or points.size == POINTS[0][1]:
        yield ..., points, weights
        return
    below = -np.inf
    for limit, count in POINTS:
        top = 0.5 * limit if count < points.size else np.inf
        group = (spread > below) & (spread <= top)
        if group.any():
            yield group, *_gauss_hermite(count)
        if np.isinf(top):
            return
        below = top


@cache
def _gauss_hermite(count: int) -> tuple[Array, Array]:
    points, weights = np.polynomial.hermite_e.hermegauss(count)
    return points, weights / weights.sum()


def slopes_of_many(problem: GeneralisedLinear) -> Callable[[Array, Array], Array]:
    """ℓ' of many margins, in a new array."""
    return problem.d1_of_many if _has_fast_slopes(type(problem)) else problem.d1  # type: ignore[attr-defined]


@cache
def _has_fast_slopes(kind: type) -> bool:
    """Whether problems of a type are `HasFastSlopes`; asking them is slow."""
    return issubclass(kind, HasFastSlopes)


@dataclass(frozen=True, eq=False)
class MarginAverages:
    """Averages of a generalised linear problem: under a Gaussian θ its margins xᵀθ are Gaussian too."""

    problem: GeneralisedLinear
    quadratic: bool

    def over_clouds(self, block: ClientBlock, mean: Array, cov: Array, factors: Array) -> Averages:
        """E C = v (E_i[E ℓ'² x xᵀ] − E∇ E∇ᵀ − E∇² cov E∇²), v the batch's noise factor; exact for quadratic ℓ.

        Means over a margin by Gauss and Hermite's rule, its mean slope by Stein's identity E ℓ'' = E[u ℓ']/s for a
        margin z + s u; the gradient is linearised in the last term.
        """
        problem, records = self.problem, record_products(block)
        z = mean @ np.swapaxes(block.x, 1, 2)
        variance = records.quadratic_forms(cov)
        y, share = block.y[:, None], block.share[:, None]
        if self.quadratic:
            own, slope = problem.d1(z, y), problem.d2(z[:, :1], y)
            square = np.square(own) + np.square(slope) * variance  # linear in cov, which need not be a covariance
        else:
            own, square, slope = self._over_margins(z, np.sqrt(np.maximum(variance, NARROW**2)), y)
        gradient = (own * share) @ block.x
        hessian = records.sums(slope * share)
        turned = hessian @ cov @ hessian
        turned += gradient[..., :, None] * gradient[..., None, :]
        noise = factors[:, None, None, None] * (records.sums(square * share) - turned)
        return Averages(gradient + problem.penalty * mean, noise, hessian + np.diag(problem.penalty))

    def _over_margins(self, z: Array, spread: Array, y: Array) -> tuple[Array, Array, Array]:
        """Means of ℓ', ℓ'² and ℓ'' over normal margins around z."""
        own, square, slope = np.zeros_like(z), np.zeros_like(z), np.zeros_like(z)
        labels = np.broadcast_to(y, z.shape)
        for group, points, weights in groups_of_like_spread(spread):
            centre, width, label = z[group], spread[group], labels[group]
            sums = np.zeros((3, *centre.shape))
            for point, weight in zip(points, weights, strict=True):
                value = self.slopes(centre + point * width, label)
                sums[0] += weight * value
                sums[2] += (weight * point) * value
                value *= value
                sums[1] += weight * value
            own[group], square[group], slope[group] = sums
        return own, square, slope / spread

    @cached_property
    def slopes(self) -> Callable[[Array, Array], Array]:
        """ℓ' of many margins, in a new array."""
        return slopes_of_many(self.problem)

    def at_point(self, block: ClientBlock, theta: Array, factors: Array) -> Averages:
        """∇f_c, C_c and ∇²f_c at one θ, (d,)."""
        problem, records = self.problem, RecordProducts(block.x)
        z = block.x @ theta
        first = problem.d1(z, block.y)
        weights = np.stack([first * first, problem.d2(z, block.y)], axis=1) * block.share[:, None]
        gradient = ((first * block.share)[:, None] @ block.x)[:, 0]
        square, hessian = np.moveaxis(records.sums(weights), 1, 0)
        noise = factors[:, None, None] * (square - gradient[:, :, None] * gradient[:, None, :])
        return Averages(gradient + problem.penalty * theta, noise, hessian + np.diag(problem.penalty))

    def gradients(self, block: ClientBlock, points: Array) -> Array:
        """∇f_c at points (k, m, d), shape (k, m, d)."""
        z = block.x @ np.ascontiguousarray(np.swapaxes(points, 1, 2))  # (k, n, m): products of x as it lies
        slopes = self.slopes(z, block.y[..., None])
        slopes *= block.share[..., None]
        return np.swapaxes(np.swapaxes(block.x, 1, 2) @ slopes, 1, 2) + self.problem.penalty * points

    def noise_at(self, block: ClientBlock, points: Array, factors: Array) -> Array:
        """C_c at points (k, m, d), shape (k, m, d, d)."""
        first = self.problem.d1(points @ np.swapaxes(block.x, 1, 2), block.y[:, None])
        gradient = (first * block.share[:, None]) @ block.x
        second_moment = record_products(block).sums(first * first * block.share[:, None])
        return factors[:, None, None, None] * (second_moment - gradient[..., :, None] * gradient[..., None, :])


@dataclass(frozen=True, eq=False)
class RecordProducts:
    """The records x_i of k clients, (k, n, d), for quadratic forms in them and sums of x_i x_iᵀ."""

    x: Array

    def quadratic_forms(self, matrices: Array) -> Array:
        """x_iᵀ M x_i of symmetric M (k, m, d, d), shape (k, m, n)."""
        return np.einsum("kqij,kij->kqi", self.x[:, None] @ matrices, self.x)

    def sums(self, weights: Array) -> Array:
        """Σ_i weight_i x_i x_iᵀ of weights (k, m, n), shape (k, m, d, d)."""
        return np.swapaxes(self.x, 1, 2)[:, None] @ (weights[..., None] * self.x[:, None])


@dataclass(frozen=True, eq=False)
class PackedProducts(RecordProducts):
    """The same from the products of all pairs of features, found once: matrix products of half the size."""

    pairs: Array  # x_a x_b for a ≤ b, (k, d (d + 1)/2, n)

    def quadratic_forms(self, matrices: Array) -> Array:
        """x_iᵀ M x_i of symmetric M (k, m, d, d), shape (k, m, n)."""
        upper, twice, _ = _packing(self.x.shape[2])
        return (matrices.reshape(*matrices.shape[:2], -1)[..., upper] * twice) @ self.pairs

    def sums(self, weights: Array) -> Array:
        """Σ_i weight_i x_i x_iᵀ of weights (k, m, n), shape (k, m, d, d)."""
        _, _, place = _packing(self.x.shape[2])
        packed = self.pairs @ np.ascontiguousarray(np.swapaxes(weights, 1, 2))
        return np.moveaxis(packed[:, place], -1, 1)


def record_products(block: ClientBlock) -> RecordProducts:
    """Products of the records of a block, packed where they are of few features."""
    return RecordProducts(block.x) if block.x.shape[2] > MOST_PACKED else PackedProducts(block.x, block.pairs)


@cache
def _packing(d: int) -> tuple[IntArray, Array, IntArray]:
    """Where the upper triangle is in a flat matrix, how often its entries count, and where entries are packed."""
    row, column = np.triu_indices(d)
    place = np.empty((d, d), dtype=np.int64)
    place[row, column] = place[column, row] = np.arange(row.size)
    return row * d + column, np.where(row == column, 1.0, 2.0), place
