"""Local steps of one client: the batch in groups of eight records, then four, two, one.

Gradients are scale·ℓ'(mᵀθ, y) x: with m = x those of ridge and logistic regression, with m = φ(s) − λφ(s') and
x = φ(s) those of temporal differences. Dense records are whole linear systems. With several classes θ and the
margins are one vector after another, each followed by room for a whole vector of the machine.
"""

import math
from typing import Any

from fedscaffold.engines.numba_ import simd
from fedscaffold.engines.numba_.compiling import compiled, inlined
from fedscaffold.engines.numba_.intrinsics import on_stack, prefetch, shifted
from fedscaffold.engines.numba_.losses import POISSON, RIDGE, WEIGHTED_LOGISTIC, WEIGHTED_RIDGE
from fedscaffold.engines.numba_.softmax import softmax, softmax_of_record

PADDING = simd.VECTOR_BYTES // 4  # so that whole vectors of floats fit behind any length
CACHE_LINE_NUMBERS = 8

margins_8, margins_4, margins_2, margins_1 = (simd.margins(g) for g in (8, 4, 2, 1))
open_8, open_4, open_2, open_1 = (simd.descent(g, opening=True) for g in (8, 4, 2, 1))
descend_8, descend_4, descend_2, descend_1 = (simd.descent(g, opening=False) for g in (8, 4, 2, 1))
ridge = simd.derivatives(simd.ridge_derivative)
logistic = simd.derivatives(simd.logistic_derivative)
weighted_ridge = simd.derivatives(simd.ridge_derivative, weighted=True)
weighted_logistic = simd.derivatives(simd.logistic_derivative, weighted=True)
poisson = simd.derivatives(simd.poisson_derivative, weighted=True)
gamma = simd.derivatives(simd.gamma_derivative, weighted=True)
shares, weighted_shares = softmax(weighted=False), softmax(weighted=True)
share, weighted_share = softmax_of_record(weighted=False), softmax_of_record(weighted=True)


