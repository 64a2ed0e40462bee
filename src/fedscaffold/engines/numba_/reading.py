"""Records in files, for the kernel: a block's are being read while earlier blocks are worked on, then let go."""

from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedscaffold.core.machine import grouped, in_file, let_go, read_ahead
from fedscaffold.core.types import IntArray
from fedscaffold.engines.numba_.tables import Tables

BYTES_PER_BLOCK = 1 << 22
BLOCKS_AHEAD = 4  # of the one that a thread begins

Work = Callable[[int, int], None]


class Reading:
    """The tables of a kernel that lie in files; false where there are none."""

    def __init__(self, read: Tables) -> None:
        records = int(read.offsets[-1])
        given = [table.reshape(records, -1) for table in (read.x, read.y, read.margins) if table is not None]
        self.tables = [table for table in given if in_file(table)]
        self.offsets = read.offsets

    def __bool__(self) -> bool:
        return bool(self.tables)

    def blocks(self, clients: IntArray, *, at_least: int) -> list[tuple[int, int]]:
        """Blocks of (repetitions or 1, clients) by how many bytes they read; about `at_least`, or more."""
        bytes_per_row = sum(table.strides[0] for table in self.tables)
        sizes = (self.offsets[clients + 1] - self.offsets[clients]).sum(axis=0) * bytes_per_row
        return grouped(sizes, min(BYTES_PER_BLOCK, int(sizes.sum()) // at_least + 1))

    def around(
        self, work: Work, clients: IntArray, blocks: list[tuple[int, int]], reader: Executor, *, again: bool
    ) -> Work:
        """The work on a block, while later ones are being read; its own records are let go afterwards.

        `again` tells that the next round will take the same blocks: then the first ones are read after the last.
        """
        rows = {begin: self._rows(clients[:, begin:end]) for begin, end in blocks}
        starts = [begin for begin, _ in blocks]
        ahead = starts[BLOCKS_AHEAD:] + (starts[:BLOCKS_AHEAD] if again and len(blocks) > BLOCKS_AHEAD else [])
        following = dict(zip(starts, ahead, strict=False))
        for begin in starts[:BLOCKS_AHEAD]:
            reader.submit(self._advise, read_ahead, rows[begin])

        def block(begin: int, end: int) -> None:
            if begin in following:
                reader.submit(self._advise, read_ahead, rows[following[begin]])
            work(begin, end)
            self._advise(let_go, rows[begin])

        return block

    def _rows(self, clients: IntArray) -> list[tuple[int, int]]:
        """The clients' records: first and last + 1 of each stretch without gaps."""
        chosen = np.unique(clients)
        begins, ends = self.offsets[chosen], self.offsets[chosen + 1]
        gaps = begins[1:] != ends[:-1]
        return list(zip(begins[np.append(True, gaps)].tolist(), ends[np.append(gaps, True)].tolist(), strict=True))

    def _advise(self, advise: Callable[[NDArray[Any], int, int], None], rows: list[tuple[int, int]]) -> None:
        for begin, end in rows:
            for table in self.tables:
                advise(table, begin, end)
