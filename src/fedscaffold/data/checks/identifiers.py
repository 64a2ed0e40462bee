"""Columns that look like identifiers: a number or text that names the row and says nothing about it."""

import re
from typing import Any

import numpy as np

from fedscaffold.core.errors import DataWarning
from fedscaffold.data.arrow import is_text, load_pyarrow

MIN_ROWS = 20  # fewer rows may well have different values by chance
MANY_DIGITS = 10**8
ID_NAME = re.compile(
    r"(^|[^a-z])(id|uid|uuid|guid|key|nr|no|ssn|mrn)([^a-z]|$)|(?-i:[a-z])(?-i:ID|Id)$", re.IGNORECASE
)


def looks_like_identifiers(name: str, array: Any) -> bool:
    """Whether a column's first rows look like identifiers.

    Whole numbers that are all different and in order, or of nine digits and more, text that is different in
    every row, or many whole numbers under a name such as "id" or "patient_id".
    """
    types, kind = load_pyarrow().types, array.type
    if len(array) - array.null_count < MIN_ROWS:
        return False
    if is_text(kind):
        return len(array.unique()) == len(array)
    if not types.is_integer(kind):
        return False
    values = array.drop_null().to_numpy(zero_copy_only=False)
    different = np.unique(values).size
    if ID_NAME.search(name) and different >= MIN_ROWS:
        return True
    steps = values[1:] > values[:-1]
    in_order = bool(steps.all() or not steps.any())
    return different == values.size and (in_order or int(values.max()) >= MANY_DIGITS)


def identifiers_warning(names: list[str]) -> DataWarning:
    """The warning for columns that look like identifiers and are used as features."""
    listed = ", ".join(map(repr, names))
    what = "columns look like identifiers and are" if len(names) > 1 else "column looks like an identifier and is"
    return DataWarning(
        f"{listed}: the {what} used as {'features' if len(names) > 1 else 'a feature'}; drop identifiers "
        f"with drop={names!r}"
    )