@inlined
def worth_reading(draws: int, records: int, width: int) -> bool:
    """Whether to read all records of the next client ahead, one after another, of which `draws` will be drawn.

    Short records come faster so even where a quarter of them will be needed, those of a hundred numbers or more
    only where most will, as measured: the machine reads the numbers of a long record ahead by itself.
    """
    return max(1, min(4, 128 // width)) * draws >= records


@inlined
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


@inlined
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


@inlined
def slopes(
    weighted: bool, loss: int, y: Any, base: int, rows: Any, first: int, batch: int, z: Any, scale: Any,
    aside: Any, limits: Any,
) -> None:  # fmt: skip
    """z_b ← scale·ℓ'(z_b, y_b) − aside_b for the batch's records; `aside` is of all of the client's, or None.

    With limits of all records, not None, slopes are clipped to them.
    """
    if weighted:
        if loss == WEIGHTED_RIDGE:
            weighted_ridge(y, base, rows, first, batch, z, scale, aside, limits)
        elif loss == WEIGHTED_LOGISTIC:
            weighted_logistic(y, base, rows, first, batch, z, scale, aside, limits)
        elif loss == POISSON:
            poisson(y, base, rows, first, batch, z, scale, aside, limits)
        else:
            gamma(y, base, rows, first, batch, z, scale, aside, limits)
    elif loss == RIDGE:
        ridge(y, base, rows, first, batch, z, scale, aside, limits)
    else:
        logistic(y, base, rows, first, batch, z, scale, aside, limits)


@inlined
def steps(
    weighted: bool, loss: int, x: Any, m: Any, y: Any, d: int, base: int, rows: Any, stride: int, batch: int,
    count: int, theta: Any, shift: Any, kept: Any, z: Any, shrink: Any, back: float, scale: Any, free: int,
    at_anchor: Any, ahead: int, portion: int,
) -> None:  # fmt: skip
    """`count` local steps of one client; shift = kept = γξ, shrink = 1 − γ(l2 + pull), back = γ·l2, scale = γ/B.

    `weighted` says whether records have three targets; callers give it as a constant, so that kernels for one
    target are compiled without the rest.

    Step h uses the records rows[h·stride], ..., and prefetches `portion` numbers of x from `ahead` on. Margins are
    taken with m, or where that is None with x: which of the two is settled when compiling. The last `free`
    coordinates are not penalised: what l2 takes from them, they get back through shift. at_anchor holds
    scale·ℓ'(m_iᵀa, y_i) of all records of the client at an anchor a, which is subtracted; None without one.
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
        slopes(weighted, loss, y, base, rows, first, batch, z, scale, at_anchor, None)
        for j in range(d - free, d):
            shift[j] = kept[j] - back * theta[j]
        descend(x, d, base, rows, first, batch, theta, z, shrink, shift)


@compiled
def steps_on_heap(
    loss: int, x: Any, m: Any, y: Any, d: int, base: int, rows: Any, stride: int, batch: int, count: int,
    theta: Any, shift: Any, kept: Any, z: Any, shrink: Any, back: float, scale: Any, free: int, at_anchor: Any,
    ahead: int, portion: int,
) -> None:  # fmt: skip
    """`steps`, compiled once for any length of vectors."""
    steps(
        False, loss, x, m, y, d, base, rows, stride, batch, count, theta, shift, kept, z, shrink, back, scale,
        free, at_anchor, ahead, portion,
    )  # fmt: skip


@compiled
def steps_on_stack(
    loss: int, x: Any, m: Any, y: Any, d: int, base: int, rows: Any, stride: int, batch: int, count: int,
    theta: Any, shift: Any, shrink: Any, back: float, scale: Any, free: int, at_anchor: Any, ahead: int,
    portion: int,
) -> None:  # fmt: skip
    """`steps` on copies of θ and shift that provably alias nothing."""
    length = d + PADDING
    t, s, z = on_stack(length, x), on_stack(length, x), on_stack(batch + PADDING, x)
    for j in range(length):
        t[j] = theta[j]
        s[j] = shift[j]
    steps(
        False, loss, x, m, y, d, base, rows, stride, batch, count, t, s, shift, z, shrink, back, scale, free,
        at_anchor, ahead, portion,
    )  # fmt: skip
    for j in range(d):
        theta[j] = t[j]


@compiled
def weighted_steps_on_heap(
    loss: int, x: Any, m: Any, y: Any, d: int, base: int, rows: Any, stride: int, batch: int, count: int,
    theta: Any, shift: Any, kept: Any, z: Any, shrink: Any, back: float, scale: Any, free: int, at_anchor: Any,
    ahead: int, portion: int,
) -> None:  # fmt: skip
    """`steps_on_heap` for records with offsets and weights."""
    steps(
        True, loss, x, m, y, d, base, rows, stride, batch, count, theta, shift, kept, z, shrink, back, scale,
        free, at_anchor, ahead, portion,
    )  # fmt: skip


@compiled
def weighted_steps_on_stack(
    loss: int, x: Any, m: Any, y: Any, d: int, base: int, rows: Any, stride: int, batch: int, count: int,
    theta: Any, shift: Any, shrink: Any, back: float, scale: Any, free: int, at_anchor: Any, ahead: int,
    portion: int,
) -> None:  # fmt: skip
    """`steps_on_stack` for records with offsets and weights."""
    length = d + PADDING
    t, s, z = on_stack(length, x), on_stack(length, x), on_stack(batch + PADDING, x)
    for j in range(length):
        t[j] = theta[j]
        s[j] = shift[j]
    steps(
        True, loss, x, m, y, d, base, rows, stride, batch, count, t, s, shift, z, shrink, back, scale, free,
        at_anchor, ahead, portion,
    )  # fmt: skip
    for j in range(d):
        theta[j] = t[j]


@compiled
def dense_steps(
    A: Any, b: Any, d: int, base: int, rows: Any, stride: int, batch: int, count: int,
    theta: Any, shift: Any, z: Any, total: Any, every: Any, pulled: float, scale: Any, ahead: int, portion: int,
) -> None:  # fmt: skip
    """`count` steps θ ← θ − shift − pulled·θ − scale Σ_i (A_i θ − b_i) of one client.

    The rows of A_i are margins' records; every is 0, 1, ..., d − 1.
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
            theta[j] -= shift[j] + pulled * theta[j] + scale * total[j]


@inlined
def two(vectors: Any, k: int, stride: int) -> Any:
    """The k-th vector and the next, which begin `stride` numbers apart."""
    return shifted(vectors, k * stride), shifted(vectors, (k + 1) * stride)


@inlined
def four(vectors: Any, k: int, stride: int) -> Any:
    """The k-th vector and the three after it."""
    return two(vectors, k, stride) + two(vectors, k + 2, stride)


@compiled
def softmax_steps(
    x: Any, y: Any, height: int, d: int, classes: int, base: int, rows: Any, stride: int, batch: int, count: int,
    theta: Any, shift: Any, kept: Any, z: Any, shrink: Any, back: float, scale: Any, free: int, ahead: int,
    portion: int,
) -> None:  # fmt: skip
    """`steps` for several classes: θ_k ← shrink·θ_k − shift_k − scale Σ_b (p_k(x_b) − [y_b = k]) x_b.

    y has `height` numbers a record: its class, or class, offset and weight, by which the sum is then weighted.
    """
    tall, wide = d + PADDING, batch + PADDING if batch > 1 else 1
    for h in range(count):
        for k in range(0, portion, CACHE_LINE_NUMBERS):
            prefetch(x, ahead + h * portion + k)
        first = h * stride
        by_four = classes // 4 * 4 if batch == 1 else 0  # classes for which a record is read once; else it is two
        for k in range(0, by_four, 4):
            margins_1(x, d, base, rows, first, four(theta, k, tall), shifted(z, k), 0)
        for k in range(by_four, classes - 1, 2):
            margins(x, d, base, rows, first, batch, two(theta, k, tall), two(z, k, wide))
        if classes % 2:
            k = classes - 1
            margins(x, d, base, rows, first, batch, shifted(theta, k * tall), shifted(z, k * wide))
        if batch == 1 and height == 1:
            share(y, base, rows, first, z, classes, scale)
        elif batch == 1:
            weighted_share(y, base, rows, first, z, classes, scale)
        elif height == 1:
            shares(y, base, rows, first, batch, z, wide, classes, scale)
        else:
            weighted_shares(y, base, rows, first, batch, z, wide, classes, scale)
        for b in range(batch):
            place = (base + rows[first + b]) * height
            label = y[place]
            if 0.0 <= label < classes:
                z[int(label) * wide + b] -= scale if height == 1 else scale * y[place + height - 1]
            else:  # memory has changed since the labels were checked: the run ends as diverged
                z[b] = math.nan
        for k in range(classes):
            for j in range(k * tall + d - free, k * tall + d):
                shift[j] = kept[j] - back * theta[j]
        for k in range(0, by_four, 4):
            models, shifts = four(theta, k, tall), four(shift, k, tall)
            open_1(x, d, base, rows, first, models, four(z, k, wide), 0, shrink, shifts)
        for k in range(by_four, classes - 1, 2):
            models, shifts = two(theta, k, tall), two(shift, k, tall)
            descend(x, d, base, rows, first, batch, models, two(z, k, wide), shrink, shifts)
        if classes % 2:
            k = classes - 1
            block, own = shifted(theta, k * tall), shifted(shift, k * tall)
            descend(x, d, base, rows, first, batch, block, shifted(z, k * wide), shrink, own)
