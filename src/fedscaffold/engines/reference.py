"""The reference engine: plain NumPy loops. It defines what is right; fast engines are tested against it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from fedscaffold.core.batches import Batches
from fedscaffold.core.stream import Stream, batch
from fedscaffold.core.types import Array, LocalSgd, Problem


@dataclass(frozen=True)
class Reference:
    """θ_c ← θ_c − γ(g_c(θ_c) + ξ_c), one step after another, one client after another."""

    name = "reference"

    @contextmanager
    def open(self, problem: Problem, batches: Batches, *, seed: int) -> Iterator[LocalSgd]:
        """Nothing to make ready."""

        def local_sgd(theta: Array, correction: Array, *, step_size: float, local_steps: int, round: int) -> Array:
            local = np.repeat(theta[:, None, :], problem.n_clients, axis=1)
            xi = np.broadcast_to(correction, local.shape)
            for r, c in np.ndindex(local.shape[:2]):
                stream = Stream(seed, repetition=r, round=round, client=c)
                for h in range(local_steps):
                    rows = batch(stream, h, batches, int(problem.sizes[c]))
                    gradient = problem.batch_gradient(c, local[r, c], rows)
                    local[r, c] -= step_size * (gradient + xi[r, c])
            return local

        yield local_sgd
