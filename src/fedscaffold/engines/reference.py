"""The reference engine: plain NumPy loops. It defines what is right; fast engines are tested against it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from fedscaffold.core.protocols import HasBatchGradient, HasMeanField, LocalSgd, NonUniformSampling, Streamed
from fedscaffold.core.random.batches import Batches
from fedscaffold.core.random.draws import check_drawable, drawn_batches
from fedscaffold.core.random.normals import check_streamed
from fedscaffold.core.random.stream import Stream, batch
from fedscaffold.core.types import Array, IntArray


@dataclass(frozen=True)
class Reference:
    """θ_c ← θ_c − γ(g_c(θ_c) + ξ_c) in plain NumPy, one step after another, one client after another.

    It runs every problem that has `batch_gradient` or `drawn_gradient`, and is slow.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> problem = fs.problems.RidgeStream(n_clients=2, dim=3)
    >>> method = fs.FedAvg(step_size=0.1, local_steps=2)
    >>> fs.run(problem, method, rounds=1, batch_size=4, engine=fs.engines.Reference()).theta.shape
    (1, 3)
    """

    name = "reference"

    @contextmanager
    def open(self, problem: Any, batches: Batches, *, seed: int, first_client: int = 0) -> Iterator[LocalSgd]:
        """Check that the batches fit the problem, and yield the function that does the local steps."""
        if isinstance(problem, Streamed):
            check_streamed(batches, problem)
        if isinstance(problem, NonUniformSampling):
            check_drawable(batches)
        if batches.size is None and isinstance(problem, HasMeanField):
            problem = problem.mean_field()

        def local_sgd(
            theta: Array, correction: Array, *, step_size: float, local_steps: int | IntArray, round: int,
            clients: IntArray | None = None, first_step: int = 0,
        ) -> Array:  # fmt: skip
            all_clients = np.arange(problem.n_clients)[None, :]
            chosen = np.atleast_2d(all_clients if clients is None else clients)
            chosen = np.broadcast_to(chosen, (theta.shape[0], chosen.shape[1]))
            steps = np.broadcast_to(local_steps, chosen.shape)
            local = np.repeat(theta[:, None, :], chosen.shape[1], axis=1)
            xi = np.broadcast_to(correction, local.shape)
            for r, k in np.ndindex(chosen.shape):
                c = int(chosen[r, k])
                stream = Stream(seed, repetition=r, round=round, client=first_client + c)
                for gradient in _gradients(
                    problem, c, stream, range(first_step, first_step + int(steps[r, k])), batches
                ):
                    local[r, k] -= step_size * (gradient(local[r, k]) + xi[r, k])
            return local

        yield local_sgd


def _gradients(
    problem: Any, c: int, stream: Stream, steps: range, batches: Batches
) -> Iterator[Callable[[Array], Array]]:
    """Client c's stochastic gradient at each of the steps, as a function of θ."""
    if isinstance(problem, Streamed):
        size = batches.size or 0
        for h in steps:
            yield partial(_drawn_gradient, problem, c, stream, h * size, size)
    else:
        for rows in _rows(problem, c, stream, steps, batches):
            yield partial(_batch_gradient, problem, c, rows)


def _drawn_gradient(problem: Streamed, c: int, stream: Stream, first: int, count: int, theta: Array) -> Array:
    return problem.drawn_gradient(c, theta, stream, first, count)


def _batch_gradient(problem: HasBatchGradient, c: int, rows: IntArray, theta: Array) -> Array:
    return problem.batch_gradient(c, theta, rows)


def _rows(problem: HasBatchGradient, c: int, stream: Stream, steps: range, batches: Batches) -> Iterator[IntArray]:
    """Which of client c's records each step uses."""
    if isinstance(problem, NonUniformSampling):
        part = slice(int(problem.offsets[c]), int(problem.offsets[c + 1]))
        yield from drawn_batches(problem.draws, stream, steps, batches, part)
    else:
        for h in steps:
            yield batch(stream, h, batches, int(problem.sizes[c]))
