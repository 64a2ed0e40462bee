"""Noise on whole numbers: under a privacy budget sites send whole numbers of a public unit.

A vector of a row (or of a site) is shortened to a norm of at most C and cut down to whole numbers of units
C/2³⁰; that their squares add up to at most 2⁶⁰ is checked in 64-bit arithmetic. Sums of whole numbers are
exact, and noise with the discrete Gaussian law P(k) ∝ exp(−k²/2σ²) is added before anything else happens to
them. So every value has a positive probability whatever the rows are, and no bit of a sum of floats shows which
rows were in it.

Its cost is that of Gaussian noise with the same σ. A Gaussian number rounded to the nearest whole one costs no
more than the Gaussian number, and the logarithm of its probability of k differs from that of the discrete law
by less than (k² + σ²)/8σ⁴. Over d numbers and T releases that adds up to about dT/4σ², below 10⁻⁶ for σ ≥ 2²⁰
and dT ≤ 10⁶, which `noise_for` leaves to spare. Sums of m independent discrete Gaussian numbers have the law of
a single one with the variance mσ² up to a factor of 1 ± 10 m exp(−π²σ²) (Kairouz, Liu & Steinke 2021), which is
below any float here.
"""

import math
import os
from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.privacy import RecordLevel, clipped_rows
from fedscaffold.core.types import Array, IntArray

CLIP = 2**30  # units of the clip: squares of a clipped vector add up to at most 2⁶⁰, in 64 bits
LEAST, MOST = 2**20, 2**50  # of σ: see above; and so that products with 64-bit words cannot overflow
SURE = 1e-9  # a uniform number this far from exp(−x) decides without exact arithmetic; floats are right to 1e-14
AT_ONCE = 2**22  # numbers of rows' gradients that are held in memory at the same time


def noise_units(multiplier: float) -> int:
    """Return σ in units for a noise multiplier, the standard deviation over the clip; rounded up."""
    units = math.ceil(multiplier * CLIP) if math.isfinite(multiplier) else MOST + 1
    if not LEAST <= units <= MOST:
        raise InvalidInput(
            f"the noise must be between 0.001 and 1,000,000 times the clip, got {multiplier:g} times"
        )
    return units


def clipped(vectors: Array, clip: float) -> IntArray:
    """Return vectors along the last axis, shortened to norm `clip`, as whole numbers of units clip / 2³⁰.

    The squares of each vector's whole numbers add up to at most 2⁶⁰; a vector that is not finite counts as 0.
    """
    with np.errstate(over="ignore"):  # a norm beyond the largest float makes a vector 0
        short = clipped_rows(np.asarray(vectors, np.float64), clip) / clip
    whole = np.trunc(short * (CLIP - 1)).astype(np.int64)  # one unit less, for rounding errors of the norm
    return np.where((whole * whole).sum(axis=-1, keepdims=True) <= CLIP**2, whole, 0)


def clipped_sum(problem: Any, theta: Array, rows: IntArray, clip: float) -> IntArray:
    """Return the sum of the clipped gradients of some of a problem's records, without penalty, in units."""
    size, total = max(1, AT_ONCE // problem.dim), np.zeros(problem.dim, np.int64)
    for begin in range(0, rows.size, size):
        total += clipped(problem.gradients_of_rows(theta, rows[begin : begin + size]), clip).sum(axis=0)
    return total


class OnGrid:
    """A problem whose clipped gradients get noise on whole numbers from the operating system.

    Parameters
    ----------
    problem
        A problem with `gradients_of_rows`.
    privacy
        Clip and noise.
    """

    def __init__(self, problem: Any, privacy: RecordLevel) -> None:
        if getattr(problem, "drops", 0):
            raise InvalidInput("a site's private steps take no dropout; train a module without it")
        self.problem, self.noise = problem, noise_units(privacy.noise_multiplier)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.problem, name)

    def clipped_gradient(
        self, client: int, theta: Array, rows: IntArray, clip: float, noise: Array | float = 0.0
    ) -> Array:
        """Return the mean of some records' clipped gradients with noise, plus the penalty's."""
        total = clipped_sum(self.problem, theta, self.problem.offsets[client] + rows, clip)
        noisy = total + discrete_gaussian(self.noise, total.size)
        penalty: Any = getattr(self.problem, "penalty", self.problem.l2)
        return np.asarray(noisy * (clip / CLIP) / rows.size + penalty * theta)


