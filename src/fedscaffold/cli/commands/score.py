"""`fedscaffold score`: a model's predictions for new rows."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedscaffold.cli import table_options as tables
from fedscaffold.cli.errors import refusals
from fedscaffold.core.files import check_writable, replacing
from fedscaffold.core.types import Array
from fedscaffold.data.arrow import load_pyarrow
from fedscaffold.data.files import read_table
from fedscaffold.models import Model
from fedscaffold.models.metrics import of_predictions

EXAMPLES = (
    "Examples:\n\n"
    "  fedscaffold score model/model.json new.csv --out predictions.csv\n\n"
    "  fedscaffold score model/model.json new.parquet --unknown zero"
)
SUFFIXES = (".csv", ".parquet")
MOST_SHOWN = 10


def command(
    model: Annotated[Path, typer.Argument(help="The model.json that `fedscaffold fit` wrote.")],
    data: tables.Data,
    out: Annotated[Path | None, typer.Option(help="Where to write predictions: .csv or .parquet.")] = None,
    unknown: Annotated[
        str, typer.Option(help="Categories that the model does not know: error, or ignore (none of those known).")
    ] = "error",
) -> None:
    """Predict new rows: a value, or a class and the probability of each.

    One prediction per row, in the table's order. Where the table has the target column, also says how good they
    are.
    """
    with refusals(interrupted="nothing was written"):
        if out is not None:
            tables.check_suffix(out, SUFFIXES, "--out")
            check_writable(out)
        found = Model.load(model)
        table = read_table(data)
        how: Any = unknown
        given = (
            found.predict(table, unknown=how) if found.classes is None else found.predict_proba(table, unknown=how)
        )
        scored = of_predictions(found, table, given) if found.encoding.target in table.column_names else None
        predictions = as_table(found, given)
        if out is not None:
            _write(predictions, out)
    _print(found, predictions, scored, out)


def as_table(model: Model, given: Array) -> Any:
    """A pyarrow Table: `prediction`, and for classes `probability of ...`."""
    columns = {"prediction": given}
    if model.classes is not None:
        columns = {"prediction": model.most_probable(given)}
        for k, name in enumerate(model.classes):
            columns[f"probability of {name}"] = given[:, k]
    return load_pyarrow().table(columns)


def _write(predictions: Any, out: Path) -> None:
    from pyarrow import csv, parquet

    with replacing(out) as temporary:
        if out.suffix == ".csv":
            csv.write_csv(predictions, temporary)
        else:
            parquet.write_table(predictions, temporary)


def _print(model: Model, predictions: Any, scored: tuple[dict[str, float], int] | None, out: Path | None) -> None:
    console = Console(highlight=False)
    if out is None:
        names = predictions.column_names[: 1 + 4]
        shown = Table(title=escape(f"Predictions of {model.encoding.target}, first rows"))
        for name in ("row", *names):
            shown.add_column(escape(name), justify="right")
        for k, row in enumerate(predictions.slice(0, MOST_SHOWN).to_pylist()):
            cells = [row[name] for name in names]
            shown.add_row(
                str(k), *(f"{cell:.4g}" if isinstance(cell, float) else escape(str(cell)) for cell in cells)
            )
        console.print(shown)
    if scored is not None:
        metrics, rows = scored
        title = escape(f"Against the {rows:,} rows that have {model.encoding.target}")
        table = Table(title=title, show_header=False)
        for name, value in metrics.items():
            table.add_row(name, f"{value:.4g}")
        console.print(table)
    where = "" if out is None else f" are in {out}"
    console.print(f"{predictions.num_rows:,} predictions{where}", soft_wrap=True, markup=False)
