"""Averages of slopes that are bounded, over normal margins: rules for ranges with and without a kink."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, roots_legendre

from fedscaffold.core.capabilities import GeneralisedLinear, InvertibleSlope
from fedscaffold.core.types import Array, IntArray
from fedscaffold.theory.prediction.clouds.margins import MarginAverages, gauss_points, slopes_of_many
from fedscaffold.theory.supported import is_quadratic

WIDE = 0.5  # spread of a margin above which smooth slopes take the rule of divided ranges too
CUT_POINTS = ((0.04, 5), (0.125, 7), (0.25, 9))  # of polynomials across kinks, up to a spread
# points between kinks, up to a spread
LEGENDRE_POINTS = ((0.5, 20), (1.0, 24), (2.0, 36), (4.0, 60), (8.0, 104), (16.0, 200), (np.inf, 400))
HALVINGS = 40  # to find a kink
REACH = 6.0  # standard deviations to both sides of a margin's mean beyond which nothing counts
AT_ONCE = 16_384  # values of ℓ', which stay in a cache
MOST = 0.6  # share of margins with smooth slopes: with more of them, the rule for these is cheaper for all


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

    In closed form for quadratic losses. For others ℓ' is monotone in the margin, so that a margin's range lies at
    a bound, where the slope is constant; between bounds, where it is smooth and few points are enough while the
    range is narrow; or across a kink. There a polynomial through few points is cut off at the kink, and wide
    ranges are divided.
    """

    problem: ClippedSlopes  # type: ignore[assignment]
    labels: Array | None = None  # y of every call, where that is known before: kinks are then found once

    def _over_margins(self, z: Array, spread: Array, y: Array) -> tuple[Array, Array, Array]:
        loss, bounds = self.problem.problem, np.broadcast_to(self.problem.bounds, z.shape)
        if is_quadratic(loss):
            return _bounded_normal(loss.d1(z, y), loss.d2(z, y) * spread, loss.d2(z, y), bounds)
        low, high = (end.ravel() for end in self._ends(z, spread, y, bounds))
        shape, z, spread = z.shape, z.ravel(), spread.ravel()
        y, bounds = np.broadcast_to(y, shape).ravel(), bounds.ravel()
        above, below = high <= -REACH, low >= REACH  # at a bound wherever the range reaches
        narrow = (low <= -REACH) & (high >= REACH) & (spread <= WIDE)
        own, square, slope = self._smooth(z, spread, y, narrow)
        np.copyto(own, bounds, where=above)
        np.copyto(own, -bounds, where=below)
        outside = above | below
        np.copyto(square, np.square(bounds), where=outside)
        slope[outside] = 0.0
        kinked = np.flatnonzero(~(outside | narrow))
        narrower, spreads = 0.0, spread[kinked]
        widest = float(spreads.max(initial=0.0))
        for limit, count, rule in _RULES:
            if narrower >= widest:
                break
            for some in _in_turns(kinked[(spreads > narrower) & (spreads <= limit)], count):
                at = (z[some], spread[some], y[some], bounds[some], low[some], high[some])
                own[some], square[some], slope[some] = rule(loss, *at, count)
            narrower = limit
        return own.reshape(shape), square.reshape(shape), slope.reshape(shape)

    def _smooth(self, z: Array, spread: Array, y: Array, where: NDArray[np.bool_]) -> tuple[Array, Array, Array]:
        """Means of ℓ', ℓ'² and ℓ'' for margins at which ℓ' is smooth; of any value at others."""
        slopes, number = slopes_of_many(self.problem.problem), int(np.count_nonzero(where))
        own, square, slope = np.empty_like(z), np.empty_like(z), np.empty_like(z)
        if not number:
            return own, square, slope
        points, weights = gauss_points(4.0 * float(spread.max(where=where, initial=0.0)))
        rule = np.stack([weights, weights * points])
        parts: Iterator[slice | IntArray]
        if number > MOST * z.size:
            size = AT_ONCE // points.size
            parts = (slice(begin, begin + size) for begin in range(0, z.size, size))
        else:
            parts = _in_turns(np.flatnonzero(where), points.size)
        for some in parts:
            values = slopes(z[some] + points[:, None] * spread[some], y[some])
            own[some], slope[some] = rule @ values
            square[some] = weights @ np.square(values, out=values)
        slope /= spread
        return own, square, slope

    def _ends(self, z: Array, spread: Array, y: Array, bounds: Array) -> tuple[Array, Array]:
        """The u at which ℓ' at z + spread · u reaches −bounds and bounds; ±REACH where that is further out."""
        loss = self.problem.problem
        if _is_invertible(type(loss)):
            kinks = self._kinks if self.labels is not None else _kinks(loss, y, self.problem.bounds)
            low, high = (np.clip((kink - z) / spread, -REACH, REACH) for kink in kinks)
            return low, high
        ends = np.full_like(z, -REACH), np.full_like(z, REACH)
        lowest, highest = loss.d1(z - REACH * spread, y), loss.d1(z + REACH * spread, y)
        for end, level in zip(ends, (-bounds, bounds), strict=True):
            end[highest <= level], end[lowest >= level] = REACH, -REACH
            some = np.nonzero((lowest < level) & (highest > level))
            end[some] = _crossing(loss, z[some], spread[some], np.broadcast_to(y, z.shape)[some], level[some])
        return ends

    @cached_property
    def _kinks(self) -> tuple[Array, Array]:
        assert self.labels is not None
        return _kinks(self.problem.problem, self.labels, self.problem.bounds)


