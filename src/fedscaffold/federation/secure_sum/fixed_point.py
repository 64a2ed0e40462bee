"""Numbers as 64-bit integers modulo 2⁶⁴, in which sums are exact and masks are uniform."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedscaffold.core.checks import positive, whole_number
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array

Words = NDArray[np.uint64]
SUM_BITS = 62  # of 64: one for the sign, one to spare


class BeyondRange(InvalidInput):
    """Numbers that are too large for the range of a sum; nothing was sent.

    Examples
    --------
    >>> from fedscaffold.federation.secure_sum import FixedPoint
    >>> FixedPoint(limit=1.0, n_clients=2).encode([3.0])
    Traceback (most recent call last):
    ...
    fedscaffold.federation.secure_sum.fixed_point.BeyondRange: the vector has a number of size 3, and the sum ...
    """


@dataclass(frozen=True, kw_only=True)
class FixedPoint:
    """Numbers x of size at most `limit` as round(2ᶠ x) modulo 2⁶⁴, with f as large as sums over all clients allow.

    Parameters
    ----------
    limit
        Largest size of a number of a single client.
    n_clients
        Number of vectors that a sum may have.

    Examples
    --------
    >>> from fedscaffold.federation.secure_sum import FixedPoint
    >>> numbers = FixedPoint(limit=100.0, n_clients=4)
    >>> numbers.fraction_bits
    53
    >>> words = numbers.encode([1.5, -2.25]) + numbers.encode([0.25, 0.25])
    >>> numbers.decode(words).tolist()
    [1.75, -2.0]
    """

    limit: float
    n_clients: int

    def __post_init__(self) -> None:
        positive("limit", self.limit)
        whole_number("n_clients", self.n_clients, least=1)

    @property
    def fraction_bits(self) -> int:
        """The number f of bits behind the binary point."""
        return SUM_BITS - math.ceil(math.log2(self.limit)) - math.ceil(math.log2(self.n_clients))

    def encode(self, values: ArrayLike) -> Words:
        """Each number as a word; refused if one is not finite or beyond the limit."""
        given: Array = np.asarray(values, dtype=np.float64)
        largest = float(np.abs(given).max(initial=0.0))
        if not largest <= self.limit:
            told = "is not finite" if not math.isfinite(largest) else f"has a number of size {largest:.3g}"
            raise BeyondRange(
                f"the vector {told}, and the sum takes numbers up to {self.limit:.3g}; nothing was sent"
            )
        return np.rint(np.ldexp(given, self.fraction_bits)).astype(np.int64).view(np.uint64)

    def decode(self, words: NDArray[Any]) -> Array:
        """The numbers of words, or of a sum of them."""
        return np.ldexp(words.view(np.int64).astype(np.float64), -self.fraction_bits)
