"""`fedscaffold score`: a model's predictions for new rows."""

from pathlib import Path
from typing import Annotated, Any

import typer

from fedscaffold.cli import options
from fedscaffold.cli import table_options as tables
from fedscaffold.cli.errors import refusals
from fedscaffold.cli.options import check_file, print_table
from fedscaffold.data.files import read_table, write_table
from fedscaffold.models import Model
from fedscaffold.models.metrics import score_table

EXAMPLES = (
    "Examples:\n\n"
    "  fedscaffold score model/model.json new.csv --out predictions.csv\n\n"
    "  fedscaffold score model/model.json new.parquet --unknown ignore"
)


def command(
    model: Annotated[Path, typer.Argument(help="The model.json that `fedscaffold fit` wrote.")],
    data: tables.Data,
    out: Annotated[Path | None, typer.Option(help="Where to write predictions: .csv or .parquet.")] = None,
    unknown: Annotated[
        str,
        typer.Option(help="Categories that the model does not know: error, or ignore (take the reference level)."),
    ] = "error",
    with_intercept_of: Annotated[
        Path | None,
        typer.Option(
            "--intercept-of",
            help="A client's own rows, to fit its intercept to, for models with client_intercepts.",
        ),
    ] = None,
    settings: options.CsvSettings = None,
) -> None:
    """Predict new rows: a value, or a class and the probability of each.

    One prediction per row, in the table's order, and metrics if the table has the target column.
    """
    with refusals(interrupted="nothing was written"):
        check_file("--out", out, (".csv", ".parquet"))
        text = options.csv_format(options.parse_settings(settings, options.CSV_SETTINGS))
        loaded = Model.load(model)
        if with_intercept_of is not None:
            loaded = loaded.with_intercept_of(read_table(with_intercept_of, text))
        treatment: Any = unknown
        scored = score_table(loaded, read_table(data, text), unknown=treatment)
        if out is not None:
            write_table(scored.predictions, out)
    target, predictions = loaded.encoding.target, scored.predictions
    if out is None:
        names = predictions.column_names[:5]
        rows = (
            (str(k), *(f"{row[name]:.4g}" if isinstance(row[name], float) else str(row[name]) for name in names))
            for k, row in enumerate(predictions.slice(0, 10).to_pylist())
        )
        print_table(f"Predictions of {target}, first rows", rows, header=("row", *names), left=0)
    if scored.metrics is not None:
        title = f"Against the {scored.rows_with_target:,} rows that have {target}"
        print_table(title, ((name, f"{value:.4g}") for name, value in scored.metrics.items()))
    typer.echo(f"{predictions.num_rows:,} predictions{'' if out is None else f' are in {out}'}")
