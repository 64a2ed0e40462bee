"""Passes over all clients' tables, a block of clients at a time."""

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from fedscaffold.core.capabilities import GeneralisedLinear
from fedscaffold.core.types import Array, IntArray

BLOCK = 1 << 18  # numbers in a block's records: 2 MB, which stay in the processor's cache


class ClientBlock(NamedTuple):
    """Some clients and their records side by side, filled up with zeros to the same number of records."""

    clients: IntArray  # (k,)
    x: Array  # (k, n, d)
    y: Array  # (k, n)
    share: Array  # (k, n): 1/n_c for a record, 0 for filling


def table_blocks(problem: GeneralisedLinear, *, copies: int = 1) -> Iterator[ClientBlock]:
    """Yield blocks that together hold every client once.

    Parameters
    ----------
    problem
        Clients with similar numbers of records share a block.
    copies
        How many arrays of the size of x are made of a block; more make smaller blocks.

    Yields
    ------
    ClientBlock
        Some clients.
    """
    for clients, rows in client_rows(problem.offsets, problem.dim * copies):
        real = rows >= 0
        yield ClientBlock(clients, taken(problem.x, rows), problem.y[rows], real / real.sum(axis=1)[:, None])


def client_rows(offsets: IntArray, numbers: int) -> Iterator[tuple[IntArray, IntArray]]:
    """Yield clients of similar sizes, as many as fit into a block, and the rows of their records, (k, n).

    Beyond a client's last record rows are −1. `numbers` is how many numbers a record has.
    """
    sizes = np.diff(offsets)
    order = np.argsort(sizes, kind="stable")
    begin = 0
    for end in range(1, order.size + 1):
        if end == order.size or (end + 1 - begin) * int(sizes[order[end]]) * numbers > BLOCK:
            clients = order[begin:end]
            at = np.arange(int(sizes[clients].max()))
            yield clients, np.where(at < sizes[clients, None], offsets[clients, None] + at, -1)
            begin = end


def taken(table: Array, rows: IntArray) -> Array:
    """Return rows of a table, 0 for −1; a view if they follow one another."""
    first, last = int(rows[0, 0]), int(rows[-1, -1])
    if last == first + rows.size - 1 and all(b - a == rows.shape[1] for a, b in pairwise(rows[:, 0])):
        return table[first : last + 1].reshape(*rows.shape, -1)
    return np.where((rows >= 0)[..., None], table[rows], 0.0)
