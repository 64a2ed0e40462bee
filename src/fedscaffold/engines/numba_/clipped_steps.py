"""Local steps for privacy at the level of records: every record's gradient is clipped, every step gets noise.

A record's gradient is ℓ' x, so that clipping it to norm C bounds ℓ' by C/‖x‖, which is found once per record. The
noise goes the way of the correction: with γξ it is what a step subtracts besides the gradient.
"""

import math
from typing import Any

from numba import njit

from fedscaffold.core.random.normals import GROUP, LANES
from fedscaffold.engines.numba_ import simd
from fedscaffold.engines.numba_.compiling import compiled
from fedscaffold.engines.numba_.drawing import draw_normals
from fedscaffold.engines.numba_.intrinsics import prefetch, shifted
from fedscaffold.engines.numba_.losses import LOGISTIC, POISSON, RIDGE, WEIGHTED_LOGISTIC, WEIGHTED_RIDGE
from fedscaffold.engines.numba_.steps import (
    CACHE_LINE_NUMBERS,
    PADDING,
    descend,
    gamma,
    logistic,
    margins,
    poisson,
    ridge,
    weighted_logistic,
    weighted_ridge,
)

NOISE_NUMBERS = 512


def clamped(lanes: simd.Lanes, scale: Any, z: Any, limit: Any) -> Any:
    """z, but no further from 0 than scale · limit."""
    largest = lanes.builder.fmul(scale, limit)
    return lanes.call("minnum", lanes.call("maxnum", z, lanes.builder.fneg(largest)), largest)


clamp = simd.derivatives(clamped)  # of the batch's slopes, in place of targets their limits


@njit(inline="always")
def noise_at_once(d: int) -> int:
    """Steps whose noise is drawn together."""
    return max(1, NOISE_NUMBERS // d)


@njit(inline="always")
def noise_numbers(d: int) -> int:
    """Room that the noise takes, in whole groups."""
    return noise_at_once(d) * d + 2 * GROUP


@compiled
def clipped_steps(
    loss: int, x: Any, y: Any, limits: Any, d: int, base: int, rows: Any, stride: int, batch: int, count: int,
    theta: Any, shift: Any, kept: Any, z: Any, noise: Any, shrink: Any, back: float, scale: Any, free: int,
    ahead: int, portion: int, noise_scale: float, key: Any, counter: Any, first_step: int,
) -> None:  # fmt: skip
    """`steps.steps` with slopes up to `limits` and noise of standard deviation noise_scale in every coordinate.

    noise has room for `noise_numbers` numbers: those of several steps are drawn together.
    """
    at_once = noise_at_once(d)
    for h in range(count):
        for k in range(0, portion, CACHE_LINE_NUMBERS):
            prefetch(x, ahead + h * portion + k)
        first = h * stride
        place = h % at_once * d
        if place == 0:
            begin = (first_step + h) * d
            groups = (begin % GROUP + min(at_once, count - h) * d + GROUP - 1) // GROUP
            draw_normals(noise, noise, begin // GROUP * LANES, groups, key, counter, noise_scale)
            own_noise = shifted(noise, begin % GROUP)
        margins(x, d, base, rows, first, batch, theta, z)
        if loss == RIDGE:
            ridge(y, base, rows, first, batch, z, scale, None)
        elif loss == LOGISTIC:
            logistic(y, base, rows, first, batch, z, scale, None)
        elif loss == WEIGHTED_RIDGE:
            weighted_ridge(y, base, rows, first, batch, z, scale, None)
        elif loss == WEIGHTED_LOGISTIC:
            weighted_logistic(y, base, rows, first, batch, z, scale, None)
        elif loss == POISSON:
            poisson(y, base, rows, first, batch, z, scale, None)
        else:
            gamma(y, base, rows, first, batch, z, scale, None)
        clamp(limits, base, rows, first, batch, z, scale, None)
        for j in range(d):
            shift[j] = kept[j] + own_noise[place + j]
        for j in range(d - free, d):
            shift[j] -= back * theta[j]
        descend(x, d, base, rows, first, batch, theta, z, shrink, shift)


@compiled
def clipped_softmax_steps(
    x: Any, y: Any, limits: Any, height: int, d: int, classes: int, base: int, rows: Any, stride: int, batch: int,
    count: int, theta: Any, shift: Any, kept: Any, z: Any, noise: Any, shrink: Any, back: float, scale: Any,
    free: int, ahead: int, portion: int, noise_scale: float, key: Any, counter: Any, first_step: int,
) -> None:  # fmt: skip
    """`steps.softmax_steps` with slopes of norm up to `limits`, and noise."""
    tall, wide = d + PADDING, batch + PADDING
    for h in range(count):
        for k in range(0, portion, CACHE_LINE_NUMBERS):
            prefetch(x, ahead + h * portion + k)
        first = h * stride
        begin = (first_step + h) * classes * d
        groups = (begin % GROUP + classes * d + GROUP - 1) // GROUP
        draw_normals(noise, noise, begin // GROUP * LANES, groups, key, counter, noise_scale)
        for k in range(classes):
            margins(x, d, base, rows, first, batch, shifted(theta, k * tall), shifted(z, k * wide))
        for b in range(batch):
            row = base + rows[first + b]
            label = y[row * height]
            if not 0.0 <= label < classes:  # memory has changed since the labels were checked: the run ends
                z[b] = math.nan
                continue
            largest = z[b]
            for k in range(1, classes):
                largest = max(largest, z[k * wide + b])
            total = 0.0
            for k in range(classes):
                value = math.exp(z[k * wide + b] - largest)
                z[k * wide + b] = value
                total += value
            own = 1.0 if height == 1 else y[row * height + height - 1]
            square = 0.0
            for k in range(classes):
                slope = own * (z[k * wide + b] / total - (1.0 if k == int(label) else 0.0))
                z[k * wide + b] = slope
                square += slope * slope
            shorter = scale * min(1.0, limits[row] / max(math.sqrt(square), 1e-300))
            for k in range(classes):
                z[k * wide + b] *= shorter
        for k in range(classes):
            for j in range(d):
                shift[k * tall + j] = kept[k * tall + j] + noise[begin % GROUP + k * d + j]
            for j in range(k * tall + d - free, k * tall + d):
                shift[j] -= back * theta[j]
            block, own_shift = shifted(theta, k * tall), shifted(shift, k * tall)
            descend(x, d, base, rows, first, batch, block, shifted(z, k * wide), shrink, own_shift)
