"""Means of logistic functions of Gaussian margins, by the trapezoidal rule.

The rule's error falls exponentially in its number of points for functions analytic in a strip around the real
axis, which σ(√v z) is, with poles at ± iπ/√v (Trefethen & Weideman, SIAM Review 56, 2014). With p = σ(z) and
q = 1 − p: σ' = pq, σ'' = pq(q − p), σ''' = pq(1 − 6pq), σ⁽⁵⁾ = pq(1 − 30pq + 120p²q²), and T = σ − ½.
"""

import math
from typing import NamedTuple

import numpy as np

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array
from fedscaffold.problems.special import expit

NUMBERS_AT_ONCE = 1 << 18
SHARP, ROUGH = 40.0, 23.0  # −log of the error that is aimed at: in one dimension, and in two
WIDEST = 0.65  # step, for small v
MOST_POINTS = 1_000_000
LARGEST_SOFT = 1e8  # variance


class Margin(NamedTuple):
    """Means over z ~ N(0, v)."""

    first: Array  # E σ'(z)
    third: Array  # E σ'''(z)
    fifth: Array  # E σ⁽⁵⁾(z)


class Pair(NamedTuple):
    """Means over two margins s and t that are jointly Gaussian."""

    both: Array  # E T(s)T(t)
    second_s: Array  # E σ''(s)T(t)
    firsts: Array  # E σ'(s)σ'(t)
    second_t: Array  # E T(s)σ''(t)


def half_rule(largest: float, aim: float) -> tuple[Array, Array]:
    """Points z ≥ 0 and weights for means of even functions of √v z over z ~ N(0, 1), v up to `largest`."""
    pole = math.pi / math.sqrt(max(largest, 1e-6))  # where exp(−z²/2) is as large as exp(pole²/2)
    step = min(WIDEST, 2.0 * math.pi * pole / (aim + 0.5 * pole**2))
    if not step * MOST_POINTS > math.sqrt(1.5 * aim):
        raise InvalidInput(
            f"clients' margins have a standard deviation of {math.sqrt(largest):.3g}, too large for means of "
            "logistic functions; take a smaller signal, heterogeneity, spectrum or model"
        )
    z: Array = step * np.arange(math.ceil(math.sqrt(1.5 * aim) / step) + 1.0)
    weights = np.exp(-0.5 * z**2)
    weights[1:] *= 2.0
    return z, weights / weights.sum()


def margin(v: Array) -> Margin:
    """E σ', E σ''' and E σ⁽⁵⁾ of z ~ N(0, v), in the shape of v."""
    first, third, fifth = np.empty((3, v.size))
    z, weights = half_rule(float(v.max(initial=0.0)), SHARP)
    flat = np.sqrt(v.reshape(-1))
    at_once = max(1, NUMBERS_AT_ONCE // z.size)
    for begin in range(0, flat.size, at_once):
        part = slice(begin, begin + at_once)
        p = expit(flat[part, None] * z)
        slope = p * (1.0 - p)
        first[part] = slope @ weights
        third[part] = (slope * (1.0 - 6.0 * slope)) @ weights
        fifth[part] = (slope * (1.0 + slope * (120.0 * slope - 30.0))) @ weights
    return Margin(first.reshape(v.shape), third.reshape(v.shape), fifth.reshape(v.shape))


def mean_softplus(v: Array) -> Array:
    """E log(1 + exp z), z ~ N(0, v), for v of one axis."""
    # beyond LARGEST_SOFT the function is |z| but for its kink, which this rule gets right to 1e-8 of the mean
    z, weights = half_rule(min(float(v.max(initial=0.0)), LARGEST_SOFT), SHARP)
    points = np.sqrt(v)[:, None] * z
    return (np.logaddexp(0.0, points) - 0.5 * points) @ weights


def pair(a: Array, r: Array, x: Array) -> Pair:
    """Means over s and t of standard deviations a and r and of correlation x, all of one shape."""
    shape = a.shape
    a, r, x = (np.reshape(each, -1) for each in (a, r, x))
    found = np.empty((4, a.size))
    z, weights = half_rule(float(max(a.max(initial=0.0), r.max(initial=0.0))) ** 2, ROUGH)
    other = np.concatenate([-z[:0:-1], z])
    around = np.concatenate([weights[:0:-1], 2.0 * weights[:1], weights[1:]])
    around /= around.sum()
    at_once = max(1, NUMBERS_AT_ONCE // (z.size * other.size))
    for begin in range(0, a.size, at_once):
        part = slice(begin, begin + at_once)
        p = expit(a[part, None] * z)
        along = (r * x)[part, None, None] * z[:, None]
        across = (r * np.sqrt(np.maximum(1.0 - x**2, 0.0)))[part, None, None] * other
        q = expit(along + across)
        slope_p, slope_q = p * (1.0 - p), q * (1.0 - q)
        q = q - 0.5
        mean_q, mean_slope, mean_second = q @ around, slope_q @ around, (-2.0 * q * slope_q) @ around
        p = p - 0.5
        for k, product in enumerate(
            (p * mean_q, -2.0 * p * slope_p * mean_q, slope_p * mean_slope, p * mean_second)
        ):
            found[k, part] = product @ weights
    return Pair(*(values.reshape(shape) for values in found))
