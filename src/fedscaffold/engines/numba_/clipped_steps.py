"""Local steps for privacy at the level of records: every record's gradient is clipped, every step gets noise.

A record's gradient is ℓ' x, so that clipping it to norm C bounds ℓ' by C/‖x‖, which is found once per record. The
noise goes the way of the correction: with γξ it is what a step subtracts besides the gradient.
"""

import math
from typing import Any

from numba import njit

from fedscaffold.core.random.noise import NOISE_GROUP
from fedscaffold.core.random.normals import LANES
from fedscaffold.engines.numba_.compiling import compiled, inlined
from fedscaffold.engines.numba_.drawing import draw_step_noise
from fedscaffold.engines.numba_.intrinsics import prefetch, shifted
from fedscaffold.engines.numba_.losses import LOGISTIC, RIDGE
from fedscaffold.engines.numba_.steps import CACHE_LINE_NUMBERS, PADDING, descend, margins, slopes


@njit(inline="always")
def noise_numbers(d: int) -> int:
    """Room that `draw_noise` needs for steps of d numbers."""
    return d + 3 * NOISE_GROUP


@njit(inline="always")
def noise_groups(missing: int) -> int:
    """Groups to draw for so many missing numbers: they come in twos."""
    return (missing + 2 * NOISE_GROUP - 1) // (2 * NOISE_GROUP) * 2


@inlined
def draw_noise(
    noise: Any, place: int, filled: int, group: int, groups: int, scale: float, key: Any, counter: Any
) -> None:
    """Move noise[place], ..., noise[filled − 1] to the front, and put `groups` groups behind, from `group` on.

    Before the first draw filled is 0, and place the numbers that are left out: a step then takes its numbers from
    noise[place] on, later from noise[0] on.
    """
    left = max(filled - place, 0)
    for j in range(left):
        noise[j] = noise[place + j]
    draw_step_noise(shifted(noise, left), group * LANES, groups, key, counter, scale)


@njit(inline="always")
def after_draw(place: int, filled: int, group: int, groups: int) -> tuple[int, int, int]:
    """place, filled and group after `draw_noise`."""
    return max(place - filled, 0), max(filled - place, 0) + groups * NOISE_GROUP, group + groups


@compiled
def clipped_steps(
    loss: int, x: Any, y: Any, limits: Any, d: int, base: int, rows: Any, stride: int, batch: int, count: int,
    theta: Any, shift: Any, kept: Any, z: Any, noise: Any, shrink: Any, back: float, scale: Any, free: int,
    ahead: int, portion: int, noise_scale: float, key: Any, counter: Any, first_step: int,
) -> None:  # fmt: skip
    """`steps.steps` with slopes up to `limits` and noise of standard deviation noise_scale in every coordinate.

    noise has room for `noise_numbers` numbers.
    """
    place, filled, group = first_step * d % NOISE_GROUP, 0, first_step * d // NOISE_GROUP
    for h in range(count):
        for k in range(0, portion, CACHE_LINE_NUMBERS):
            prefetch(x, ahead + h * portion + k)
        first = h * stride
        if place + d > filled:
            groups = noise_groups(place + d - filled)
            draw_noise(noise, place, filled, group, groups, noise_scale, key, counter)
            place, filled, group = after_draw(place, filled, group, groups)
        margins(x, d, base, rows, first, batch, theta, z)
        if loss in (RIDGE, LOGISTIC):
            slopes(False, loss, y, base, rows, first, batch, z, scale, None, limits)
        else:
            slopes(True, loss, y, base, rows, first, batch, z, scale, None, limits)
        for j in range(d - free):
            shift[j] = kept[j] + noise[place + j]
        for j in range(d - free, d):
            shift[j] = (kept[j] - back * theta[j]) + noise[place + j]
        place += d
        descend(x, d, base, rows, first, batch, theta, z, shrink, shift)


@compiled
def clipped_softmax_steps(
    x: Any, y: Any, limits: Any, height: int, d: int, classes: int, base: int, rows: Any, stride: int, batch: int,
    count: int, theta: Any, shift: Any, kept: Any, z: Any, noise: Any, shrink: Any, back: float, scale: Any,
    free: int, ahead: int, portion: int, noise_scale: float, key: Any, counter: Any, first_step: int,
) -> None:  # fmt: skip
    """`steps.softmax_steps` with slopes of norm up to `limits`, and noise."""
    tall, wide, size = d + PADDING, batch + PADDING, classes * d
    place, filled, group = first_step * size % NOISE_GROUP, 0, first_step * size // NOISE_GROUP
    for h in range(count):
        for k in range(0, portion, CACHE_LINE_NUMBERS):
            prefetch(x, ahead + h * portion + k)
        first = h * stride
        if place + size > filled:
            groups = noise_groups(place + size - filled)
            draw_noise(noise, place, filled, group, groups, noise_scale, key, counter)
            place, filled, group = after_draw(place, filled, group, groups)
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
                shift[k * tall + j] = kept[k * tall + j] + noise[place + k * d + j]
            for j in range(k * tall + d - free, k * tall + d):
                shift[j] -= back * theta[j]
            block, own_shift = shifted(theta, k * tall), shifted(shift, k * tall)
            descend(x, d, base, rows, first, batch, block, shifted(z, k * wide), shrink, own_shift)
        place += size
