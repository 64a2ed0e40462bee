"""Metrics of predictions against observed targets, from whole arrays or from blocks of rows."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.machine import in_file
from fedscaffold.core.types import Array
from fedscaffold.data.statistics import ColumnMoments
from fedscaffold.data.tables import (
    Label,
    frame_source,
    is_number,
    labels,
    numbers,
    pick,
    positions,
    some,
    value_set,
)
from fedscaffold.inference.families import family_of
from fedscaffold.models.model import Model
from fedscaffold.models.planning.planned import PreparedProblem
from fedscaffold.problems.base import OFFSET, TARGET
from fedscaffold.problems.families import FAMILIES

SMALLEST = np.finfo(np.float64).tiny
ODDS_RANGE = (1e-37, 1e37)  # within float32
DROPPED_BITS = 11  # of float32's 23 binary digits


class Deviance:
    """Deviance of a Poisson or Gamma model, added up over blocks of rows; nothing for other kinds."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.rows, self.loss, self.saturated = 0, 0.0, 0.0
        self.null = np.zeros(1)

    def add(self, observed: Array, predicted: Array) -> None:
        """Add some rows, given by their targets and their predicted means."""
        target = next((each for each in FAMILIES.values() if each.kind == self.kind), None)
        if target is None or not target.log_link:
            return
        family, one = family_of(self.kind), np.ones(observed.size)
        self.rows += observed.size
        self.loss += float(target.problem.value(np.log(np.maximum(predicted, SMALLEST)), observed).sum())
        self.saturated += family.saturated(observed, one)
        self.null = self.null + family.null_sums(observed, 0.0 * one, one)

    def metrics(self) -> dict[str, float]:
        """Mean deviance, and D² = 1 − deviance / deviance of a constant."""
        if not self.rows:
            return {}
        found = {"mean deviance": 2.0 * (self.loss - self.saturated) / self.rows}
        null = family_of(self.kind).null_loss(self.null, float(self.rows)) - self.saturated
        return {**found, "D2": 1.0 - (self.loss - self.saturated) / null} if null > 0 else found


def regression_metrics(observed: Array, predicted: Array, kind: str = "ridge") -> dict[str, float]:
    """Root mean squared error, mean absolute error, and R² = 1 − Σ(y − ŷ)²/Σ(y − ȳ)² where y varies.

    For kinds with a deviance, "poisson" and "gamma", the mean deviance and D² come first.

    Examples
    --------
    >>> import numpy as np
    >>> from fedscaffold.models.metrics import regression_metrics
    >>> regression_metrics(np.array([1.0, 3.0]), np.array([1.0, 2.0]))["mae"]
    0.5
    """
    errors, deviance = observed - predicted, Deviance(kind)
    deviance.add(observed, predicted)
    found = {"rmse": float(np.sqrt(np.mean(errors**2))), "mae": float(np.mean(np.abs(errors)))}
    found = deviance.metrics() | found
    total = float(np.sum((observed - observed.mean()) ** 2))
    return {**found, "r2": 1.0 - float(np.sum(errors**2)) / total} if total > 0 else found


def classification_metrics(observed: NDArray[np.int64], probabilities: Array) -> dict[str, float]:
    """Accuracy, mean −log P(observed class), and for two classes the area under the ROC curve.

    The area is P(a row of the second class gets a higher probability than one of the first), ties count half.

    Parameters
    ----------
    observed
        Positions of the observed classes, (rows,).
    probabilities
        Of every class, (rows, classes).
    """
    likelihood = np.maximum(probabilities[np.arange(observed.size), observed], SMALLEST)
    accuracy = float(np.mean(probabilities.argmax(axis=1) == observed))
    found = {"accuracy": accuracy, "log loss": float(-np.log(likelihood).mean())}
    if probabilities.shape[1] != 2 or np.ptp(observed) == 0:
        return found
    _, place, counts = np.unique(probabilities[:, 1], return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2.0)[place]
    n1 = int(observed.sum())
    area = (float(ranks[observed == 1].sum()) - n1 * (n1 + 1) / 2.0) / (n1 * (observed.size - n1))
    return {**found, "AUC": area}


def streamed_regression_metrics(blocks: Iterable[tuple[Array, Array]], kind: str = "ridge") -> dict[str, float]:
    """`regression_metrics` from (observed, predicted) of one block of rows after another."""
    moments, squares, absolutes, deviance = ColumnMoments(), 0.0, 0.0, Deviance(kind)
    for observed, predicted in blocks:
        errors = observed - predicted
        deviance.add(observed, predicted)
        moments = moments.after(observed)
        squares, absolutes = squares + float(np.sum(errors**2)), absolutes + float(np.sum(np.abs(errors)))
    found = {"rmse": float(np.sqrt(squares / moments.count)), "mae": absolutes / moments.count}
    found = deviance.metrics() | found
    return {**found, "r2": 1.0 - squares / moments.squares} if moments.squares > 0 else found


