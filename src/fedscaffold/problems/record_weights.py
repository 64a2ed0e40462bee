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


def clipped_slopes(slopes: Array, lengths: Array, clip: float) -> Array:
    """Slopes ℓ' of records x, (records,) or (records, classes), for gradients of norm ‖ℓ'‖ ‖x‖ up to `clip`.

    `lengths` are the norms ‖x‖, (records,).

    A record whose slope is not a number, as where its margin is a difference of infinities, counts as one without
    gradient: no record may change the sum of all by more than its own share, whatever the model is.
    """
    with np.errstate(divide="ignore"):
        limits = np.minimum(clip / lengths, np.finfo(np.float64).max)
    if slopes.ndim == 1:
        return np.where(np.isnan(slopes), 0.0, np.clip(slopes, -limits, limits))
    slopes = np.where(np.isfinite(slopes).all(axis=1, keepdims=True), slopes, 0.0)
    sizes = norms_of_rows(slopes)
    return slopes * (limits / np.maximum(sizes, limits))[:, None]


def norms_of_rows(rows: Array) -> Array:
    """Norms of rows, also where squares would be too large or too small for a float64."""
    with np.errstate(over="ignore", under="ignore"):
        norms = np.asarray(np.linalg.norm(rows, axis=1))
    for k in np.flatnonzero(~((norms > 1e-150) & (norms < 1e150))):
        largest = np.abs(rows[k]).max(initial=0.0)
        if 0.0 < largest < np.inf:
            norms[k] = largest * np.linalg.norm(rows[k] / largest)
    return norms
