"""How well predictions fit what was seen."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array
from fedscaffold.data.arrow import Label, frame_source, is_number, labels, numbers, positions, value_set
from fedscaffold.data.columns import pick, some
from fedscaffold.data.statistics import ColumnMoments
from fedscaffold.models.model import Model

SMALLEST = np.finfo(np.float64).tiny
WITHIN = (1e-37, 1e37)  # odds that float32 can tell
COARSER = 11  # of float32's 23 binary digits


def of_values(seen: Array, predicted: Array) -> dict[str, float]:
    """Root mean squared error, mean absolute error, and R² = 1 − Σ(y − ŷ)²/Σ(y − ȳ)² where y varies."""
    errors = seen - predicted
    found = {"rmse": float(np.sqrt(np.mean(errors**2))), "mae": float(np.mean(np.abs(errors)))}
    total = float(np.sum((seen - seen.mean()) ** 2))
    return {**found, "r2": 1.0 - float(np.sum(errors**2)) / total} if total > 0 else found


def of_classes(seen: NDArray[np.int64], shares: Array) -> dict[str, float]:
    """Accuracy, mean −log P(seen class), and for two classes the area under the ROC curve.

    The area is P(a row of the second class gets a higher probability than one of the first), ties count half.
    """
    own = np.maximum(shares[np.arange(seen.size), seen], SMALLEST)
    found = {"accuracy": float(np.mean(shares.argmax(axis=1) == seen)), "log loss": float(-np.log(own).mean())}
    if shares.shape[1] != 2 or np.ptp(seen) == 0:
        return found
    _, place, counts = np.unique(shares[:, 1], return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2.0)[place]
    n1 = int(seen.sum())
    area = (float(ranks[seen == 1].sum()) - n1 * (n1 + 1) / 2.0) / (n1 * (seen.size - n1))
    return {**found, "AUC": area}


def of_value_pieces(pieces: Iterable[tuple[Array, Array]]) -> dict[str, float]:
    """`of_values` from (seen, predicted) of some rows at a time."""
    moments, squares, sizes = ColumnMoments(), 0.0, 0.0
    for seen, predicted in pieces:
        errors = seen - predicted
        moments = moments.after(seen)
        squares, sizes = squares + float(np.sum(errors**2)), sizes + float(np.sum(np.abs(errors)))
    found = {"rmse": float(np.sqrt(squares / moments.count)), "mae": sizes / moments.count}
    return {**found, "r2": 1.0 - squares / moments.squares} if moments.squares > 0 else found


def of_class_pieces(pieces: Iterable[tuple[NDArray[np.int64], Array]]) -> dict[str, float]:
    """`of_classes` from (seen, shares) of some rows at a time.

    For the area, rows whose odds agree in their first 12 binary digits count as ties.
    """
    rows, right, surprise = 0, 0, 0.0
    counts = np.zeros((2, (int(np.float32(np.inf).view(np.uint32)) >> COARSER) + 1), dtype=np.int64)
    for seen, shares in pieces:
        own = np.maximum(shares[np.arange(seen.size), seen], SMALLEST)
        rows, right = rows + seen.size, right + int((shares.argmax(axis=1) == seen).sum())
        surprise -= float(np.log(own).sum())
        if shares.shape[1] == 2:
            odds = np.clip(shares[:, 1], *WITHIN) / np.clip(shares[:, 0], *WITHIN)
            place = np.clip(odds, *WITHIN).astype(np.float32).view(np.uint32) >> COARSER
            for label in (0, 1):
                counts[label] += np.bincount(place[seen == label], minlength=counts.shape[1])
    found = {"accuracy": right / rows, "log loss": surprise / rows}
    n0, n1 = (int(n) for n in counts.sum(axis=1))
    if n0 == 0 or n1 == 0:
        return found
    below = np.cumsum(counts[0]) - counts[0] / 2.0
    return {**found, "AUC": float(counts[1] @ below) / (n0 * n1)}


def of_model(model: Model, table: Any) -> dict[str, float]:
    """Metrics of a model on the rows of a pyarrow Table whose target is not missing."""
    given = model.predict(table) if model.classes is None else model.predict_proba(table)
    return of_predictions(model, table, given)[0]


def of_predictions(model: Model, table: Any, predicted: Array) -> tuple[dict[str, float], int]:
    """The same from what `predict` (ridge) or `predict_proba` gave, and how many rows have a target."""
    name = pick(frame_source(table).names, model.encoding.target)
    column = table.column(name).combine_chunks()
    if model.classes is None:
        if not is_number(column.type):
            raise InvalidInput(f"the target {name!r} should hold numbers, but is of type {column.type}")
        seen = numbers(column)
        there = np.isfinite(seen)
        if not there.any():
            raise InvalidInput(f"the target {name!r} has no values; drop the column to score without metrics")
        return of_values(seen[there], predicted[there]), int(there.sum())
    which, there = _classes(name, column, model.classes)
    return of_classes(which[there], predicted[there]), int(there.sum())


def _classes(name: str, column: Any, classes: Sequence[Label]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    found = labels(name, column)
    there = found.is_valid().to_numpy(zero_copy_only=False)
    if not there.any():
        raise InvalidInput(f"the target {name!r} has no values; drop the column to score without metrics")
    known = value_set(classes)
    if found.type != known.type:
        raise InvalidInput(f"the target {name!r} holds {found.type}, but the classes are {some(classes)}")
    which = positions(found, known)
    strange = there & (which < 0)
    if strange.any():
        row = int(strange.argmax())
        raise InvalidInput(
            f"the target {name!r} has {found[row].as_py()!r} in row {row}, but the classes are {some(classes)}"
        )
    return which, there
