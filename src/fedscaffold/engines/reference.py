"""The reference engine: plain NumPy loops. It defines what is right; fast engines are tested against it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from fedscaffold.core.batches import Batches
from fedscaffold.core.draws import check_drawable, drawn_batches
from fedscaffold.core.stream import Stream, batch
from fedscaffold.core.types import Array, Averaged, ByChance, LocalSgd, Problem, Whole


@dataclass(frozen=True)
class Reference:
    """θ_c ← θ_c − γ(g_c(θ_c) + ξ_c), one step after another, one client after another."""

    name = "reference"

    @contextmanager
    def open(self, problem: Problem, batches: Batches, *, seed: int, first_client: int = 0) -> Iterator[LocalSgd]:
        """Nothing to make ready."""
        if isinstance(problem, ByChance):
            check_drawable(batches)
        if batches.size is None and isinstance(problem, Averaged):
            problem = problem.mean_field()

        def local_sgd(
            theta: Array, correction: Array, *, step_size: float, local_steps: int | Whole, round: int,
            clients: Whole | None = None, first_step: int = 0,
        ) -> Array:  # fmt: skip
            everyone = np.arange(problem.n_clients)[None, :]
            chosen = np.atleast_2d(everyone if clients is None else clients)
            chosen = np.broadcast_to(chosen, (theta.shape[0], chosen.shape[1]))
            steps = np.broadcast_to(local_steps, chosen.shape)
            local = np.repeat(theta[:, None, :], chosen.shape[1], axis=1)
            xi = np.broadcast_to(correction, local.shape)
            for r, k in np.ndindex(chosen.shape):
                c = int(chosen[r, k])
                stream = Stream(seed, repetition=r, round=round, client=first_client + c)
                for rows in _rows(problem, c, stream, range(first_step, first_step + int(steps[r, k])), batches):
                    gradient = problem.batch_gradient(c, local[r, k], rows)
                    local[r, k] -= step_size * (gradient + xi[r, k])
            return local

        yield local_sgd


def _rows(problem: Problem, c: int, stream: Stream, steps: range, batches: Batches) -> Iterator[Whole]:
    """Which of client c's records each step uses."""
    if isinstance(problem, ByChance):
        part = slice(int(problem.offsets[c]), int(problem.offsets[c + 1]))
        yield from drawn_batches(problem.draws, stream, steps, batches, part)
    else:
        for h in steps:
            yield batch(stream, h, batches, int(problem.sizes[c]))
