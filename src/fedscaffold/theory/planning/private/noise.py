"""Noise multipliers for a budget by the number of steps: quickly while a search goes on, and exactly."""

import math

import numpy as np

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.random.batches import Batches
from fedscaffold.core.types import IntArray
from fedscaffold.privacy.accounting import noise_for


class NoiseOfSteps:
    """Noise for the clients' records, of which the client with the fewest needs most."""

    def __init__(self, sizes: IntArray, batches: Batches, delta: float) -> None:
        largest = int(sizes.max())
        if delta >= 1.0 / largest:
            raise InvalidInput(
                f"delta must be below {1.0 / largest:.3g}, one over the {largest:,} records of a client; got "
                f"{delta:g}"
            )
        self.batches = batches
        self.accounting = {
            "delta": delta, "batch_size": batches.size, "records": int(sizes.min()), "sampling": batches.sampling,
        }  # fmt: skip
        self.known: dict[tuple[float, int], float] = {}

    def exact(self, epsilon: float, steps: int) -> float:
        """The least noise multiplier for a budget and a number of steps."""
        return noise_for(epsilon=epsilon, steps=steps, **self.accounting)  # type: ignore[arg-type]

    def about(self, epsilon: float, steps: int) -> float:
        """The same; with batches between those for steps some way apart."""
        if self.batches.size is None:
            return self.exact(epsilon, steps)
        ends = [4 ** math.floor(math.log(steps, 4)), 4 ** math.ceil(math.log(steps, 4))]
        for end in ends:
            if (epsilon, end) not in self.known:
                self.known[epsilon, end] = self.exact(epsilon, end)
        return math.exp(
            float(np.interp(math.log(steps), np.log(ends), [math.log(self.known[epsilon, end]) for end in ends]))
        )
