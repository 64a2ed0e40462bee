"""How a local step picks its records."""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fedscaffold.core.checks import choice, set_fields, whole_number
from fedscaffold.core.errors import InvalidInput

Sampling = Literal["with_replacement", "without_replacement"]
LARGEST_BATCH = 2**31 - 1  # records


@dataclass(frozen=True)
class Batches:
    """How a stochastic gradient picks its records.

    Parameters
    ----------
    size
        B, the number of records in a batch; None for all of a client's records.
    sampling
        "with_replacement" or "without_replacement", within a batch.
    """

    size: int | None = None
    sampling: Sampling = "with_replacement"

    def __post_init__(self) -> None:
        if self.size is not None:
            set_fields(self, size=whole_number("batch_size", self.size, least=1, most=LARGEST_BATCH))
        choice("sampling", self.sampling, get_args(Sampling))

    def check_fits(self, sizes: NDArray[np.int64]) -> None:
        """Raise if a batch without replacement is larger than a client."""
        if self.size is None or self.sampling == "with_replacement" or self.size <= sizes.min():
            return
        client = int(sizes.argmin())
        raise InvalidInput(
            f"batch_size={self.size} without replacement, but client {client} has {sizes[client]} records; "
            "take a smaller batch or sampling='with_replacement'"
        )

    def noise_factor(self, n: int) -> float:
        """Return the variance of a batch mean over that of one record: 1/B, (n−B)/(B(n−1)) without replacement."""
        if self.size is None:
            return 0.0
        if self.sampling == "with_replacement":
            return 1.0 / self.size
        return (n - self.size) / (self.size * max(n - 1, 1))