# the exact sampler of Canonne, Kamath & Steinke (2020)


def discrete_gaussian(sigma: int, count: int) -> IntArray:
    """Return whole numbers k with P(k) ∝ exp(−k²/2σ²), from the operating system's generator.

    Every choice compares a uniform number with exp(−x) for a fraction x. Floats decide unless both are close; then
    more random bits and decimal arithmetic do, so that the law is exact.

    Parameters
    ----------
    sigma
        σ, a whole number from 1 to 2⁵⁰.
    count
        How many are drawn.

    Examples
    --------
    >>> from fedscaffold.privacy.grid import discrete_gaussian
    >>> discrete_gaussian(5, 1000).dtype
    dtype('int64')
    """
    t, found, left = sigma + 1, [np.zeros(0, np.int64)], count
    while left > 0:
        u = _below(t, 2 * left + 16)
        u = u[_happens(u / t, lambda k, u=u: Fraction(int(u[k]), t))]
        times, going = np.zeros(u.size, np.int64), np.arange(u.size)
        while going.size:
            going = going[_happens(np.ones(going.size), lambda k: Fraction(1))]
            times[going] += 1
        size, below = u + t * times, _below(2, u.size) == 1  # P(size) ∝ exp(−size/t)
        y = np.where(below, -size, size)[(size > 0) | ~below]  # 0 once, not with both signs
        distance = (np.abs(y) - sigma * (sigma / t)) / sigma
        taken = _happens(0.5 * distance**2, lambda k, y=y: _excess(abs(int(y[k])), sigma, t))
        found.append(y[taken])
        left -= found[-1].size
    return np.concatenate(found)[:count]


def _excess(size: int, sigma: int, t: int) -> Fraction:
    """Return (size − σ²/t)²/2σ²."""
    return Fraction((size * t - sigma**2) ** 2, 2 * (sigma * t) ** 2)


def _below(end: int, count: int) -> IntArray:
    """Return uniform whole numbers from 0 to end − 1."""
    largest, words = 2**64 // end * end - 1, _words(count)
    while (beyond := words > np.uint64(largest)).any():
        words[beyond] = _words(int(beyond.sum()))
    return (words % np.uint64(end)).astype(np.int64)


def _happens(x: Array, exact: Callable[..., Fraction]) -> NDArray[np.bool_]:
    """Return for each number whether an event of probability exp(−x) happens; exact(k) is x[k] as a fraction."""
    words, chances = _words(x.size), np.exp(-x)
    uniform = words * 2.0**-64
    found = uniform < chances
    for k in np.flatnonzero(np.abs(uniform - chances) < SURE).tolist():
        found[k] = _happens_exactly(int(words[k]), 64, exact(k))
    return found


def _happens_exactly(word: int, bits: int, x: Fraction) -> bool:
    """Return whether a uniform number that begins with some bits is below exp(−x), drawing more if needed."""
    while True:
        with localcontext() as context:
            context.prec = bits  # decimal digits, three times as many as the bits need
            chance = (-Decimal(x.numerator) / Decimal(x.denominator)).exp() * 2**bits
            error = Decimal(2) ** -bits  # far above the rounding errors of this many digits
            if word + 1 < chance - error:
                return True
            if word > chance + error:
                return False
        word, bits = (word << 64) + int(_words(1)[0]), bits + 64


def _words(count: int) -> NDArray[np.uint64]:
    return np.frombuffer(os.urandom(8 * count), np.uint64).copy()
