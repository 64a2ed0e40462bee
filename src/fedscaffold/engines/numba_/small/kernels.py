"""`kernels.local_sgd_for` for one shape of small steps: features, batch and loss are constants when compiling."""

from typing import Any

import numpy as np

from fedscaffold.core.random.noise import NOISE_GROUP
from fedscaffold.engines.numba_.clipped_steps import after_draw, draw_noise, noise_groups, noise_numbers
from fedscaffold.engines.numba_.compiling import FLOAT, INT, KEY, NONE, ROUND_ARGUMENTS, compiled_for, numbers
from fedscaffold.engines.numba_.intrinsics import discard, on_stack, pointer, prefetch, scratch, shifted
from fedscaffold.engines.numba_.losses import WEIGHTED_LOSSES, WITH_REPLACEMENT
from fedscaffold.engines.numba_.simd import TARGET_COLUMNS
from fedscaffold.engines.numba_.small.steps import step_of_team
from fedscaffold.engines.numba_.steps import CACHE_LINE_NUMBERS, PADDING, worth_reading
from fedscaffold.engines.numba_.stream import with_replacement, without_replacement, words

DRAWS_AT_ONCE = 1024  # of each client of a team


def small_steps_for(
    dim: int, batch: int, loss: int, free: int, dtype: str, with_margins: bool, team: int, clipped: bool = False
) -> Any:
    """The kernel for `dim` features, batches of `batch` records and one loss, `team` clients side by side.

    Batches are uniform, with or without replacement, and the last `free` coordinates are not penalised; `clipped`
    says whether records are clipped and steps get noise, for privacy. The other parameters, those of the kernel,
    and the bits are those of `kernels.local_sgd_for`.
    """
    height = TARGET_COLUMNS if loss in WEIGHTED_LOSSES.values() else 1
    tall = dim + PADDING
    at_once = DRAWS_AT_ONCE // batch // 4 * 4  # steps
    room = DRAWS_AT_ONCE + 2 * PADDING
    noise_room = noise_numbers(dim) if clipped else 0

    def local_sgd(
        loss_: int, x: Any, m: Any, y: Any, offsets: Any, l2: float, free_: int, sampling: int, batch_size: int,
        ends: Any, guide: Any, chain_ends: Any, follows: Any, branching: int,
        limits: Any, noise_scale: float, noise_key: Any,
        theta: Any, correction: Any, anchor: Any, step_size: float, pull: float, local_steps: Any, first_step: int,
        clients: Any,
        key: Any, round_: int, first_client: int, begin: int, end: int, out: Any,
    ) -> None:  # fmt: skip
        """out[r, k] = the model of client clients[r, k] after its local steps, for begin <= k < end."""
        repetitions = theta.shape[0]
        own_cohorts = clients.shape[0] > 1
        largest = 0
        for r in range(clients.shape[0]):
            for k in range(begin, end):
                largest = max(largest, offsets[clients[r, k] + 1] - offsets[clients[r, k]])
        skip = first_step * batch % 4  # blocks of the stream are four words long
        start = first_step * batch - skip
        raw, rows = scratch(room, np.uint32), scratch(team * room, np.int32)
        order = scratch(largest, np.int32)
        for i in range(rows.size):
            rows[i] = 0
        for i in range(order.size):
            order[i] = i
        x_, m_, y_, limits_ = pointer(x), pointer(m), pointer(y), pointer(limits)
        noise = scratch(team * noise_room, x.dtype)
        noise_ = pointer(noise) if clipped else None
        noise_place = noise_filled = noise_group = 0  # of the next step's noise, where it ends, what is drawn next
        t, shift, kept = on_stack(team * tall, x_), on_stack(team * tall, x_), on_stack(team * tall, x_)
        bases = on_stack(team, pointer(offsets))
        ahead, portion = on_stack(team, pointer(offsets)), on_stack(team, pointer(offsets))
        for i in range(team * tall):
            t[i] = shift[i] = kept[i] = 0.0
        shrink, scale = x.dtype.type(1.0 - step_size * (l2 + pull)), x.dtype.type(step_size / batch)
        back = 1.0 - x.dtype.type(1.0 - step_size * l2)
        item, items = 0, (end - begin) * repetitions  # an item is one repetition of one client
        while item < items:
            H = local_steps[
                min(item % repetitions, local_steps.shape[0] - 1),
                min(begin + item // repetitions, local_steps.shape[1] - 1),
            ]
            together = 1  # items of this turn: those that follow and take as many steps
            while together < team and item + together < items:
                other = item + together
                steps = local_steps[
                    min(other % repetitions, local_steps.shape[0] - 1),
                    min(begin + other // repetitions, local_steps.shape[1] - 1),
                ]
                if steps != H:
                    break
                together += 1
            for s in range(team):  # the last item fills places that are left
                mine = item + min(s, together - 1)
                k, r = begin + mine // repetitions, mine % repetitions
                c = clients[r if own_cohorts else 0, k]
                bases[s] = offsets[c]
                xi = correction[min(r, correction.shape[0] - 1), min(k, correction.shape[1] - 1)]
                for j in range(dim):
                    t[s * tall + j] = theta[r, min(k, theta.shape[1] - 1), j]
                    shift[s * tall + j] = kept[s * tall + j] = step_size * xi[j]
                following, later = c, mine + together
                if later < items:
                    following = clients[later % repetitions if own_cohorts else 0, begin + later // repetitions]
                n = offsets[following + 1] - offsets[following]
                portion[s], ahead[s] = 0, offsets[following] * dim
                if following != c and worth_reading(H * batch, n, dim):
                    portion[s] = (n * dim - 1) // H + 1
                    for i in range(0, n * height, CACHE_LINE_NUMBERS):
                        prefetch(y_, offsets[following] * height + i)
                    if clipped:
                        for i in range(0, n, CACHE_LINE_NUMBERS):
                            prefetch(limits_, offsets[following] + i)
            noise_place, noise_filled = first_step * dim % NOISE_GROUP, 0
            noise_group = first_step * dim // NOISE_GROUP
            h = 0
            while h < H:
                count = min(at_once, H - h)
                for s in range(together):
                    k, r = begin + (item + s) // repetitions, (item + s) % repetitions
                    c = clients[r if own_cohorts else 0, k]
                    words(raw, start + h * batch, skip + count * batch, key, (round_, first_client + c, r))
                    drawn, n = rows[s * room : (s + 1) * room], offsets[c + 1] - offsets[c]
                    if sampling == WITH_REPLACEMENT:
                        with_replacement(raw[skip:], drawn, count * batch, n)
                    else:
                        without_replacement(raw[skip:], drawn, count * batch, batch, order[:n])
                for s in range(together, team):
                    for i in range(count * batch):
                        rows[s * room + i] = rows[(together - 1) * room + i]
                for step in range(count):
                    if clipped and noise_place + dim > noise_filled:
                        groups = noise_groups(noise_place + dim - noise_filled)
                        for s in range(team):
                            mine = item + min(s, together - 1)
                            k, r = begin + mine // repetitions, mine % repetitions
                            c = clients[r if own_cohorts else 0, k]
                            draw_noise(
                                shifted(noise_, s * noise_room), noise_place, noise_filled, noise_group,
                                groups, step_size * noise_scale / batch, noise_key, (round_, first_client + c, r),
                            )  # fmt: skip
                        noise_place, noise_filled, noise_group = after_draw(
                            noise_place, noise_filled, noise_group, groups
                        )
                    for s in range(team):
                        for i in range(0, portion[s], CACHE_LINE_NUMBERS):
                            prefetch(x_, ahead[s] + i)
                            if m is not None:
                                prefetch(m_, ahead[s] + i)
                        ahead[s] += portion[s]
                        for j in range(s * tall + dim - free, s * tall + dim):
                            shift[j] = kept[j] - back * t[j]
                    step_of_team(
                        loss, batch, team, x_, m_, y_, dim, bases, pointer(rows), room, step * batch, t, shift,
                        tall, shrink, scale, limits_, noise_, noise_room, noise_place,
                    )  # fmt: skip
                    noise_place += dim
                h += count
            for s in range(together):
                k, r = begin + (item + s) // repetitions, (item + s) % repetitions
                for j in range(dim):
                    out[r, k, j] = t[s * tall + j]
            item += together
        discard(raw)
        discard(rows)
        discard(order)
        discard(noise)

    records = numbers(dtype, 1)
    return compiled_for(
        local_sgd,
        INT, records, records if with_margins else NONE, records, numbers("i8", 1), FLOAT, INT, INT, INT,
        numbers("u8", 1), numbers("i4", 1), numbers("u8", 1), numbers("i4", 1), INT,
        records if clipped else NONE, FLOAT, KEY, *ROUND_ARGUMENTS,
    )  # fmt: skip