@cache
def _is_invertible(kind: type) -> bool:
    """Whether problems of a type say where their slope has a value; asking them is slow."""
    return callable(getattr(kind, "margin_of_slope", None))


def _kinks(loss: GeneralisedLinear, y: Array, bounds: Array) -> tuple[Array, Array]:
    """The margins at which ℓ' reaches −bounds and bounds."""
    assert isinstance(loss, InvertibleSlope)
    return loss.margin_of_slope(-bounds, y), loss.margin_of_slope(bounds, y)


def _in_turns(part: IntArray, points: int) -> Iterator[IntArray]:
    """The places of some entries, as many at a time as fit in a cache with so many points each."""
    at_once = max(1, AT_ONCE // points)
    for begin in range(0, part.size, at_once):
        yield part[begin : begin + at_once]


def _cut(
    loss: GeneralisedLinear, z: Array, spread: Array, y: Array, bounds: Array, low: Array, high: Array, count: int
) -> tuple[Array, Array, Array]:
    """Means of v, v² and of the slope, for v = ℓ' at margins z + spread · u between low and high, else ±bounds.

    Of the polynomials through the values at a few u, with the moments of a normal number that is cut off. Only the
    difference of v from one of the bounds, v₀, is integrated: it is small where the spread is, so that the mean
    slope E[u (v − v₀)]/spread keeps its digits.
    """
    points, coefficients = _lagrange(count)
    anchor = np.where(high < REACH, bounds, -bounds)
    v = slopes_of_many(loss)(z + points[:, None] * spread, y)
    v -= anchor
    moments = np.empty((count + 1, z.size))
    low_term, high_term = (np.exp(-0.5 * np.square(end)) / math.sqrt(2.0 * math.pi) for end in (low, high))
    density_low = low_term.copy()
    probability = ndtr(low)
    moments[0], moments[1] = ndtr(high) - probability, low_term - high_term
    for k in range(2, count + 1):
        low_term *= low
        high_term *= high
        moments[k] = (k - 1) * moments[k - 2] + low_term - high_term
    weights = coefficients @ moments[:-1]
    away = np.where(low > -REACH, -bounds - anchor, 0.0)  # from the anchor to the lower bound
    turned = np.einsum("ji,ji->i", v, coefficients @ moments[1:]) - away * density_low
    own = np.einsum("ji,ji->i", v, weights)
    square = np.square(bounds) + 2.0 * anchor * own + np.einsum("ji,ji,ji->i", v, v, weights)
    return anchor + away * probability + own, square, turned / spread


@cache
def _lagrange(count: int) -> tuple[Array, Array]:
    """Points, and coefficients of polynomials that are 1 at one of them and 0 at the others, (point, power)."""
    points = np.polynomial.hermite_e.hermegauss(count)[0]
    return points, np.asarray(np.linalg.inv(np.vander(points, increasing=True)).T, dtype=np.float64)


def _divided(
    loss: GeneralisedLinear, z: Array, spread: Array, y: Array, bounds: Array, low: Array, high: Array, count: int
) -> tuple[Array, Array, Array]:
    """The same by Gauss and Legendre's rule between the kinks."""
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


_RULES = (
    *((limit, count, _cut) for limit, count in CUT_POINTS),
    *((limit, count, _divided) for limit, count in LEGENDRE_POINTS),
)


def _crossing(loss: GeneralisedLinear, z: Array, spread: Array, y: Array, level: Array) -> Array:
    """The u within REACH at which ℓ' at z + spread · u reaches a level, by halving."""
    low, high = np.full_like(z, -REACH), np.full_like(z, REACH)
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        under = loss.d1(z + middle * spread, y) < level
        low, high = np.where(under, middle, low), np.where(under, high, middle)
    return low


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
