"""`local_sgd` compiled: H steps of θ ← θ − γ(g + ξ) for every client of a block.

All H steps of one client run before the next client's, so that its records stay in cache; meanwhile the
next client's records are prefetched, a slice at each step.
"""

from typing import Any

import numpy as np

from fedscaffold.engines.numba_.clipped_steps import clipped_softmax_steps, clipped_steps, noise_numbers
from fedscaffold.engines.numba_.compiling import FLOAT, INT, KEY, NONE, ROUND_ARGUMENTS, compiled_for, numbers
from fedscaffold.engines.numba_.intrinsics import discard, pointer, prefetch, scratch
from fedscaffold.engines.numba_.losses import (
    ALONG_CHAIN,
    BY_CHANCE,
    DENSE,
    FULL,
    LINEAR,
    SOFTMAX,
    WEIGHTED,
    WEIGHTED_SOFTMAX,
    WITH_REPLACEMENT,
)
from fedscaffold.engines.numba_.simd import TARGET_COLUMNS
from fedscaffold.engines.numba_.steps import (
    CACHE_LINE_NUMBERS,
    PADDING,
    dense_steps,
    margins,
    slopes,
    softmax_steps,
    steps_on_heap,
    steps_on_stack,
    weighted_steps_on_heap,
    weighted_steps_on_stack,
    worth_reading,
)
from fedscaffold.engines.numba_.stream import along_chain, by_chance, with_replacement, without_replacement, words

DRAWS_AT_ONCE = 4096


