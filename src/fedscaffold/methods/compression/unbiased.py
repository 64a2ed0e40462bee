"""Unbiased compressors: E C(v) = v and E‖C(v) − v‖² ≤ ω‖v‖², with ω their `variance`."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedscaffold.core.checks import set_fields, whole_number
from fedscaffold.core.random.draws import MessageDraws, uniforms
from fedscaffold.core.types import Array
from fedscaffold.methods.compression.base import BITS, SameLength, checked_share, kept_entries, largest_first

BUCKET = 64  # numbers that `Quantised` scales together


@dataclass(frozen=True)
class Identity(SameLength):
    """C(v) = v: nothing is compressed."""

    variance: ClassVar[float] = 0.0
    text: ClassVar[str] = "identity"

    def bits(self, dim: int, participants: int) -> float:
        """Return the bits of a message: 64 for each number."""
        return BITS * dim

    def compress(self, values: Array, draws: MessageDraws) -> Array:
        """Return the values as they are."""
        return values


@dataclass(frozen=True)
class RandomK(SameLength):
    """C(v) = (d/k) v on k coordinates drawn at random, 0 elsewhere; k is `share` of d, rounded up.

    The receiver draws the same coordinates, so that only their values are sent.
    """

    share: float

    def __post_init__(self) -> None:
        set_fields(self, share=checked_share(self.share))

    @property
    def text(self) -> str:
        """The compressor as methods name it, "random_k:SHARE"."""
        return f"random_k:{self.share!r}"

    @property
    def variance(self) -> float:
        """ω = 1/share − 1, at least d/k − 1."""
        return 1.0 / self.share - 1.0

    def bits(self, dim: int, participants: int) -> float:
        """Return the bits of a message: 64 for each number that is kept."""
        return BITS * kept_entries(self.share, dim)

    def compress(self, values: Array, draws: MessageDraws) -> Array:
        """Keep the k coordinates whose random words are smallest, times d/k."""
        dim = values.shape[-1]
        k = kept_entries(self.share, dim)
        return values * largest_first(-draws.own_words(dim).astype(np.float64), k) * (dim / k)


@dataclass(frozen=True)
class Natural(SameLength):
    """Each number becomes a power of two, the next smaller or larger in size, at random without bias.

    Horváth et al. 2022, "Natural Compression for Distributed Deep Learning".
    """

    variance: ClassVar[float] = 1.0 / 8.0
    text: ClassVar[str] = "natural"

    def bits(self, dim: int, participants: int) -> float:
        """Return the bits of a message: a sign and an exponent of eleven bits for each number."""
        return 12.0 * dim

    def compress(self, values: Array, draws: MessageDraws) -> Array:
        """For v = ±m 2ᵉ with 1 ≤ m < 2: ±2ᵉ⁺¹ with probability m − 1, else ±2ᵉ."""
        fraction, exponent = np.frexp(values)
        up = uniforms(draws.own_words(values.shape[-1])) < 2.0 * np.abs(fraction) - 1.0
        return np.ldexp(np.sign(values), exponent - 1 + up)


@dataclass(frozen=True)
class Quantised(SameLength):
    """Each number becomes a multiple of ‖v‖/levels, at random without bias; in buckets of 64 numbers.

    Alistarh et al. 2017, "QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding".
    """

    levels: int

    def __post_init__(self) -> None:
        set_fields(self, levels=whole_number("levels", self.levels, least=1, most=2**31))

    @property
    def text(self) -> str:
        """The compressor as methods name it, "quantised:LEVELS"."""
        return f"quantised:{self.levels}"

    @property
    def variance(self) -> float:
        """ω = min(b/s², √b/s) with b = 64 numbers in a bucket and s levels."""
        return min(BUCKET / self.levels**2, BUCKET**0.5 / self.levels)

    def bits(self, dim: int, participants: int) -> float:
        """Return the bits of a message: a norm for each bucket, and a sign and a level for each number."""
        return BITS * -(-dim // BUCKET) + dim * (1 + self.levels.bit_length())

    def compress(self, values: Array, draws: MessageDraws) -> Array:
        """‖v‖ sign(v_j) ℓ_j/s, with ℓ_j one of the two whole numbers next to s|v_j|/‖v‖, in each bucket."""
        return self._rounded(values, uniforms(draws.own_words(values.shape[-1])))

    def nearest(self, values: Array) -> Array:
        """Return the same with the nearest whole numbers: with bias, and without draws."""
        return self._rounded(values, np.full_like(values, 0.5))

    def _rounded(self, values: Array, added: Array) -> Array:
        """‖v‖ sign(v_j) ⌊s|v_j|/‖v‖ + u_j⌋/s with numbers u_j in (0, 1), in each bucket."""
        found = np.empty_like(values)
        for begin in range(0, values.shape[-1], BUCKET):
            part = slice(begin, begin + BUCKET)
            norm = np.linalg.norm(values[..., part], axis=-1, keepdims=True)
            scaled = self.levels * np.abs(values[..., part]) / np.where(norm > 0.0, norm, 1.0)
            level = np.floor(scaled + added[..., part])
            found[..., part] = norm * np.sign(values[..., part]) * level / self.levels
        return found