def streamed_classification_metrics(blocks: Iterable[tuple[NDArray[np.int64], Array]]) -> dict[str, float]:
    """`classification_metrics` from (observed, probabilities) of one block of rows after another.

    For the area, rows whose odds agree in their first 12 binary digits count as ties.
    """
    rows, correct, log_loss = 0, 0, 0.0
    counts = np.zeros((2, (int(np.float32(np.inf).view(np.uint32)) >> DROPPED_BITS) + 1), dtype=np.int64)
    for observed, probabilities in blocks:
        likelihood = np.maximum(probabilities[np.arange(observed.size), observed], SMALLEST)
        rows, correct = rows + observed.size, correct + int((probabilities.argmax(axis=1) == observed).sum())
        log_loss -= float(np.log(likelihood).sum())
        if probabilities.shape[1] == 2:
            odds = np.clip(probabilities[:, 1], *ODDS_RANGE) / np.clip(probabilities[:, 0], *ODDS_RANGE)
            place = np.clip(odds, *ODDS_RANGE).astype(np.float32).view(np.uint32) >> DROPPED_BITS
            for label in (0, 1):
                counts[label] += np.bincount(place[observed == label], minlength=counts.shape[1])
    found = {"accuracy": correct / rows, "log loss": log_loss / rows}
    n0, n1 = (int(n) for n in counts.sum(axis=1))
    if n0 == 0 or n1 == 0:
        return found
    below = np.cumsum(counts[0]) - counts[0] / 2.0
    return {**found, "AUC": float(counts[1] @ below) / (n0 * n1)}


def training_metrics(prepared: PreparedProblem, theta: Array) -> dict[str, float]:
    """Metrics of θ on the rows that were fitted, in the target's own units."""
    problem = prepared.problem
    blocks = _training_predictions(prepared, theta)
    if in_file(problem.x):
        if problem.classes is not None:
            return streamed_classification_metrics(blocks)
        return streamed_regression_metrics(blocks, problem.kind)
    observed, predicted = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
    if problem.classes is not None:
        return classification_metrics(observed, predicted)
    return regression_metrics(observed, predicted, problem.kind)


def _training_predictions(prepared: PreparedProblem, theta: Array) -> Iterator[tuple[Any, Array]]:
    """Values and their predictions, or classes and their probabilities, of one block of rows after another."""
    problem, shift, scale = prepared.problem, prepared.target_shift, prepared.target_scale
    vectors = theta.reshape(problem.vectors, problem.n_features)
    family = problem.encoding.family
    for x, y, _ in problem.pieces():
        z = x @ vectors.T
        if y.ndim > 1:
            z, y = z + y[:, [OFFSET]], y[:, TARGET]
        if problem.classes is None:
            mean = family.mean(z[:, 0])
            yield (y, mean) if family.log_link else (shift + scale * y, shift + scale * mean)
            continue
        two = len(problem.classes) == 2
        z = np.column_stack([np.zeros(len(z)), z[:, 0]]) if two else z
        probabilities = np.exp(z - z.max(axis=1, keepdims=True))
        probabilities /= probabilities.sum(axis=1, keepdims=True)
        yield ((y + 1) / 2 if two else y).astype(np.int64), probabilities


def model_metrics(model: Model, table: Any) -> dict[str, float]:
    """Metrics of a model on the rows of a pyarrow Table whose target is not missing."""
    predicted = model.predict(table) if model.classes is None else model.predict_proba(table)
    return prediction_metrics(model, table, predicted)[0]


def prediction_metrics(model: Model, table: Any, predicted: Array) -> tuple[dict[str, float], int]:
    """Metrics of what `Model.predict` or, for classes, `Model.predict_proba` returned for a pyarrow Table.

    Also returns the number of rows whose target is not missing, which are those that count.
    """
    name = pick(frame_source(table).names, model.encoding.target)
    column = table.column(name).combine_chunks()
    classes = model.classes
    if classes is None and not is_number(column.type):
        raise InvalidInput(f"the target {name!r} should hold numbers, but is of type {column.type}")
    found: Any = numbers(column) if classes is None else labels(name, column)
    present = np.isfinite(found) if classes is None else found.is_valid().to_numpy(zero_copy_only=False)
    if not present.any():
        raise InvalidInput(f"the target {name!r} has no values; drop the column to score without metrics")
    if classes is None:
        return regression_metrics(found[present], predicted[present], model.kind), int(present.sum())
    observed = _class_positions(name, found, present, classes)
    return classification_metrics(observed[present], predicted[present]), int(present.sum())


def _class_positions(
    name: str, found: Any, present: NDArray[np.bool_], classes: Sequence[Label]
) -> NDArray[np.int64]:
    """Position of each row's class among the model's classes; classes that are not among them are refused."""
    allowed = value_set(classes)
    if found.type != allowed.type:
        raise InvalidInput(f"the target {name!r} holds {found.type}, but the classes are {some(classes)}")
    which = positions(found, allowed)
    unknown = present & (which < 0)
    if unknown.any():
        row = int(unknown.argmax())
        raise InvalidInput(
            f"the target {name!r} has {found[row].as_py()!r} in row {row}, but the classes are {some(classes)}"
        )
    return which
