"""Averages over clouds of local models where every record's gradient is clipped and steps get noise.

A record's gradient ℓ' x is clipped to norm C by bounding ℓ' to ±C/‖x‖. So the clipped problem is a generalised
linear one too, whose loss goes on linearly where ℓ' reaches its bound.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy.special import ndtr, roots_legendre

from fedscaffold.core.capabilities import GeneralisedLinear, InvertibleSlope
from fedscaffold.core.types import Array, IntArray
from fedscaffold.theory.client_blocks import ClientBlock
from fedscaffold.theory.prediction.clouds.averages import Averages
from fedscaffold.theory.prediction.clouds.margins import MarginAverages, gauss_points, slopes_of_many
from fedscaffold.theory.supported import is_quadratic

WIDE = 0.5  # spread of a margin above which smooth slopes take the rule of divided ranges too
# points between kinks, up to a spread
LEGENDRE_POINTS = ((0.5, 20), (1.0, 24), (2.0, 36), (4.0, 60), (8.0, 104), (16.0, 200), (np.inf, 400))
HALVINGS = 40  # to find a kink
REACH = 6.0  # standard deviations to both sides of a margin's mean beyond which nothing counts
AT_ONCE = 16_384  # values of ℓ', which stay in a cache


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


@dataclass(frozen=True, eq=False)
class KinkedAverages(MarginAverages):
    """Averages of losses whose slope is bounded, and so has kinks where it reaches its bounds.

    In closed form for quadratic losses. For others ℓ' is monotone in the margin, so that its values at the ends of
    a margin's range say where that range lies: at a bound, where the slope is constant; between bounds, where it
    is smooth and few points are enough while the range is narrow; or across a kink, where the range is divided.
    """

    problem: ClippedSlopes  # type: ignore[assignment]

    def _over_margins(self, z: Array, spread: Array, y: Array) -> tuple[Array, Array, Array]:
        loss, bounds = self.problem.problem, np.broadcast_to(self.problem.bounds, z.shape)
        if is_quadratic(loss):
            return _bounded_normal(loss.d1(z, y), loss.d2(z, y) * spread, loss.d2(z, y), bounds)
        slopes = slopes_of_many(loss)
        lowest, highest = slopes(z - REACH * spread, y), slopes(z + REACH * spread, y)
        inside = (lowest > -bounds) & (highest < bounds)
        own = np.clip(lowest, -bounds, bounds)
        square, slope = np.square(own), np.zeros_like(own)
        y = np.broadcast_to(y, z.shape)
        smooth = np.nonzero(inside & (spread <= WIDE))
        if smooth[0].size:
            points, weights = gauss_points(4.0 * float(spread[smooth].max()))
            rule = np.stack([weights, weights * points])
            for some in _in_turns(smooth, points.size):
                values = slopes(z[some] + points[:, None] * spread[some], y[some])
                own[some], slope[some] = rule @ values
                square[some] = weights @ np.square(values, out=values)
            slope[smooth] /= spread[smooth]
        reached = (highest > -bounds) & (lowest < bounds)
        divided = np.nonzero(reached & ~(inside & (spread <= WIDE)))
        narrower, spreads = 0.0, spread[divided]
        for limit, count in LEGENDRE_POINTS:
            if narrower >= float(spreads.max(initial=0.0)):
                break
            part = tuple(axis[(spreads > narrower) & (spreads <= limit)] for axis in divided)
            for some in _in_turns(part, count):
                found = _divided(loss, z[some], spread[some], y[some], bounds[some], count)
                own[some], square[some], slope[some] = found
            narrower = limit
        return own, square, slope


def _in_turns(part: tuple[IntArray, ...], points: int) -> Iterator[tuple[IntArray, ...]]:
    """The places of some entries, as many at a time as fit in a cache with so many points each."""
    at_once = max(1, AT_ONCE // points)
    for begin in range(0, part[0].size, at_once):
        yield tuple(axis[begin : begin + at_once] for axis in part)


def _divided(
    loss: GeneralisedLinear, z: Array, spread: Array, y: Array, bounds: Array, count: int
) -> tuple[Array, Array, Array]:
    """Means of v, v² and of the slope, for v = ℓ' at margins z + spread · u, cut off at ±bounds; u is normal.

    Between the kinks by Gauss and Legendre's rule. Only the difference of v from one of the bounds, v₀, is
    integrated: it is small where the spread is, so that the mean slope E[u (v − v₀)]/spread keeps its digits.
    """
    low, high = (_crossing(loss, z, spread, y, level) for level in (-bounds, bounds))
    anchor = np.where(high < REACH, bounds, -bounds)
    places, weights = _gauss_legendre(count)
    u = low + (high - low) * places[:, None]
    density = np.exp(-0.5 * np.square(u)) * (weights[:, None] * (high - low) / math.sqrt(2.0 * math.pi))
    v = np.clip(slopes_of_many(loss)(z + u * spread, y), -bounds, bounds)
    away = np.where(low > -REACH, -bounds - anchor, 0.0)  # from the anchor to the lower bound
    density_low = np.exp(-0.5 * np.square(low)) / math.sqrt(2.0 * math.pi)
    own = anchor + away * ndtr(low) + ((v - anchor) * density).sum(axis=0)
    square = np.square(bounds) + ((np.square(v) - np.square(bounds)) * density).sum(axis=0)
    turned = ((v - anchor) * u * density).sum(axis=0) - away * density_low
    return own, square, turned / spread


def _crossing(loss: GeneralisedLinear, z: Array, spread: Array, y: Array, level: Array) -> Array:
    """The u at which ℓ' at z + spread · u reaches a level; ±REACH where it does so further out or never."""
    if isinstance(loss, InvertibleSlope):
        return np.clip((loss.margin_of_slope(level, y) - z) / spread, -REACH, REACH)
    low, high = np.full_like(z, -REACH), np.full_like(z, REACH)
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        under = loss.d1(z + middle * spread, y) < level
        low, high = np.where(under, middle, low), np.where(under, high, middle)
    return np.where(high < REACH, low, REACH)


