"""Sums over clients whose bits don't depend on how the clients are divided among machines.

Clients are added in leaves of LEAF, one after another, and leaves in pairs, pairs of pairs and so on: node i of
level k covers leaves i·2ᵏ to (i + 1)·2ᵏ − 1, whatever the number of clients. A block of clients that begins and
ends with leaves gives the sums of the largest nodes within it, a few at most; `total` joins all blocks.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

LEAF = 64  # clients

Array = NDArray[np.float64]


class PartialSum(NamedTuple):
    """The sum over one node of the tree."""

    level: int
    place: int
    value: Array  # (repetitions, coordinate)


def partial_sums(values: Array, weights: Array, *, first: int = 0) -> list[PartialSum]:
    """Σ w_c v_c over a block of clients, values (repetitions, clients, coordinate), from client `first` on."""
    repetitions, clients, dim = values.shape
    full, rest = divmod(clients, LEAF)
    leaves = np.empty((repetitions, full + bool(rest), dim))
    if full:
        grouped = values[:, : full * LEAF].reshape(repetitions, full, LEAF, dim)
        np.einsum("gc,rgcj->rgj", weights[: full * LEAF].reshape(full, LEAF), grouped, out=leaves[:, :full])
    if rest:
        np.einsum("c,rcj->rj", weights[full * LEAF :], values[:, full * LEAF :], out=leaves[:, full])
    return _nodes(leaves, first // LEAF)


def partial_sums_of_cohort(
    values: Array, weights: Array, clients: NDArray[np.int64], *, first: int, last: int
) -> list[PartialSum]:
    """Return the same over ascending rows of clients, one per repetition, of a block that ends before `last`."""
    leaves = np.zeros((len(values), (last - first - 1) // LEAF + 1, values.shape[2]))
    for r, row in enumerate(clients):
        leaf = (row - first) // LEAF
        begins = np.flatnonzero(np.diff(leaf, prepend=-1))
        leaves[r, leaf[begins]] = np.add.reduceat(weights[r, :, None] * values[r], begins, axis=0)
    return _nodes(leaves, first // LEAF)


def total(found: Sequence[PartialSum]) -> Array:
    """Return the sum over all clients, from the parts of all blocks."""
    if len(found) == 1:
        return found[0].value
    by_level: dict[int, dict[int, Array]] = {}
    for part in found:
        by_level.setdefault(part.level, {})[part.place] = part.value
    level = min(by_level)
    nodes: dict[int, Array] = {}
    while True:
        nodes |= by_level.pop(level, {})
        if len(nodes) == 1 and not by_level:
            return next(iter(nodes.values()))
        above: dict[int, Array] = {}
        for place in sorted(nodes):  # the left one first; at the right end there may be none beside it
            up = place // 2
            above[up] = above[up] + nodes[place] if up in above else nodes[place]
        level, nodes = level + 1, above


def _nodes(leaves: Array, first: int) -> list[PartialSum]:
    """Return the largest nodes within a range of leaves (repetitions, leaf, coordinate)."""
    found, level = [], 0
    while leaves.shape[1]:
        if first % 2:
            found.append(PartialSum(level, first, leaves[:, 0]))
            leaves, first = leaves[:, 1:], first + 1
        if leaves.shape[1] % 2:
            found.append(PartialSum(level, first + leaves.shape[1] - 1, leaves[:, -1]))
            leaves = leaves[:, :-1]
        leaves, first, level = leaves[:, ::2] + leaves[:, 1::2], first // 2, level + 1
    return found
