"""Predictions of a model for the rows of a table, and their metrics against observed targets."""

from bisect import bisect_left, bisect_right, insort
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
    pick_all,
    positions,
    some,
    value_set,
)
from fedscaffold.models.model import Model
from fedscaffold.problems.base import TARGET
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
    if model.encoding.status is not None:
        each = _pairs_by_client(model, table, predicted).values()
        right, pairs = sum(one for one, _ in each), sum(pairs for _, pairs in each)
        return {"concordance": right / pairs} if pairs else {}, table.num_rows
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


def concordance_index(times: Array, scores: Array) -> tuple[float, int]:
    """Return Harrell's concordant pairs, ties of scores counted half, and the number of comparable pairs.

    A pair is comparable if one row has an event before the other row's event or last visit, or at its last visit.
    It is concordant if the first row has the larger score.

    Parameters
    ----------
    times
        Signed times, negative without event; see `fedscaffold.problems.cox`.
    scores
        Hazards, or any increasing function of them.

    Examples
    --------
    >>> import numpy as np
    >>> from fedscaffold.models.metrics import concordance_index
    >>> concordance_index(np.array([1.0, 2.0, -3.0]), np.array([0.5, 0.9, 0.1]))
    (2.0, 3)
    """
    concordant, pairs = 0.0, 0
    later = list[float]()  # sorted scores of the rows that outlast the time
    for time in np.unique(np.abs(times))[::-1]:
        here = np.abs(times) == time
        event = here & ~np.signbit(times)
        for score in scores[here & ~event].tolist():
            insort(later, score)
        for score in scores[event].tolist():
            concordant += 0.5 * (bisect_left(later, score) + bisect_right(later, score))
        pairs += int(event.sum()) * len(later)
        for score in scores[event].tolist():
            insort(later, score)
    return concordant, pairs


def concordance(model: Model, frame: Any, *, unknown: Unknown = "error") -> dict[str, float]:
    """Return Harrell's concordance of a Cox model for each client's rows; NaN without pairs that can be compared.

    Baseline hazards differ between clients, so rows are compared within a client. A site computes its own from its
    rows and the model's file.

    Parameters
    ----------
    model
        A model of kind "cox".
    frame
        Rows with time and status; a table as for `Model.predict`. Without the client column all rows are one
        client, "all rows".
    unknown
        As for `Model.predict`.

    Returns
    -------
    dict
        The concordance by client, in the clients' order; 0.5 is chance, 1 perfect.

    Examples
    --------
    >>> import numpy as np
    >>> import pandas as pd
    >>> import fedscaffold as fs
    >>> rng = np.random.default_rng(0)
    >>> visits = pd.DataFrame({"age": rng.normal(60, 10, 300), "hospital": rng.choice(list("ABC"), 300)})
    >>> visits["days"] = rng.exponential(np.exp(5 - 0.1 * visits["age"]))
    >>> visits["died"] = rng.random(300) < 0.7
    >>> fitted = fs.fit(visits, target=("days", "died"), client="hospital", l2=0)
    >>> {name: round(value, 2) for name, value in fs.models.concordance(fitted.model, visits).items()}
    {'A': 0.75, 'B': 0.75, 'C': 0.7}
    """
    each = _pairs_by_client(model, frame, model.predict(frame, unknown=unknown))
    return {name: right / pairs if pairs else float("nan") for name, (right, pairs) in each.items()}


def _pairs_by_client(model: Model, frame: Any, hazards: Array) -> dict[str, tuple[float, int]]:
    """Return concordant and comparable pairs of each client's rows."""
    encoding, source = model.encoding, frame_source(frame)
    if encoding.status is None:
        raise InvalidInput(f"concordance is of models of kind 'cox', not of a {model.kind} model")
    names = pick_all(source.names, encoding.record_columns)
    times = np.concatenate([encoding.targets(columns)[:, TARGET] for columns in source.blocks(names)])
    if np.isnan(times).any():
        raise InvalidInput(f"the target {encoding.target!r} has missing values; drop those rows first")
    owners = np.full(times.size, "all rows", dtype=object)
    if encoding.client in source.names:
        parts = [part[encoding.client].to_pylist() for part in source.blocks([encoding.client])]
        owners = np.array([str(name) for part in parts for name in part], dtype=object)
    return {
        str(name): concordance_index(times[owners == name], hazards[owners == name]) for name in np.unique(owners)
    }


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
    wanted = (model.encoding.target, model.encoding.status)
    if all(name is None or name in table.column_names for name in wanted):
        metrics, rows = prediction_metrics(model, table, predicted)
    return ScoredTable(load_pyarrow().table(columns), metrics, rows)
