"""Offsets and weights of single records, kept beside their targets.

The targets of a problem with offsets or sample weights have three numbers a record: target, offset o and weight s.
Its losses are s ℓ(xᵀθ + o, y).
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedscaffold.core.checks import numbers
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array

TARGET, OFFSET, WEIGHT = 0, 1, 2  # the columns
COLUMNS = 3
TINY = 1e-300  # in place of the norm of a record that is 0, whose gradient is 0 too


def with_columns(targets: Array, offsets: NDArray[np.int64], *, sample_weight: Any, offset: Any) -> Array:
    """Targets (records,) with offsets and weights as (records, 3); those that are None are 0 and 1."""
    columns = np.empty((targets.size, COLUMNS))
    columns[:, TARGET] = targets
    columns[:, OFFSET] = 0.0 if offset is None else one_per_record("offset", offset, offsets)
    columns[:, WEIGHT] = 1.0 if sample_weight is None else one_per_record("sample_weight", sample_weight, offsets)
    refuse_records(columns[:, WEIGHT] < 0.0, columns[:, WEIGHT], offsets, "sample weights must not be negative")
    if not columns[:, WEIGHT].any():
        raise InvalidInput("all sample weights are 0; give some records a positive weight")
    return columns


def plain_columns(y: Array) -> Array:
    """Targets with offsets and weights as (records, 3), whatever their form: 0 and 1 where they have none."""
    if y.ndim > 1:
        return y
    return np.column_stack([y, np.zeros(len(y)), np.ones(len(y))])


def one_per_record(name: str, given: Any, offsets: NDArray[np.int64]) -> Array:
    """One finite number per record, from an array (N, n) or a sequence with one array per client."""
    try:
        parts = [numbers(part) for part in given]
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"{name} must hold one number per record, one array per client: {error}") from None
    sizes = np.diff(offsets)
    if len(parts) != sizes.size:
        raise InvalidInput(f"{name} has {len(parts)} clients, but y has {sizes.size}")
    for client, (part, size) in enumerate(zip(parts, sizes, strict=True)):
        if part.shape != (size,):
            raise InvalidInput(f"client {client} has {size} records, but its {name} has shape {part.shape}")
    found = np.concatenate(parts)
    refuse_records(~np.isfinite(found), found, offsets, f"{name} must be finite")
    return found


def refuse_records(bad: NDArray[np.bool_], values: Array, offsets: NDArray[np.int64], rule: str) -> None:
    """Raise InvalidInput that names the first bad record, if there is one, and the rule that it breaks."""
    if bad.any():
        row = int(bad.argmax())
        client = int(np.searchsorted(offsets, row, side="right")) - 1
        raise InvalidInput(f"{rule}; client {client}, record {row - offsets[client]} has {values[row]:g}")


def of_records(function: Callable[[Array, Array], Array], z: Array, y: Array) -> Array:
    """Function of margins and targets, (records,): s · function(z + o, y) where y has three columns."""
    if y.ndim == 1:
        return function(z, y)
    return y[:, WEIGHT] * function(z + y[:, OFFSET], y[:, TARGET])


def clipped_slopes(slopes: Array, x: Array, clip: float) -> Array:
    """Slopes ℓ' of records x, (records,) or (records, classes), for gradients of norm ‖ℓ'‖ ‖x‖ up to `clip`."""
    lengths = np.linalg.norm(x, axis=1)
    if slopes.ndim == 1:  # where e^z overflows, a slope is infinite, and clipped to the same norm
        most = clip / np.maximum(lengths, TINY)
        return np.clip(slopes, -most, most)
    factors = clip / np.maximum(np.linalg.norm(slopes, axis=1) * lengths, clip)
    return slopes * factors[:, None]
