"""`local_sgd` compiled: H steps of θ ← θ − γ(g + ξ) for every client of a block.

All H steps of one client run before the next client's, so that its records stay in cache; meanwhile the
next client's records are prefetched, a slice at each step. Within a step the batch goes in groups of
eight records, then four, two, one.

Gradients are scale·ℓ'(mᵀθ, y) x: with m = x those of ridge and logistic regression, with m = φ(s) − λφ(s') and
x = φ(s) those of temporal differences. Dense records are whole linear systems.
"""

from functools import cache
from typing import Any

import numpy as np
from numba import njit

from fedscaffold.engines.numba_ import simd
from fedscaffold.engines.numba_.intrinsics import on_stack, pointer, prefetch
from fedscaffold.engines.numba_.stream import (
    along_chain,
    by_chance,
    with_replacement,
    without_replacement,
    words,
)

RIDGE, LOGISTIC, DENSE = 0, 1, 2
LOSSES = {"ridge": RIDGE, "logistic": LOGISTIC, "td": RIDGE, "linear_sa": DENSE}
FULL, WITH_REPLACEMENT, WITHOUT_REPLACEMENT, BY_CHANCE, ALONG_CHAIN = 0, 1, 2, 3, 4

PADDING = simd.VECTOR_BYTES // 4  # so that whole vectors of floats fit behind any length
CACHE_LINE_NUMBERS = 8
STACK_NUMBERS = 4096  # longer vectors live on the heap, where the loops' length hides the difference
DRAWS_AT_ONCE = 4096
COMPILED_FOR = 64  # features, at most, to be worth a kernel of their own

margins_8, margins_4, margins_2, margins_1 = (simd.margins(g) for g in (8, 4, 2, 1))
open_8, open_4, open_2, open_1 = (simd.descent(g, opening=True) for g in (8, 4, 2, 1))
descend_8, descend_4, descend_2, descend_1 = (simd.descent(g, opening=False) for g in (8, 4, 2, 1))
ridge = simd.derivatives(simd.ridge_derivative)
logistic = simd.derivatives(simd.logistic_derivative)


@njit(forceinline=True)
def margins(x: Any, d: int, base: int, rows: Any, first: int, batch: int, theta: Any, z: Any) -> None:
    """z_b = x_bᵀθ for the batch's records."""
    b = 0
    while b + 8 <= batch:
        margins_8(x, d, base, rows, first, theta, z, b)
        b += 8
    if b + 4 <= batch:
        margins_4(x, d, base, rows, first, theta, z, b)
        b += 4
    if b + 2 <= batch:
        margins_2(x, d, base, rows, first, theta, z, b)
        b += 2
    if b < batch:
        margins_1(x, d, base, rows, first, theta, z, b)


@njit(forceinline=True)
def descend(
    x: Any, d: int, base: int, rows: Any, first: int, batch: int, theta: Any, z: Any, shrink: Any, shift: Any
) -> None:
    """θ ← shrink·θ − shift − Σ_b z_b x_b."""
    if batch >= 8:
        open_8(x, d, base, rows, first, theta, z, 0, shrink, shift)
        b = 8
    elif batch >= 4:
        open_4(x, d, base, rows, first, theta, z, 0, shrink, shift)
        b = 4
    elif batch >= 2:
        open_2(x, d, base, rows, first, theta, z, 0, shrink, shift)
        b = 2
    else:
        open_1(x, d, base, rows, first, theta, z, 0, shrink, shift)
        b = 1
    while b + 8 <= batch:
        descend_8(x, d, base, rows, first, theta, z, b, shrink, shift)
        b += 8
    if b + 4 <= batch:
        descend_4(x, d, base, rows, first, theta, z, b, shrink, shift)
        b += 4
    if b + 2 <= batch:
        descend_2(x, d, base, rows, first, theta, z, b, shrink, shift)
        b += 2
    if b < batch:
        descend_1(x, d, base, rows, first, theta, z, b, shrink, shift)


@njit(forceinline=True)
def steps(
    loss: int, x: Any, m: Any, y: Any, d: int, base: int, rows: Any, stride: int, batch: int, count: int,
    theta: Any, shift: Any, z: Any, shrink: Any, scale: Any, ahead: int, portion: int,
) -> None:  # fmt: skip
    """`count` local steps of one client; shift = γξ, shrink = 1 − γ·l2, scale = γ/B.

    Step h uses the records rows[h·stride], ..., and prefetches `portion` numbers of x from `ahead` on. Margins are
    taken with m, or where that is None with x: which of the two is settled when compiling.
    """
    for h in range(count):
        for k in range(0, portion, CACHE_LINE_NUMBERS):
            prefetch(x, ahead + h * portion + k)
        first = h * stride
        if m is None:
            margins(x, d, base, rows, first, batch, theta, z)
        else:
            for k in range(0, portion, CACHE_LINE_NUMBERS):
                prefetch(m, ahead + h * portion + k)
            margins(m, d, base, rows, first, batch, theta, z)
        if loss == RIDGE:
            ridge(y, base, rows, first, batch, z, scale)
        else:
            logistic(y, base, rows, first, batch, z, scale)
        descend(x, d, base, rows, first, batch, theta, z, shrink, shift)


