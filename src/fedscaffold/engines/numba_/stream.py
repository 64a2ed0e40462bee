"""The counter-based index stream of `fedscaffold.core.stream`, compiled."""

from typing import Any

import numpy as np
from numba import njit

from fedscaffold.core.stream import MULTIPLIERS, PHILOX_ROUNDS, WEYL

M0, M1 = (np.uint64(m) for m in MULTIPLIERS)
W0, W1 = (np.uint64(w) for w in WEYL)
LOW = np.uint64(0xFFFFFFFF)
HALF = np.uint64(32)


@njit(nogil=True, cache=True)
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


@njit(nogil=True, cache=True)
def with_replacement(raw: Any, rows: Any, count: int, n: int) -> None:
    """rows[:count] = independent uniform indices in 0..n-1."""
    for i in range(count):
        rows[i] = scaled(raw[i], n)


@njit(nogil=True, cache=True)
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