@cache
def _gauss_legendre(count: int) -> tuple[Array, Array]:
    """Points and weights for integrals over 0 to 1."""
    points, weights = roots_legendre(count)
    return 0.5 * (points + 1.0), 0.5 * weights


def _bounded_normal(mean: Array, deviation: Array, slope: Array, bounds: Array) -> tuple[Array, Array, Array]:
    """Means of v, v² and of the slope, for a normal number that is cut off at ±bounds; v is linear in between."""
    low, high = (-bounds - mean) / deviation, (bounds - mean) / deviation
    below, above = ndtr(low), ndtr(-high)
    inside = np.maximum(1.0 - below - above, 0.0)
    at_low, at_high = (np.exp(-0.5 * np.square(end)) / math.sqrt(2.0 * math.pi) for end in (low, high))
    step = deviation * (at_low - at_high)
    own = bounds * (above - below) + mean * inside + step
    square = np.square(bounds) * (above + below) + (np.square(mean) + np.square(deviation)) * inside
    square += 2.0 * mean * step + np.square(deviation) * (low * at_low - high * at_high)
    return own, square, slope * inside


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
        return self._of(block, axis=2).gradients(block, points)  # of margins (k, n, m)

    def noise_at(self, block: ClientBlock, points: Array, factors: Array) -> Array:
        """C_c at points (k, m, d), shape (k, m, d, d)."""
        return self._of(block, axis=1).noise_at(block, points, factors) + self._added(block)[:, None]

    def clipped_share(self, block: ClientBlock, theta: Array) -> Array:
        """Share of each client's records that are clipped at θ, (k,)."""
        own = np.abs(self.problem.d1(block.x @ theta, block.y)) >= self._bounds(block)
        return (own * block.share).sum(axis=1)

    def _bounds(self, block: ClientBlock) -> Array:
        return self.clip / np.maximum(block.norms, 1e-300)

    def _of(self, block: ClientBlock, axis: int | None = None) -> MarginAverages:
        bounds = self._bounds(block)
        bounds = bounds if axis is None else np.expand_dims(bounds, axis)
        return KinkedAverages(ClippedSlopes(self.problem, bounds), quadratic=False)

    def _added(self, block: ClientBlock) -> Array:
        return self.variances[block.clients][:, None, None] * np.eye(self.problem.dim)