@njit(nogil=True, cache=True)
def steps_on_heap(
    loss: int, x: Any, m: Any, y: Any, d: int, base: int, rows: Any, stride: int, batch: int, count: int,
    theta: Any, shift: Any, z: Any, shrink: Any, scale: Any, ahead: int, portion: int,
) -> None:  # fmt: skip
    """`steps`, compiled once for any length of vectors."""
    steps(loss, x, m, y, d, base, rows, stride, batch, count, theta, shift, z, shrink, scale, ahead, portion)


@njit(nogil=True, cache=True)
def steps_on_stack(
    loss: int, x: Any, m: Any, y: Any, d: int, base: int, rows: Any, stride: int, batch: int, count: int,
    theta: Any, shift: Any, shrink: Any, scale: Any, ahead: int, portion: int,
) -> None:  # fmt: skip
    """`steps` on copies of θ and shift that provably alias nothing."""
    length = d + PADDING
    t, s, z = on_stack(length, x), on_stack(length, x), on_stack(batch + PADDING, x)
    for j in range(length):
        t[j] = theta[j]
        s[j] = shift[j]
    steps(loss, x, m, y, d, base, rows, stride, batch, count, t, s, z, shrink, scale, ahead, portion)
    for j in range(d):
        theta[j] = t[j]


@njit(nogil=True, cache=True)
def dense_steps(
    A: Any, b: Any, d: int, base: int, rows: Any, stride: int, batch: int, count: int,
    theta: Any, shift: Any, z: Any, total: Any, every: Any, scale: Any, ahead: int, portion: int,
) -> None:  # fmt: skip
    """`count` steps θ ← θ − shift − scale Σ_i (A_i θ − b_i) of one client; the rows of A_i are margins' records.

    every is 0, 1, ..., d − 1.
    """
    for h in range(count):
        for k in range(0, portion, CACHE_LINE_NUMBERS):
            prefetch(A, ahead + h * portion + k)
        for j in range(d):
            total[j] = 0.0
        for i in range(batch):
            begin = (base + rows[h * stride + i]) * d
            margins(A, d, begin, every, 0, d, theta, z)
            for j in range(d):
                total[j] += z[j] - b[begin + j]
        for j in range(d):
            theta[j] -= shift[j] + scale * total[j]


