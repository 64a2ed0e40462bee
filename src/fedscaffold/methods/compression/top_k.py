"""The largest coordinates, a compressor with bias, for methods that feed its error back."""

from dataclasses import dataclass
from math import ceil, log2

import numpy as np

from fedscaffold.core.checks import set_fields
from fedscaffold.core.random.draws import MessageDraws
from fedscaffold.core.types import Array
from fedscaffold.methods.compression.base import BITS, SameLength, checked_share, kept_entries, largest_first


@dataclass(frozen=True)
class TopK(SameLength):
    """C(v) = v on its k largest coordinates, 0 elsewhere; k is `share` of d, rounded up.

    It is biased: ‖C(v) − v‖² ≤ (1 − share)‖v‖². What is left out is not lost where a method compresses the
    difference to what it has sent so far, as `Scallion` does: the error is fed back (Richtárik et al. 2021,
    "EF21").
    """

    share: float

    def __post_init__(self) -> None:
        set_fields(self, share=checked_share(self.share))

    @property
    def text(self) -> str:
        """The compressor as methods name it, "top_k:SHARE"."""
        return f"top_k:{self.share!r}"

    @property
    def variance(self) -> float:
        """0: this compressor has bias, but draws nothing."""
        return 0.0

    def bits(self, dim: int, participants: int) -> float:
        """Return the bits of a message: value and place of each number that is kept."""
        return kept_entries(self.share, dim) * (BITS + ceil(log2(dim)) if dim > 1 else BITS)

    def compress(self, values: Array, draws: MessageDraws) -> Array:
        """Keep the k numbers that are largest in absolute value."""
        return values * largest_first(np.abs(values), kept_entries(self.share, values.shape[-1]))
