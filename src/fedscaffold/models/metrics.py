"""Predictions of a model for the rows of a table, and their metrics against observed targets."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array
from fedscaffold.data.encoding import Unknown
from fedscaffold.data.tables import (
    Label,
    frame_source,
    is_number,
    labels,
    load_pyarrow,
    numbers,
    pick,
    positions,
    some,
    value_set,
)
from fedscaffold.models.model import Model
from fedscaffold.problems.families import FAMILIES, Kind

SMALLEST = np.finfo(np.float64).tiny


def regression_metrics(observed: Array, predicted: Array, kind: Kind = "ridge") -> dict[str, float]:
    """Return root mean squared error, mean absolute error, and R² = 1 − Σ(y − ŷ)²/Σ(y − ȳ)² if y varies.

    For kinds with a logarithmic link, "poisson" and "gamma", the mean deviance and D² = 1 − deviance / deviance of
    a constant come first.

    Examples
    --------
    >>> import numpy as np
    >>> from fedscaffold.models.metrics import regression_metrics
    >>> regression_metrics(np.array([1.0, 3.0]), np.array([1.0, 2.0]))["mae"]
    0.5
    """
    family, one, found = FAMILIES[kind], np.ones(observed.size), dict[str, float]()
    if family.log_link:
        saturated = family.saturated(observed, one)
        own = float(family.problem.value(np.log(np.maximum(predicted, SMALLEST)), observed).sum()) - saturated
        null = family.null_loss(family.null_sums(observed, 0.0 * one, one), float(observed.size)) - saturated
        found = {"mean deviance": 2.0 * own / observed.size} | ({"D2": 1.0 - own / null} if null > 0 else {})
    errors = observed - predicted
    found |= {"rmse": float(np.sqrt(np.mean(errors**2))), "mae": float(np.mean(np.abs(errors)))}
    total = float(np.sum((observed - observed.mean()) ** 2))
    return {**found, "r2": 1.0 - float(np.sum(errors**2)) / total} if total > 0 else found


def classification_metrics(observed: NDArray[np.int64], probabilities: Array) -> dict[str, float]:
    """Return accuracy, mean −log P(observed class), and for two classes the area under the ROC curve.

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


def prediction_metrics(model: Model, table: Any, predicted: Array) -> tuple[dict[str, float], int]:
    """Return metrics of predictions for a pyarrow Table, and the number of rows with a target.

    `predicted` is the result of `Model.predict` or, for classes, `Model.predict_proba`.
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
    """Return the position of each row's class among the model's classes; raise if it is not among them."""
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


class ScoredTable(NamedTuple):
    """Predictions for a table, and their metrics if the table has the target."""

    predictions: Any  # a pyarrow Table, row by row: `prediction` and, for classes, `probability of ...` for each
    metrics: dict[str, float] | None  # by name; None if the table has no target column
    rows_with_target: int  # number of rows that the metrics were computed from


def score_table(model: Model, table: Any, *, unknown: Unknown = "error") -> ScoredTable:
    """Predict the rows of a pyarrow Table; `unknown` is as for `Model.predict`."""
    if model.classes is None:
        predicted = model.predict(table, unknown=unknown)
        columns = {"prediction": predicted}
    else:
        predicted = model.predict_proba(table, unknown=unknown)
        columns = {"prediction": model.most_probable(predicted)}
        columns |= {f"probability of {name}": predicted[:, k] for k, name in enumerate(model.classes)}
    metrics, rows = None, 0
    if model.encoding.target in table.column_names:
        metrics, rows = prediction_metrics(model, table, predicted)
    return ScoredTable(load_pyarrow().table(columns), metrics, rows)
