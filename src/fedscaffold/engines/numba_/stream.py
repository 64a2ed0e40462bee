"""The counter-based index stream of `fedscaffold.core.random.stream`, compiled."""

from typing import Any

import numpy as np
from numba import njit

from fedscaffold.core.random.stream import MULTIPLIERS, PHILOX_ROUNDS, WEYL
from fedscaffold.engines.numba_.compiling import compiled
from fedscaffold.engines.numba_.intrinsics import pointer

M0, M1 = (np.uint64(m) for m in MULTIPLIERS)
W0, W1 = (np.uint64(w) for w in WEYL)
LOW = np.uint64(0xFFFFFFFF)
HALF = np.uint64(32)


@compiled
def words(out: Any, first: int, count: int, key: Any, counter: Any) -> None:
    """out[:count] = words first, first+1, ... of the stream; first is a multiple of 4."""
    k0, k1 = np.uint64(key[0]), np.uint64(key[1])
    c1, c2, c3 = np.uint64(counter[0]), np.uint64(counter[1]), np.uint64(counter[2])
    start = first // 4
    for i in range((count + 3) // 4):
        a, b, c, d = np.uint64(start + i) & LOW, c1, c2, c3
        x, y = k0, k1
        for _ in range(PHILOX_ROUNDS):
            p, q = M0 * a, M1 * c
            a, b = (q >> HALF) ^ b ^ x, q & LOW
            c, d = (p >> HALF) ^ d ^ y, p & LOW
            x, y = (x + W0) & LOW, (y + W1) & LOW
        out[4 * i], out[4 * i + 1] = np.uint32(a), np.uint32(b)
        out[4 * i + 2], out[4 * i + 3] = np.uint32(c), np.uint32(d)


@njit(inline="always")
def scaled(word: Any, n: Any) -> Any:
    """floor(n * word / 2**32), an index in 0..n-1."""
    return np.int32((np.uint64(word) * np.uint64(n)) >> HALF)


@compiled
def with_replacement(raw: Any, rows: Any, count: int, n: int) -> None:
    """rows[:count] = independent uniform indices in 0..n-1."""
    for i in range(count):
        rows[i] = scaled(raw[i], n)


@compiled
def without_replacement(raw: Any, rows: Any, count: int, batch: int, order: Any) -> None:
    """rows[:count] = batch after batch of distinct indices: the first draws of a Fisher-Yates shuffle.

    order is 0..n-1 on entry and again on return: each batch undoes its own swaps.
    """
    n = order.size
    for begin in range(0, count, batch):
        for b in range(batch):
            j = b + scaled(raw[begin + b], n - b)
            order[b], order[j] = order[j], order[b]
            rows[begin + b] = order[b]
        for b in range(batch - 1, -1, -1):
            j = b + scaled(raw[begin + b], n - b)
            order[b], order[j] = order[j], order[b]


@njit(inline="always")
def located(word: Any, ends: Any, guide: Any, n: int) -> Any:
    """The first i with word < ends[i], of n; guide[j] is that i for the least word that `scaled` maps to j."""
    w = np.uint64(word)
    i = np.int64(guide[(w * np.uint64(n)) >> HALF])
    while ends[i] <= w:  # about once on average, whatever the probabilities (Chen & Asau 1974)
        i += 1
    return i


@compiled
def by_chance(raw: Any, rows: Any, count: int, ends: Any, guide: Any) -> None:
    """rows[:count] = independent indices, each by the interval that its word falls into."""
    ends_, guide_ = pointer(ends), pointer(guide)
    for i in range(count):
        rows[i] = located(raw[i], ends_, guide_, ends.size)


@compiled
def along_chain(
    raw: Any,
    rows: Any,
    count: int,
    ends: Any,
    guide: Any,
    chain_ends: Any,
    follows: Any,
    branching: int,
    last: int,
) -> int:
    """rows[:count] = a stretch of a chain after record `last`, or from a stationary start where that is -1.

    Returns the stretch's last record.
    """
    chain_ends_, follows_ = pointer(chain_ends), pointer(follows)
    for i in range(count):
        if last < 0:
            last = located(raw[i], pointer(ends), pointer(guide), ends.size)
        else:
            w = np.uint64(raw[i])
            last = np.int64(follows_[last])
            begin = last
            for k in range(branching - 1):
                last += chain_ends_[begin + k] <= w
        rows[i] = last
    return last
