"""Passes over all clients, a block of clients at a time on each processor."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np

from fedscaffold.core.capabilities import GeneralisedLinear, PopulationMoments
from fedscaffold.core.protocols import Problem
from fedscaffold.core.random.batches import Batches
from fedscaffold.core.types import Array, IntArray

T = TypeVar("T")
FEATURES_FOR_THREADS = 48  # with fewer, most of the time goes to small products, which threads only make dearer
NUMBERS_AT_ONCE = 1 << 19  # in a block: 4 megabytes; fewer would cost more in calls than they gain in cache


@dataclass(frozen=True, eq=False)
class ClientBlock:
    """Some clients and, for problems on tables, their records side by side.

    A client with fewer records than the others of its block is filled up with zeros.
    """

    clients: IntArray  # (k,)
    x: Array  # (k, n, d); n = 0 for problems without tables
    y: Array  # (k, n)
    share: Array  # (k, n): 1/n_c for a record, 0 for filling

    @cached_property
    def norms(self) -> Array:
        """Norms of the records, (k, n); found once for a block."""
        return np.linalg.norm(self.x, axis=2)

    @cached_property
    def pairs(self) -> Array:
        """Products x_a x_b of all pairs of features a ≤ b, (k, d (d + 1)/2, n); found once for a block."""
        k, n, d = self.x.shape
        features = np.ascontiguousarray(np.swapaxes(self.x, 1, 2))
        pairs, begin = np.empty((k, d * (d + 1) // 2, n)), 0
        for a in range(d):
            np.multiply(features[:, a : a + 1], features[:, a:], out=pairs[:, begin : begin + d - a])
            begin += d - a
        return pairs


def for_blocks(
    problem: Problem, work: Callable[[ClientBlock], None], *, copies: int = 1, clients: IntArray | None = None
) -> None:
    """Call work on blocks that together hold every client once, or each of some clients.

    Blocks do not depend on the number of processors, so that results do not either. A problem known only by the
    gradients of its records is passed client by client.

    Parameters
    ----------
    problem
        On tables, clients with similar numbers of records share a block.
    work
        Called from several threads at once where there are many features.
    copies
        How many arrays of the size of x the function `work` makes; more make smaller blocks.
    clients
        Which clients; all of them by default.
    """
    chosen = np.arange(problem.n_clients) if clients is None else clients
    if isinstance(problem, GeneralisedLinear):
        groups = _groups_of_like_size(problem.sizes[chosen], problem.dim * copies)
        _for_each(lambda group: work(_with_records(problem, chosen[group])), groups, problem.dim)
    elif isinstance(problem, PopulationMoments):
        size = max(1, NUMBERS_AT_ONCE // (2 * problem.dim**2 * copies))
        groups = [chosen[k : k + size] for k in range(0, chosen.size, size)]
        _for_each(lambda group: work(_without_records(group)), groups, problem.dim)
    else:
        for client in chosen:
            work(_without_records(np.array([client])))


def list_blocks(problem: Problem, *, copies: int = 1, clients: IntArray | None = None) -> list[ClientBlock]:
    """The blocks of `for_blocks`, to be passed many times; for clients that fit in memory."""
    found: list[ClientBlock] = []
    for_blocks(problem, found.append, copies=copies, clients=clients)
    return found


def for_kept_blocks(blocks: list[ClientBlock], work: Callable[[ClientBlock], None]) -> None:
    """Call work on each of some blocks, where there are many features from several threads at once."""
    _for_each(work, blocks, blocks[0].x.shape[2])


def noise_factors(problem: Problem, batches: Batches) -> Array:
    """Variance of each client's batch mean over that of one record, shape (n_clients,); 0 for a single record."""
    batches.check_fits(problem.sizes)
    factors = {int(n): batches.noise_factor(int(n)) for n in np.unique(problem.sizes)}
    if not isinstance(problem, PopulationMoments):
        factors[1] = 0.0
    return np.array([factors[int(n)] for n in problem.sizes])


def _for_each(work: Callable[[T], None], groups: list[T], dim: int) -> None:
    if len(groups) == 1 or dim < FEATURES_FOR_THREADS:
        for group in groups:
            work(group)
        return
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for _ in pool.map(work, groups):
            pass


def _groups_of_like_size(sizes: IntArray, numbers_per_record: int) -> list[IntArray]:
    """Clients in the order of their sizes, cut where a block would hold more than NUMBERS_AT_ONCE."""
    order = np.argsort(sizes, kind="stable").astype(np.int64)
    numbers = sizes[order] * numbers_per_record
    groups, begin = [], 0
    for end in range(1, order.size + 1):
        if end == order.size or (end + 1 - begin) * int(numbers[end]) > NUMBERS_AT_ONCE:
            groups.append(order[begin:end])
            begin = end
    return groups


def _without_records(clients: IntArray) -> ClientBlock:
    empty = np.empty((clients.size, 0))
    return ClientBlock(clients, empty[..., None], empty, empty)


def _with_records(problem: GeneralisedLinear, clients: IntArray) -> ClientBlock:
    starts, ends = problem.offsets[clients], problem.offsets[clients + 1]
    sizes = ends - starts
    k, n, d = clients.size, int(sizes.max()), problem.x.shape[1]
    if (sizes == n).all() and (np.diff(clients) == 1).all():  # as they lie in memory: no copy
        rows = slice(int(starts[0]), int(ends[-1]))
        share: Array = np.broadcast_to(np.float64(1.0), (k, n)) / n
        return ClientBlock(clients, problem.x[rows].reshape(k, n, d), problem.y[rows].reshape(k, n), share)
    x, y, share = np.zeros((k, n, d)), np.ones((k, n)), np.zeros((k, n))
    for i in range(k):
        rows, size = slice(int(starts[i]), int(ends[i])), int(sizes[i])
        x[i, :size], y[i, :size], share[i, :size] = problem.x[rows], problem.y[rows], 1.0 / size
    return ClientBlock(clients, x, y, share)
