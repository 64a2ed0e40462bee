"""`local_sgd` for clients that are distributions: records are drawn into a buffer that fits the cache, and used.

What a client is like is computed when its round begins. Ridge regression runs in u = θ − w_c, where the targets
are the noise alone:  u ← (1 − γ l2) u − γ(ξ + l2 w_c) − (γ/B) Σ (xᵀu − σε) x.  Logistic regression draws labels by
the margins of w_c.
"""

from typing import Any

import numpy as np

from fedscaffold.core.random.normals import ASIDE, GROUP, LANES, NOBODY
from fedscaffold.engines.numba_.compiling import FLOAT, INT, KEY, ROUND_ARGUMENTS, compiled, compiled_for, numbers
from fedscaffold.engines.numba_.drawing import draw_features, draw_labels, draw_normals, draw_uniforms
from fedscaffold.engines.numba_.intrinsics import discard, pointer, scratch, shifted
from fedscaffold.engines.numba_.losses import RIDGE
from fedscaffold.engines.numba_.steps import PADDING, margins, steps_on_heap, steps_on_stack

NUMBERS_AT_ONCE = 4096  # features drawn ahead of the steps that use them, 32 kilobytes; at least one step's


@compiled
def client_law(
    w: Any, room: Any, id_: int, own_key: Any, scale_spread: float, heterogeneity: float, centre: Any, tilt: Any
) -> float:
    """w[:d] = w_c, and s_c; room has whole groups of numbers for d, and one more."""
    d = centre.size
    groups = (d + GROUP - 1) // GROUP
    draw_normals(pointer(room), pointer(room), 0, groups, own_key, (NOBODY, id_, NOBODY), 1.0 / np.sqrt(d))
    aside = shifted(pointer(room), groups * GROUP)
    draw_uniforms(aside, aside, ASIDE, 1, own_key, (NOBODY, id_, NOBODY), 2.0**-32)
    tau = 2.0 * aside[0] - 1.0
    for j in range(d):
        w[j] = centre[j] + heterogeneity * (room[j] + tau * tilt[j])
    return 1.0 + scale_spread * tau


def stream_sgd_for(dim: int | None, loss: int, dtype: str, on_heap: bool) -> Any:
    """The kernel for one loss, and for one number of features or for any (None); these give the same bits."""

    def stream_sgd(
        loss_: int, ids: Any, own_key: Any, scale_spread: float, heterogeneity: float, roots: Any, centre: Any,
        tilt: Any, noise: float, l2: float, batch: int, like: Any,
        theta: Any, correction: Any, anchor: Any, step_size: float, pull: float, local_steps: Any, first_step: int,
        clients: Any,
        key: Any, round_: int, first_client: int, begin: int, end: int, out: Any,
    ) -> None:  # fmt: skip
        """out[r, k] = the model of client clients[r, k] after its local steps, for begin <= k < end.

        The first row of arguments is `tables.Sources`; the others are those of `kernels.local_sgd_for`.
        """
        repetitions = theta.shape[0]
        d = theta.shape[2] if dim is None else dim
        own_cohorts = clients.shape[0] > 1
        at_once = max(1, NUMBERS_AT_ONCE // (batch * d))  # steps
        records = at_once * batch
        tile = scratch((records + 2) * d + 2 * GROUP, np.float64)  # √spectrum, over and over
        for i in range(tile.size):
            tile[i] = roots[i % d]
        x = scratch(records * d + 2 * GROUP, like.dtype)
        y = scratch(records + 2 * GROUP + PADDING, like.dtype)
        z = scratch(records + 2 * GROUP + PADDING, like.dtype)
        rows = scratch(records + PADDING, np.int32)
        for i in range(rows.size):
            rows[i] = i if i < records else 0
        room = scratch(d + 3 * GROUP, np.float64)
        w, t = scratch(d + PADDING, like.dtype), scratch(d + PADDING, like.dtype)
        shift, kept = scratch(d + PADDING, like.dtype), scratch(d + PADDING, like.dtype)
        for j in range(d + PADDING):
            w[j] = t[j] = shift[j] = kept[j] = 0.0
        exact = scratch(d, np.float64)  # w_c in double precision
        shrink, share = like.dtype.type(1.0 - step_size * (l2 + pull)), like.dtype.type(step_size / batch)
        scale = 1.0

        for k in range(begin, end):
            for r in range(repetitions):
                c = clients[r if own_cohorts else 0, k]
                H = local_steps[min(r, local_steps.shape[0] - 1), min(k, local_steps.shape[1] - 1)]
                if own_cohorts or r == 0:  # another client than before
                    scale = np.sqrt(
                        client_law(exact, room, ids[c], own_key, scale_spread, heterogeneity, centre, tilt)
                    )
                    for j in range(d):
                        w[j] = exact[j]
                xi = correction[min(r, correction.shape[0] - 1), min(k, correction.shape[1] - 1)]
                for j in range(d):
                    begun = theta[r, min(k, theta.shape[1] - 1), j]
                    if loss == RIDGE:
                        t[j] = begun - exact[j]
                        shift[j] = kept[j] = step_size * (xi[j] + (l2 + pull) * exact[j])
                    else:
                        t[j] = begun
                        shift[j] = kept[j] = step_size * xi[j]
                counter = (round_, first_client + c, r)
                h = 0
                while h < H:
                    count = min(at_once, H - h)
                    first = (first_step + h) * batch  # record
                    skip = first * d % GROUP
                    groups = (skip + count * batch * d + GROUP - 1) // GROUP
                    turned = shifted(pointer(tile), (d - skip % d) % d)
                    draw_features(pointer(x), turned, first * d // GROUP * LANES, groups, key, counter, scale)
                    features = shifted(pointer(x), skip)
                    aside = first % GROUP
                    groups = (aside + count * batch + GROUP - 1) // GROUP
                    block = ASIDE + first // GROUP * LANES
                    if loss == RIDGE:
                        draw_normals(pointer(y), pointer(tile), block, groups, key, counter, noise)
                    else:
                        margins(
                            features, d, 0, pointer(rows), 0, count * batch, pointer(w), shifted(pointer(z), aside)
                        )
                        draw_labels(pointer(y), pointer(z), block, groups, key, counter, 2.0**-32)
                    targets = shifted(pointer(y), aside)
                    if on_heap:
                        steps_on_heap(
                            loss, features, None, targets, d, 0, pointer(rows), batch, batch, count, pointer(t),
                            pointer(shift), pointer(kept), pointer(z), shrink, 0.0, share, 0, None, 0, 0,
                        )  # fmt: skip
                    else:
                        steps_on_stack(
                            loss, features, None, targets, d, 0, pointer(rows), batch, batch, count, pointer(t),
                            pointer(kept), shrink, 0.0, share, 0, None, 0, 0,
                        )  # fmt: skip
                    h += count
                for j in range(d):
                    out[r, k, j] = t[j] + exact[j] if loss == RIDGE else t[j]
        for numbers_ in (tile, room, exact):
            discard(numbers_)
        for numbers_ in (x, y, z, w, t, shift, kept):
            discard(numbers_)
        discard(rows)

    vector = numbers("f8", 1)
    return compiled_for(
        stream_sgd,
        INT, numbers("i8", 1), KEY, FLOAT, FLOAT, vector, vector, vector, FLOAT, FLOAT, INT,
        numbers(dtype, 1), *ROUND_ARGUMENTS,
    )  # fmt: skip