def local_sgd_for(
    dim: int | None,
    form: int,
    dtype: str,
    with_margins: bool,
    sampling: int,
    on_heap: bool,
    anchored: bool = False,
    clipped: bool = False,
) -> Any:
    """The kernel for one form of records, and for one number of features or for any (None).

    The latter is slower by a quarter and gives the same bits. What other forms need is left out when compiling:
    Numba leaves out branches on constants of the enclosing function.

    Parameters
    ----------
    dim
        Number of features, with several classes those of one class; or None for any.
    form
        LINEAR, WEIGHTED, DENSE, SOFTMAX or WEIGHTED_SOFTMAX.
    dtype
        Of the records.
    with_margins
        Whether margins are taken with a table of their own.
    sampling
        How records are drawn: FULL, WITH_REPLACEMENT, WITHOUT_REPLACEMENT, BY_CHANCE or ALONG_CHAIN.
    on_heap
        Whether vectors are too long for the stack.
    anchored
        Whether gradients at an anchor are subtracted; for records with margins and one or three targets.
    clipped
        Whether records are clipped and steps get noise, for privacy.
    """
    several_classes, weighted = form in (SOFTMAX, WEIGHTED_SOFTMAX), form in (WEIGHTED, WEIGHTED_SOFTMAX)
    in_order = sampling == FULL and form in (LINEAR, WEIGHTED) and not clipped  # records, which need no list then

    def local_sgd(
        loss: int, x: Any, m: Any, y: Any, offsets: Any, l2: float, free: int, sampling_: int, batch_size: int,
        ends: Any, guide: Any, chain_ends: Any, follows: Any, branching: int,
        limits: Any, noise_scale: float, noise_key: Any,
        theta: Any, correction: Any, anchor: Any, step_size: float, pull: float, local_steps: Any, first_step: int,
        clients: Any,
        key: Any, round_: int, first_client: int, begin: int, end: int, out: Any,
    ) -> None:  # fmt: skip
        """out[r, k] = the model of client clients[r, k] after its local steps, for begin <= k < end.

        x, m and y hold all clients' records, flat; client c's are rows offsets[c] to offsets[c+1] − 1. x is d
        numbers a record (with several classes, d over how many), m the table that margins are taken with, or None
        for x; for dense records x holds d × d matrices and y their right-hand sides; for weighted ones y holds
        target, offset and weight. ends, guide,
        chain_ends, follows and branching say how records are drawn by probability: `core.draws.Draws`, and
        `stream.located` for guide. limits, noise_scale and noise_key are for privacy: see `clipped_steps`.
        correction, local_steps and clients may have a single repetition, which then serves for all; theta,
        correction and local_steps a single client. A step draws as if it were the first_step-th or later of its
        round, and client c as client first_client + c.
        """
        repetitions = theta.shape[0]
        d = theta.shape[2] if dim is None or several_classes else dim
        width, height = (d * d, d) if form == DENSE else (d, 1)  # numbers of a record in x, in y
        if weighted:
            height = TARGET_COLUMNS
        part = d  # θ is one vector of features, or with several classes one for each
        if several_classes:
            part = width = x.size // offsets[-1] if dim is None else dim
        classes, tall = d // part, part + PADDING
        own_cohorts = clients.shape[0] > 1
        largest = 0
        for r in range(clients.shape[0]):
            for k in range(begin, end):
                largest = max(largest, offsets[clients[r, k] + 1] - offsets[clients[r, k]])
        room = largest if sampling == FULL else max(DRAWS_AT_ONCE, 4 * batch_size)
        skip = first_step * batch_size % 4  # blocks of the stream are four words long
        start = first_step * batch_size - skip
        raw = scratch(room + 8, np.uint32)
        rows = scratch(room + PADDING, np.int32)
        order = scratch(max(largest, height), np.int32)
        t, shift = scratch(classes * tall, x.dtype), scratch(classes * tall, x.dtype)
        kept, total = scratch(classes * tall, x.dtype), scratch(height + PADDING, x.dtype)
        z = scratch(classes * (max(largest if sampling == FULL else batch_size, height) + PADDING), x.dtype)
        noise = scratch(noise_numbers(d) if clipped else 0, x.dtype)
        for i in range(order.size):
            order[i] = i
        for i in range(t.size):
            t[i] = shift[i] = kept[i] = 0.0
        for i in range(total.size):
            total[i] = 0.0
        for i in range(z.size):
            z[i] = 0.0
        shrink, pulled = x.dtype.type(1.0 - step_size * (l2 + pull)), x.dtype.type(step_size * pull)
        back = 1.0 - x.dtype.type(1.0 - step_size * l2)
        every = scratch((largest if anchored else 0) + PADDING, np.int32)
        aside = scratch(every.size, x.dtype)
        for i in range(every.size):
            every[i] = i if i < largest else 0
            aside[i] = 0.0
        at_anchor = pointer(aside) if anchored else None
        batch_rows = None if in_order else pointer(rows)
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
                        for i in range(n + PADDING):
                            rows[i] = i if i < n else 0
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
                    if following != c and worth_reading(until * batch, n_following, width):
                        portion = (n_following * width - 1) // until + 1
                        for i in range(0, n_following * height, CACHE_LINE_NUMBERS):
                            prefetch(pointer(y), offsets[following] * height + i)
                        if clipped:
                            for i in range(0, n_following, CACHE_LINE_NUMBERS):
                                prefetch(pointer(limits), offsets[following] + i)
                xi = correction[min(r, correction.shape[0] - 1), min(k, correction.shape[1] - 1)]
                for g in range(classes):
                    for j in range(part):
                        t[g * tall + j] = theta[r, min(k, theta.shape[1] - 1), g * part + j]
                        shift[g * tall + j] = kept[g * tall + j] = step_size * xi[g * part + j]
                if anchored:
                    for j in range(d):
                        shift[j] = anchor[r, j]
                        kept[j] -= step_size * l2 * anchor[r, j] if j < d - free else 0.0
                    table = x if m is None else m
                    margins(pointer(table), d, base, pointer(every), 0, n, pointer(shift), at_anchor)
                    slopes(weighted, loss, pointer(y), base, pointer(every), 0, n, at_anchor, scale, None, None)
                    for j in range(d):
                        shift[j] = kept[j]
                last = np.int64(-1)
                if sampling == ALONG_CHAIN:  # the steps before the first are walked through
                    for begun in range(0, first_step * batch, room):
                        count = min(room, first_step * batch - begun)
                        words(raw, begun, count, key, (round_, first_client + c, r))
                        last = along_chain(
                            raw, rows, count, ends[base : base + n], guide[base : base + n],
                            chain_ends[base : base + n], follows[base : base + n], branching, last,
                        )  # fmt: skip
                h = 0
                while h < H:
                    count = H - h
                    if sampling != FULL:
                        count = min(at_once, count)
                        words(raw, start + h * batch, skip + count * batch, key, (round_, first_client + c, r))
                        if sampling == BY_CHANCE:
                            by_chance(
                                raw[skip:], rows, count * batch, ends[base : base + n], guide[base : base + n]
                            )
                        elif sampling == ALONG_CHAIN:
                            last = along_chain(
                                raw[skip:], rows, count * batch, ends[base : base + n], guide[base : base + n],
                                chain_ends[base : base + n], follows[base : base + n], branching, last,
                            )  # fmt: skip
                        elif sampling == WITH_REPLACEMENT:
                            with_replacement(raw[skip:], rows, count * batch, n)
                        else:
                            without_replacement(raw[skip:], rows, count * batch, batch, order[:n])
                        for i in range(count * batch, count * batch + PADDING):
                            rows[i] = 0
                    if form == DENSE:
                        dense_steps(
                            pointer(x), pointer(y), d, base, pointer(rows), stride, batch, count, pointer(t),
                            pointer(shift), pointer(z), pointer(total), pointer(order), pulled, scale, ahead,
                            portion,
                        )  # fmt: skip
                    elif clipped and several_classes:
                        clipped_softmax_steps(
                            pointer(x), pointer(y), pointer(limits), height, part, classes, base, pointer(rows),
                            stride, batch, count, pointer(t), pointer(shift), pointer(kept), pointer(z),
                            pointer(noise), shrink, back, scale, free, ahead, portion,
                            step_size * noise_scale / batch, noise_key, (round_, first_client + c, r),
                            first_step + h,
                        )  # fmt: skip
                    elif clipped:
                        clipped_steps(
                            loss, pointer(x), pointer(y), pointer(limits), d, base, pointer(rows), stride, batch,
                            count, pointer(t), pointer(shift), pointer(kept), pointer(z), pointer(noise), shrink,
                            back, scale, free, ahead, portion, step_size * noise_scale / batch, noise_key,
                            (round_, first_client + c, r), first_step + h,
                        )  # fmt: skip
                    elif several_classes:
                        softmax_steps(
                            pointer(x), pointer(y), height, part, classes, base, pointer(rows), stride, batch,
                            count, pointer(t), pointer(shift), pointer(kept), pointer(z), shrink, back, scale,
                            free, ahead, portion,
                        )  # fmt: skip
                    elif weighted and on_heap:
                        weighted_steps_on_heap(
                            loss, pointer(x), pointer(m), pointer(y), d, base, batch_rows, stride, batch,
                            count, pointer(t), pointer(shift), pointer(kept), pointer(z), shrink, back, scale,
                            free, at_anchor, ahead, portion,
                        )  # fmt: skip
                    elif weighted:
                        weighted_steps_on_stack(
                            loss, pointer(x), pointer(m), pointer(y), d, base, batch_rows, stride, batch,
                            count, pointer(t), pointer(kept), shrink, back, scale, free, at_anchor, ahead, portion,
                        )  # fmt: skip
                    elif on_heap:
                        steps_on_heap(
                            loss, pointer(x), pointer(m), pointer(y), d, base, batch_rows, stride, batch,
                            count, pointer(t), pointer(shift), pointer(kept), pointer(z), shrink, back, scale,
                            free, at_anchor, ahead, portion,
                        )  # fmt: skip
                    else:
                        steps_on_stack(
                            loss, pointer(x), pointer(m), pointer(y), d, base, batch_rows, stride, batch,
                            count, pointer(t), pointer(kept), shrink, back, scale, free, at_anchor, ahead, portion,
                        )  # fmt: skip
                    ahead += count * portion
                    h += count
                for g in range(classes):
                    for j in range(part):
                        out[r, k, g * part + j] = t[g * tall + j]
        discard(raw)
        for places in (rows, order, every):
            discard(places)
        for vector in (t, shift, kept, total, z, noise, aside):
            discard(vector)

    records = numbers(dtype, 1)
    return compiled_for(
        local_sgd,
        INT, records, records if with_margins else NONE, records, numbers("i8", 1), FLOAT, INT, INT, INT,
        numbers("u8", 1), numbers("i4", 1), numbers("u8", 1), numbers("i4", 1), INT,
        records if clipped else NONE, FLOAT, KEY, *ROUND_ARGUMENTS,
    )  # fmt: skip
