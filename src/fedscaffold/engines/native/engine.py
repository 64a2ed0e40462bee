"""The default engine: local steps in a compiled library, blocks of clients on all cores."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from fedscaffold.core.checks import choice, set_fields, whole_number
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.machine import grouped, let_go, read_ahead
from fedscaffold.core.privacy import RecordLevel
from fedscaffold.core.protocols import LocalSgd, Streamed
from fedscaffold.core.random.stream import Batches
from fedscaffold.core.types import Array, IntArray
from fedscaffold.engines.clippable import reject_anchor
from fedscaffold.engines.native import library
from fedscaffold.engines.native.library import address
from fedscaffold.engines.native.records import LINEAR_SYSTEM, LOSSES, SOFTMAX, NativeRecords

Dtype = Literal["float64", "float32"]

NUMBERS_WORTH_A_THREAD = 200_000  # read and multiplied: about 50 µs, what a helper needs to join
NUMBERS_PER_CALL = 100_000_000  # about 50 ms on one core, after which Ctrl-C is heard
BYTES_PER_CALL = 1 << 24  # of records in files: read while the clients before them are at work


@dataclass(frozen=True, kw_only=True)
class Native:
    """Local steps in a compiled library; the same bits for any number of threads and any vector width.

    Parameters
    ----------
    threads
        Number of threads; None for all cores that this process may use.
    dtype
        Precision of the local steps, "float64" or "float32". The server's sums are always float64.

    Examples
    --------
    >>> from fedscaffold.engines import Native
    >>> from fedscaffold.problems import RidgeStream
    >>> engine = Native(threads=2, dtype="float32")
    >>> engine.name
    'native-float32'
    >>> engine.supports(RidgeStream(n_clients=2, dim=3))
    True
    """

    threads: int | None = None
    dtype: Dtype = "float64"

    def __post_init__(self) -> None:
        if self.threads is not None:
            set_fields(self, threads=whole_number("threads", self.threads, least=1, most=4096))
        choice("dtype", self.dtype, get_args(Dtype))

    @property
    def name(self) -> str:
        """Name in provenance and checkpoints, with the precision; threads do not change the numbers."""
        return f"native-{self.dtype}"

    def supports(self, problem: Any, *, anchored: bool = False) -> bool:
        """Return whether the library knows the problem's loss, also with gradients at an anchor if asked."""
        return problem.kind in LOSSES and not (anchored and _takes_no_anchor(problem))

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
        """Convert the problem's records and yield the function that does the local steps."""
        library.load()
        read = NativeRecords(problem, batches, self.dtype, seed=seed, privacy=privacy)
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        threads, dim = self.threads or cores, problem.dim
        everyone = np.arange(problem.n_clients, dtype=np.int64)[None, :]

        def local_sgd(
            theta: Array, correction: Array, *, step_size: float, local_steps: int | IntArray, round: int,
            clients: IntArray | None = None, first_step: int = 0, pull: float = 0.0, anchor: Array | None = None,
        ) -> Array:  # fmt: skip
            reject_anchor(privacy, anchor)
            begun = theta if theta.ndim == 3 else theta[:, None, :]
            if pull:  # the kernel adds λθ_c
                correction = correction - pull * begun
            begun, correction = (np.ascontiguousarray(a, dtype=np.float64) for a in (begun, correction))
            at = None if anchor is None else np.ascontiguousarray(anchor, dtype=np.float64)
            steps = np.ascontiguousarray(np.array(local_steps, dtype=np.int64, ndmin=2, copy=None))
            chosen = everyone
            if clients is not None:
                chosen = np.ascontiguousarray(clients, dtype=np.int64)
                if chosen.size and (chosen.min() < 0 or chosen.max() >= problem.n_clients):
                    raise InvalidInput(f"clients must be between 0 and {problem.n_clients - 1}")
            shape = (theta.shape[0], chosen.shape[1])
            if at is not None and _takes_no_anchor(problem):
                raise InvalidInput(
                    f"the native engine subtracts no gradients at an anchor from those of {problem.kind!r}; "
                    "use engine='reference'"
                )
            if at is not None and at.shape != (shape[0], dim):
                raise InvalidInput(f"the anchor has shape {at.shape}; {(shape[0], dim)} is needed")
            mean_steps = steps.item() if steps.size == 1 else steps.mean()
            if (steps.size > 1 and steps.min() < 0) or mean_steps < 0:
                raise InvalidInput("numbers of local steps must not be negative")
            out = np.empty((*shape, dim))
            job = library.Job.from_buffer_copy(read.job)
            job.repetitions, job.count = shape
            job.theta, (job.theta_repetition, job.theta_client) = address(begun), _strides(begun, shape, dim)
            job.correction = address(correction)
            job.correction_repetition, job.correction_client = _strides(correction, shape, dim)
            job.steps, (job.steps_repetition, job.steps_client) = address(steps), _strides(steps, shape, 1)
            job.clients, (job.clients_repetition, _) = address(chosen), _strides(chosen, shape, 1)
            job.anchor, job.out, job.step_size, job.pull = address(at), address(out), step_size, pull
            job.first_step, job.seed, job.round, job.first_client = first_step, seed, round, first_client
            per_client = shape[0] * read.numbers_per_step * mean_steps
            for first, last in _calls(read, chosen, int(per_client * shape[1]), threads):
                useful = max(1, min(threads, int(per_client * (last - first)) // NUMBERS_WORTH_A_THREAD))
                library.run_clients(job, first, last, threads=useful)
            return out

        yield local_sgd


def _takes_no_anchor(problem: Any) -> bool:
    """Return whether the kernel subtracts no gradients at an anchor for this problem."""
    return LOSSES[problem.kind] in (SOFTMAX, LINEAR_SYSTEM) or isinstance(problem, Streamed)


def _strides(array: Array | IntArray, shape: tuple[int, int], dim: int) -> tuple[int, int]:
    """Return how many numbers repetitions and clients are apart, 0 for one row that serves all.

    Raises
    ------
    InvalidInput
        If an array is neither of `shape` nor of one row for all repetitions or clients, with dim numbers each.
    """
    rows, columns = array.shape[:2]
    if (rows not in (1, shape[0]) or columns not in (1, shape[1])) or array.size != rows * columns * dim:
        raise InvalidInput(f"an argument of the local steps has shape {array.shape}; {(*shape, dim)} is needed")
    return (0 if rows == 1 else columns * dim), (0 if columns == 1 else dim)


def _calls(read: NativeRecords, clients: IntArray, work: int, threads: int) -> Iterator[tuple[int, int]]:
    """Yield the clients of each call of the library: all at once, if that is not long.

    Records in files are read while the clients before them are at work, and let go afterwards.
    """
    count, offsets = clients.shape[1], read.offsets
    if not read.tables or offsets is None:
        calls = min(count, max(1, work // (NUMBERS_PER_CALL * threads)))
        for k in range(calls):
            yield count * k // calls, count * (k + 1) // calls
        return
    width = sum(table.strides[0] for table in read.tables)
    sizes = (offsets[clients + 1] - offsets[clients]).sum(axis=0) * width
    groups = grouped(sizes, BYTES_PER_CALL)

    def advise(how: Any, group: tuple[int, int]) -> None:
        for client in np.unique(clients[:, slice(*group)]).tolist():
            for table in read.tables:
                how(table, int(offsets[client]), int(offsets[client + 1]))

    advise(read_ahead, groups[0])
    for k, group in enumerate(groups):
        if k + 1 < len(groups):
            advise(read_ahead, groups[k + 1])
        yield group
        advise(let_go, group)
