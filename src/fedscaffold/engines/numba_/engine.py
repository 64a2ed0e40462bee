"""The default engine: compiled loops, blocks of clients on all cores."""

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any, Literal, get_args

import numpy as np

from fedscaffold.core.checks import choice, set_fields, whole_number
from fedscaffold.core.privacy import RecordLevel
from fedscaffold.core.protocols import LinearSystems, LocalSgd, Streamed, TabularRecords
from fedscaffold.core.random.stream import Batches
from fedscaffold.core.types import Array, IntArray
from fedscaffold.engines.clippable import check_clippable, refuse_anchor
from fedscaffold.engines.numba_.losses import STREAM_LOSSES, WITHOUT_ANCHOR, table_loss
from fedscaffold.engines.threads import Helpers

Dtype = Literal["float64", "float32"]

NUMBERS_PER_BLOCK = 20_000_000  # read and multiplied: some milliseconds
NUMBERS_WORTH_A_THREAD = 1_000_000  # a fifth of a millisecond
BLOCKS_PER_THREAD = 4  # so that a thread which wakes up late leaves its share to the others
SECONDS_WORTH_COMPILING = 2.0
MOST_THREADS = 4096
NO_ANCHOR = np.empty((0, 0))


@dataclass(frozen=True, kw_only=True)
class Numba:
    """Compiled local steps, with blocks of clients on threads; the same bits for any number of threads.

    Parameters
    ----------
    threads
        Number of threads; None for all cores that this process may use.
    dtype
        Precision of the local steps, "float64" or "float32". The server's sums are always float64.
    specialise
        Whether to compile a kernel for the problem's number of features, and where batches have at most 16 records
        also for their size and the loss: it takes seconds the first time on a machine, and the local steps are
        then faster by a quarter, with a batch of one record several times. The numbers are the same. "auto" does
        so in the middle of a run, once its local steps have taken two seconds.

    Examples
    --------
    >>> from fedscaffold.engines import Numba
    >>> from fedscaffold.problems import RidgeStream
    >>> engine = Numba(threads=2, dtype="float32")
    >>> engine.name
    'numba-float32'
    >>> engine.supports(RidgeStream(n_clients=2, dim=3))
    True
    """

    threads: int | None = None
    dtype: Dtype = "float64"
    specialise: bool | Literal["auto"] = "auto"

    def __post_init__(self) -> None:
        if self.threads is not None:
            set_fields(self, threads=whole_number("threads", self.threads, least=1, most=MOST_THREADS))
        choice("dtype", self.dtype, get_args(Dtype))
        choice("specialise", self.specialise, (True, False, "auto"))

    @property
    def name(self) -> str:
        """Name in provenance and checkpoints, with the precision; threads do not change the numbers."""
        return f"numba-{self.dtype}"

    def supports(self, problem: Any, *, anchored: bool = False) -> bool:
        """Whether there is a compiled kernel for the problem's loss, also with gradients at an anchor if asked."""
        kind = problem.kind
        if isinstance(problem, Streamed):
            return kind in STREAM_LOSSES
        loss = table_loss(problem)
        return loss is not None and not (anchored and loss in WITHOUT_ANCHOR)

    @contextmanager
    def open(
        self,
        problem: TabularRecords | LinearSystems | Streamed,
        batches: Batches,
        *,
        seed: int,
        first_client: int = 0,
        privacy: RecordLevel | None = None,
    ) -> Iterator[LocalSgd]:
        """Convert the problem's records, compile the kernel, start the threads, and yield the local steps."""
        from fedscaffold.engines.numba_.machine_code.choose import stream_kernel, table_kernel
        from fedscaffold.engines.numba_.reading import Reading
        from fedscaffold.engines.numba_.tables import sources, tables

        read: Any
        choose: Any
        files: Reading | None = None
        if isinstance(problem, Streamed):
            if privacy is not None:
                check_clippable(problem)
            read, choose = sources(problem, batches, self.dtype), stream_kernel
        else:
            read, choose = tables(problem, batches, self.dtype, seed=seed, privacy=privacy), table_kernel
            files = Reading(read)
        threads = self.threads or _cores()
        key = (int(seed) & 0xFFFFFFFF, int(seed) >> 32)

        @cache
        def chosen_kernel(*, specialise: bool, anchored: bool) -> Any:
            return choose(read, problem.dim, specialise=specialise, anchored=anchored).given(*read)

        special, seconds = self.specialise is True, 0.0
        chosen_kernel(specialise=special, anchored=False)  # compiled before the first round
        all_clients = np.arange(problem.n_clients)[None, :]
        numbers_per_step = read.batch * read.width
        with closing(Helpers(threads - 1)) as helpers, ThreadPoolExecutor(1) as reader:

            def local_sgd(
                theta: Array, correction: Array, *, step_size: float, local_steps: int | IntArray, round: int,
                clients: IntArray | None = None, first_step: int = 0, pull: float = 0.0,
                anchor: Array | None = None,
            ) -> Array:  # fmt: skip
                nonlocal special, seconds
                refuse_anchor(privacy, anchor)
                began = time.perf_counter()
                kernel = chosen_kernel(specialise=special, anchored=anchor is not None)
                begun = theta if theta.ndim == 3 else theta[:, None, :]
                reference = NO_ANCHOR if anchor is None else anchor
                if pull:  # the kernels add λθ_c
                    correction = correction - pull * begun
                steps = np.array(local_steps, dtype=np.int64, ndmin=2, copy=None)
                chosen = all_clients if clients is None else clients
                out = np.empty((theta.shape[0], chosen.shape[1], problem.dim))
                steps_of = kernel.bind(
                    begun, correction, reference, float(step_size), float(pull), steps, first_step,
                    chosen, key, round, first_client, out,
                )  # fmt: skip
                work = out.size // problem.dim * numbers_per_step * int(steps.sum()) // steps.size
                blocks = split(chosen.shape[1], work, threads)
                block: Callable[[int, int], None] = steps_of
                if files:
                    blocks = files.blocks(chosen, at_least=len(blocks))
                    block = files.around(block, chosen, blocks, reader, again=clients is None)
                helpers.run_blocks(block, blocks)
                seconds += time.perf_counter() - began
                if self.specialise == "auto" and seconds > SECONDS_WORTH_COMPILING:
                    special = True
                return out

            try:
                yield local_sgd
            finally:
                reader.shutdown(cancel_futures=True)


def _cores() -> int:
    """Number of cores that this process may use; of all cores on macOS and Windows, which do not tell."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def split(n_clients: int, work: int, threads: int) -> list[tuple[int, int]]:
    """Blocks of clients: enough to keep the threads busy, small enough to stop soon, large enough to pay."""
    useful = min(threads, work // NUMBERS_WORTH_A_THREAD)  # threads
    wanted = max(useful * BLOCKS_PER_THREAD if useful > 1 else 1, work // NUMBERS_PER_BLOCK)
    blocks = min(n_clients, wanted)
    ends = [n_clients * k // blocks for k in range(blocks + 1)]
    return list(pairwise(ends))