@cache
def local_sgd_for(dim: int | None) -> Any:
    """The kernel: compiled for one number of features, or for any (None), which is slower by a quarter.

    Both give the same bits.
    """

    @njit(nogil=True, cache=True)
    def local_sgd(
        loss: int, x: Any, m: Any, y: Any, offsets: Any, l2: float, sampling: int, batch_size: int,
        ends: Any, guide: Any, chain_ends: Any, follows: Any, branching: int,
        theta: Any, correction: Any, step_size: float, local_steps: Any, first_step: int, clients: Any,
        key: Any, round_: int, begin: int, end: int, out: Any,
    ) -> None:  # fmt: skip
        """out[r, k] = the model of client clients[r, k] after its local steps, for begin <= k < end.

        x, m and y hold all clients' records, flat; client c's are rows offsets[c] to offsets[c+1] − 1. x is d
        numbers a record, m the table that margins are taken with, or None for x; for dense records x holds
        d × d matrices and y their right-hand sides. ends, guide, chain_ends, follows and branching say how
        records are drawn by probability: `core.draws.Draws`, and for guide `stream.located`.
        correction, local_steps and clients may have a single repetition, which then serves for all; correction
        and local_steps a single client. A step draws as if it were the first_step-th or later of its round.
        """
        repetitions = theta.shape[0]
        d = theta.shape[1] if dim is None else dim
        width, height = (d * d, d) if loss == DENSE else (d, 1)  # numbers of a record in x, in y
        own_cohorts = clients.shape[0] > 1
        largest = 0
        for r in range(clients.shape[0]):
            for k in range(begin, end):
                largest = max(largest, offsets[clients[r, k] + 1] - offsets[clients[r, k]])
        room = largest if sampling == FULL else max(DRAWS_AT_ONCE, 4 * batch_size)
        skip = first_step * batch_size % 4  # blocks of the stream are four words long
        start = first_step * batch_size - skip
        raw = np.empty(room + 8, np.uint32)
        rows = np.empty(room + PADDING, np.int32)
        order = np.arange(max(largest, height)).astype(np.int32)
        t, shift = np.zeros(d + PADDING, x.dtype), np.zeros(d + PADDING, x.dtype)
        z = np.zeros(max(largest if sampling == FULL else batch_size, height) + PADDING, x.dtype)
        total = np.zeros(height + PADDING, x.dtype)
        shrink = x.dtype.type(1.0 - step_size * l2)
        base = n = batch = stride = at_once = portion = ahead = 0
        scale = shrink

        for k in range(begin, end):
            for r in range(repetitions):
                c = clients[r if own_cohorts else 0, k]
                H = local_steps[min(r, local_steps.shape[0] - 1), min(k, local_steps.shape[1] - 1)]
                if own_cohorts or r == 0:  # another client than before
                    base = offsets[c]
                    n = offsets[c + 1] - base
                    batch = n if sampling == FULL else batch_size
                    stride = 0 if sampling == FULL else batch_size
                    at_once = room // batch // 4 * 4
                    scale = x.dtype.type(step_size / batch)
                    if sampling == FULL:
                        rows[:n] = order[:n]
                        rows[n : n + PADDING] = 0
                    following, until = c, H  # whose records come next, after how many steps
                    if own_cohorts and r + 1 < repetitions:
                        following = clients[r + 1, k]
                    elif k + 1 < end:
                        following = clients[0, k + 1]
                    if not own_cohorts:
                        for s in range(1, repetitions):
                            until += local_steps[
                                min(s, local_steps.shape[0] - 1), min(k, local_steps.shape[1] - 1)
                            ]
                    n_following = offsets[following + 1] - offsets[following]
                    portion, ahead = 0, offsets[following] * width
                    if following != c and until * batch >= n_following:
                        portion = (n_following * width - 1) // until + 1
                        for i in range(0, n_following * height, CACHE_LINE_NUMBERS):
                            prefetch(pointer(y), offsets[following] * height + i)
                xi = correction[min(r, correction.shape[0] - 1), min(k, correction.shape[1] - 1)]
                for j in range(d):
                    t[j] = theta[r, j]
                    shift[j] = step_size * xi[j]
                last = -1
                if sampling == ALONG_CHAIN:  # the steps before the first are walked through
                    for begun in range(0, first_step * batch, room):
                        count = min(room, first_step * batch - begun)
                        words(raw, begun, count, key, (round_, c, r))
                        last = along_chain(
                            raw, rows, count, ends[base : base + n], guide[base : base + n],
                            chain_ends[base : base + n], follows[base : base + n], branching, last,
                        )  # fmt: skip
                h = 0
                while h < H:
                    count = H - h
                    if sampling != FULL:
                        count = min(at_once, count)
                        words(raw, start + h * batch, skip + count * batch, key, (round_, c, r))
                        if sampling == WITH_REPLACEMENT:
                            with_replacement(raw[skip:], rows, count * batch, n)
                        elif sampling == BY_CHANCE:
                            by_chance(
                                raw[skip:], rows, count * batch, ends[base : base + n], guide[base : base + n]
                            )
                        elif sampling == ALONG_CHAIN:
                            last = along_chain(
                                raw[skip:], rows, count * batch, ends[base : base + n], guide[base : base + n],
                                chain_ends[base : base + n], follows[base : base + n], branching, last,
                            )  # fmt: skip
                        else:
                            without_replacement(raw[skip:], rows, count * batch, batch, order[:n])
                        rows[count * batch : count * batch + PADDING] = 0
                    if loss == DENSE:
                        dense_steps(
                            pointer(x), pointer(y), d, base, pointer(rows), stride, batch, count, pointer(t),
                            pointer(shift), pointer(z), pointer(total), pointer(order), scale, ahead, portion,
                        )  # fmt: skip
                    elif dim is None and d + batch > STACK_NUMBERS:
                        steps_on_heap(
                            loss, pointer(x), pointer(m), pointer(y), d, base, pointer(rows), stride, batch,
                            count, pointer(t), pointer(shift), pointer(z), shrink, scale, ahead, portion,
                        )  # fmt: skip
                    else:
                        steps_on_stack(
                            loss, pointer(x), pointer(m), pointer(y), d, base, pointer(rows), stride, batch,
                            count, pointer(t), pointer(shift), shrink, scale, ahead, portion,
                        )  # fmt: skip
                    ahead += count * portion
                    h += count
                for j in range(d):
                    out[r, k, j] = t[j]

    return local_sgd


def kernel(dim: int, batch: int) -> Any:
    """The fastest kernel for records of `dim` features and batches of at most `batch` records."""
    return local_sgd_for(dim if dim <= COMPILED_FOR and dim + batch <= STACK_NUMBERS else None)
