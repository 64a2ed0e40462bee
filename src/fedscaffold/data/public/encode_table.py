"""Rows of a table in an encoding that was made before, with their targets."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array
from fedscaffold.data.arrow import blocks, by_name, frame_source, labels
from fedscaffold.data.checks.records import check_records
from fedscaffold.data.columns import check_names, pick_all, some
from fedscaffold.data.encoding import Encoding
from fedscaffold.problems.record_weights import TARGET


def encode_table(
    table: Any, encoding: Encoding, *, target_shift: float, target_scale: float, limit: float | None = None,
    limits: tuple[float, float] | None = None,
) -> tuple[Array, Array]:  # fmt: skip
    """Features and targets of all rows of a table.

    Features are (rows, dim); targets are (rows,) or, with offsets and weights, (rows, 3).

    Parameters
    ----------
    table
        A frame of any library that `data.from_frame` takes.
    encoding
        How rows become numbers.
    target_shift, target_scale
        A numeric target y becomes (y − target_shift)/target_scale; where the mean is the exponential of the
        margin, target_shift is added to the margin.
    limit
        Encoded numbers beyond this, up or down, count as the limit, and unknown values of a category as none of
        the known ones; None refuses the latter and takes all numbers as they are.
    limits
        Numeric targets below the first or above the second count as that; None takes all as they are.
    """
    x = encoding.encode(table, unknown="error" if limit is None else "ignore")
    source = frame_source(table)
    check_names(source.names)
    wanted = pick_all(source.names, encoding.record_columns)
    read = blocks(source.open(wanted)(wanted))
    parts = [_targets(by_name(block), encoding, limits) for block in read if block.num_rows]
    y = np.concatenate(parts) if parts else np.empty(encoding.record_shape(0))
    y = encoding.family.standardized(y, target_shift, target_scale)
    return (x if limit is None else np.clip(x, -limit, limit)), y


def _targets(columns: Mapping[str, Any], encoding: Encoding, limits: tuple[float, float] | None) -> Array:
    """Targets of some rows, with offsets and weights; refused where the kind of model cannot have them.

    Those beyond their limits count as the nearer one, whatever the kind of model would say of them.
    """
    name, classes = encoding.target, encoding.classes
    if classes is not None:
        unknown = set(labels(name, columns[name]).unique().to_pylist()) - set(classes)
        if unknown:
            raise InvalidInput(
                f"the target {name!r} has the values {some(unknown)}, but its classes are {some(classes)}"
            )
    y = encoding.targets(columns)
    if limits is not None:
        numbers = y if y.ndim == 1 else y[:, TARGET]
        within = np.where(np.isfinite(numbers), np.clip(numbers, *limits), numbers)
        y = within if y.ndim == 1 else np.column_stack([within, y[:, TARGET + 1 :]])
    check_records(y, encoding)
    return y
