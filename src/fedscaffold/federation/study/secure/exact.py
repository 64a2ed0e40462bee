"""Numbers of any size as words modulo 2⁶⁴ whose sums over sites are exact, and maxima as sums.

A number becomes a whole number of 2⁻ᶠ, cut into limbs of 40 bits, one word each: the limbs of 2²⁰ sites can be
added before a word is full. That takes more words than fixed point, and no range that anybody has to know
beforehand; it is used for the few numbers of preparation, and for losses.

A maximum becomes a sum by steps of a ladder of sizes: in the place of each step that its number reaches a site has
a random word, and 0 in the others. The sum of random words is a random word, so that a sum says that somebody
reaches a step, and not who, or how many.
"""

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array
from fedscaffold.federation.secure_sum.fixed_point import Words
from fedscaffold.federation.study.measure import STEPS_PER_OCTAVE, step_up

LIMB = 40  # bits
LOWEST, HIGHEST = -40, 80  # powers of two between which the ladder is


@dataclass(frozen=True)
class ExactNumber:
    """Numbers as words, rounded to a multiple of 2⁻ᶠ.

    Parameters
    ----------
    limbs
        Number of words.
    fraction_bits
        f.

    Examples
    --------
    >>> from fedscaffold.federation.study.secure.exact import ExactNumber
    >>> number = ExactNumber(limbs=4, fraction_bits=80)
    >>> words = number.encode([1e9, -0.25]) + number.encode([0.25, 0.25])
    >>> [float(value) for value in number.decode(words)]
    [1000000000.25, 0.0]
    """

    limbs: int
    fraction_bits: int

    def encode(self, values: Sequence[float | Fraction]) -> Words:
        """All words of some numbers, shape (limbs · numbers,); refused if one is beyond the range."""
        found = np.empty((len(values), self.limbs), np.uint64)
        most = 1 << (LIMB * self.limbs - 1)
        for k, value in enumerate(values):
            if not math.isfinite(value):
                raise InvalidInput("a number is not finite; nothing was sent")
            whole = round(Fraction(value) * (1 << self.fraction_bits))
            if not -most <= whole < most:
                raise InvalidInput("a number is beyond the range of secure sums; nothing was sent")
            for j in range(self.limbs - 1):
                found[k, j] = whole >> (LIMB * j) & ((1 << LIMB) - 1)
            found[k, -1] = (whole >> (LIMB * (self.limbs - 1))) % (1 << 64)
        return found.reshape(-1)

    def decode(self, words: Words) -> list[Fraction]:
        """The numbers of a sum of such words."""
        found = []
        for row in words.reshape(-1, self.limbs).tolist():
            top = row[-1] - (1 << 64) * (row[-1] >> 63)
            whole = sum(word << (LIMB * j) for j, word in enumerate(row[:-1])) + (top << (LIMB * (self.limbs - 1)))
            found.append(Fraction(whole, 1 << self.fraction_bits))
        return found


SCALAR = ExactNumber(limbs=6, fraction_bits=130)  # up to 10³², to 2⁻¹³⁰
SQUARE = ExactNumber(limbs=9, fraction_bits=220)  # sums of squares of such numbers


def exact_sum(values: Array) -> Fraction:
    """Σ v without any rounding, of finite numbers."""
    mantissas, exponents = np.frexp(values)
    whole = np.ldexp(mantissas, 53).astype(np.int64)
    total = Fraction(0)
    for exponent in np.unique(exponents).tolist():
        here = whole[exponents == exponent]
        high, low = here >> 27, here & ((1 << 27) - 1)  # neither sum overflows below 2³⁶ values
        total += ((int(high.sum()) << 27) + int(low.sum())) * Fraction(2) ** (exponent - 53)
    return total


def exact_sum_of_squares(values: Array) -> Fraction:
    """Σ v² without any rounding, of finite numbers that are neither tiny nor huge.

    Each square is a float64 and what rounding left of it, by Dekker's product.
    """
    scaled = values * 134217729.0  # 2²⁷ + 1
    high = scaled - (scaled - values)
    low = values - high
    squares = values * values
    rest = ((high * high - squares) + 2.0 * high * low) + low * low
    return exact_sum(squares) + exact_sum(rest)


# maxima


def ladder_size() -> int:
    """Number of words of a ladder."""
    return (HIGHEST - LOWEST) * STEPS_PER_OCTAVE + 1


def reached(value: float) -> Words:
    """The ladder as words, a random one at each step up to the number's own; none for 0."""
    words = np.zeros(ladder_size(), np.uint64)
    if value > 0.0:
        place = max(round(STEPS_PER_OCTAVE * (math.log2(step_up(value)) - LOWEST)), 0)
        if place >= words.size:
            raise InvalidInput("a number is beyond the range of secure sums; nothing was sent")
        words[: place + 1] = np.frombuffer(secrets.token_bytes(8 * (place + 1)), np.uint64)
    return words


def highest(words: Words) -> float:
    """The largest of the sites' steps, from the sum of their ladders; 0 if nobody reaches any."""
    places = np.flatnonzero(words)
    if not places.size:
        return 0.0
    return float(2.0 ** ((int(places[-1]) + LOWEST * STEPS_PER_OCTAVE) / STEPS_PER_OCTAVE))
