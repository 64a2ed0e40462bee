"""Predictions of a model for the rows of a table, as a table."""

from pathlib import Path
from typing import Any, NamedTuple

from fedscaffold.core.files import replacing
from fedscaffold.data.encoding import Unknown
from fedscaffold.data.tables import load_pyarrow
from fedscaffold.models.metrics import prediction_metrics
from fedscaffold.models.model import Model


class ScoredTable(NamedTuple):
    """Predictions for a table, and their metrics if the table has the target.

    Attributes
    ----------
    predictions
        A pyarrow Table, row by row: `prediction` and, for classes, `probability of ...` for each.
    metrics
        By name; None if the table has no target column.
    rows_with_target
        Number of rows that the metrics were computed from.
    """

    predictions: Any
    metrics: dict[str, float] | None
    rows_with_target: int


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


def write_predictions(predictions: Any, path: Path) -> None:
    """Write a pyarrow Table to a .csv or .parquet file, which is replaced only once the new one is complete."""
    from pyarrow import csv, parquet

    with replacing(path) as temporary:
        if path.suffix == ".csv":
            csv.write_csv(predictions, temporary)
        else:
            parquet.write_table(predictions, temporary)
