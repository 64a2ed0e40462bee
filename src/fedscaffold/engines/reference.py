"""The reference engine: plain NumPy loops. It defines what is right; fast engines are tested against it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedscaffold.core.privacy import RecordLevel
from fedscaffold.core.protocols import HasDropout, HasMeanField, LocalSgd, NonUniformSampling, Streamed
from fedscaffold.core.random.draws import check_drawable, drawn_batches
from fedscaffold.core.random.noise import secret_normals, step_noise
from fedscaffold.core.random.normals import check_streamed
from fedscaffold.core.random.stream import Batches, Stream, batch
from fedscaffold.core.types import Array, IntArray
from fedscaffold.engines.clippable import check_clippable, reject_anchor


@dataclass(frozen=True)
class Reference:
    """θ_c ← θ_c − γ(g_c(θ_c) + ξ_c) in plain NumPy, one step after another, one client after another.

    It runs every problem that has `batch_gradient` or `drawn_gradient`, and is slow.

    Parameters
    ----------
    secret_noise
        Whether the noise of `privacy.RecordLevel` comes from the operating system's generator, so that it protects
        records and the run cannot be repeated, instead of from the run's seed.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> problem = fs.problems.RidgeStream(n_clients=2, dim=3)
    >>> method = fs.FedAvg(step_size=0.1, local_steps=2)
    >>> fs.run(problem, method, rounds=1, batch_size=4, engine=fs.engines.Reference()).theta.shape
    (1, 3)
    """

    secret_noise: bool = False

    name = "reference"

    @contextmanager
    def open(
        self,
        problem: Any,
        batches: Batches,
        *,
        seed: int,
        first_client: int = 0,
        privacy: RecordLevel | None = None,
    ) -> Iterator[LocalSgd]:
        """Check that the batches fit the problem, and yield the function that does the local steps."""
        if privacy is not None:
            check_clippable(problem)
        if isinstance(problem, Streamed):
            check_streamed(batches)
        if isinstance(problem, NonUniformSampling):
            check_drawable(batches)
        if batches.size is None and isinstance(problem, HasMeanField):
            problem = problem.mean_field()
        gradient: Any = problem.drawn_gradient if isinstance(problem, Streamed) else problem.batch_gradient
        noise = _secret_noise if self.secret_noise else step_noise

        def local_sgd(
            theta: Array, correction: Array, *, step_size: float, local_steps: int | IntArray, round: int,
            clients: IntArray | None = None, first_step: int = 0, pull: float = 0.0, anchor: Array | None = None,
        ) -> Array:  # fmt: skip
            reject_anchor(privacy, anchor)
            all_clients = np.arange(problem.n_clients)[None, :]
            chosen = np.atleast_2d(all_clients if clients is None else clients)
            chosen = np.broadcast_to(chosen, (theta.shape[0], chosen.shape[1]))
            steps = np.broadcast_to(local_steps, chosen.shape)
            begun = theta if theta.ndim == 3 else theta[:, None, :]
            local = np.broadcast_to(begun, (*chosen.shape, theta.shape[-1])).copy()
            xi = np.broadcast_to(correction, local.shape)
            for r, k in np.ndindex(chosen.shape):
                c = int(chosen[r, k])
                stream = Stream(seed, repetition=r, round=round, client=first_client + c)
                steps_taken = range(first_step, first_step + int(steps[r, k]))
                draws = _draws(problem, c, stream, steps_taken, batches)
                for h, drawn in zip(steps_taken, draws, strict=True):
                    more = {}
                    if isinstance(problem, HasDropout) and problem.drops:
                        more["uniform"] = problem.dropout(stream, h, drawn[0].size)
                    if privacy is None:
                        slope = gradient(c, local[r, k], *drawn, **more) + xi[r, k]
                    else:
                        blur = privacy.noise / drawn[0].size * noise(stream, h, problem.dim)
                        slope = (
                            problem.clipped_gradient(c, local[r, k], *drawn, privacy.clip, blur, **more) + xi[r, k]
                        )
                    if anchor is not None:
                        slope -= gradient(c, anchor[r], *drawn, **more)
                    if pull:
                        slope += pull * (local[r, k] - begun[r, min(k, begun.shape[1] - 1)])
                    local[r, k] -= step_size * slope
            return local

        yield local_sgd


def _secret_noise(stream: Stream, step: int, dim: int) -> Array:
    return secret_normals(dim)


def _draws(problem: Any, c: int, stream: Stream, steps: range, batches: Batches) -> Iterator[tuple[Any, ...]]:
    """Yield the records of client c's gradient at each of the steps: drawn ones, or which of its table."""
    if isinstance(problem, Streamed):
        size = batches.size or 0
        yield from ((stream, h * size, size) for h in steps)
    elif isinstance(problem, NonUniformSampling):
        part = slice(int(problem.offsets[c]), int(problem.offsets[c + 1]))
        for rows in drawn_batches(problem.draws, stream, steps, batches, part):
            yield (rows,)
    else:
        yield from ((batch(stream, h, batches, int(problem.sizes[c])),) for h in steps)
