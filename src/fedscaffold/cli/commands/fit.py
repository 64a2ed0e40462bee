"""`fedscaffold fit`: a table with a client column becomes a model, its trace and a page about it."""

import shlex
import time
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from fedscaffold.cli import table_options as tables
from fedscaffold.cli.errors import RESUMABLE, refusals
from fedscaffold.cli.options import print_table
from fedscaffold.core.display import progress_bar
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.files import write_text
from fedscaffold.core.machine import in_file
from fedscaffold.data.files import existing_file, is_parquet, read_table
from fedscaffold.data.public import Bounds
from fedscaffold.data.tables import pick_all
from fedscaffold.models import folder
from fedscaffold.models.planning.planned import TOLERANCE
from fedscaffold.models.private import private_fit
from fedscaffold.models.report import FitReport
from fedscaffold.privacy.settings import PrivacySettings, refuse_beside_epsilon
from fedscaffold.reports.page import fmt

PRIVACY = "privacy.txt"
PRIVATE = {
    "data", "target", "client", "out", "kind", "l2", "categorical", "step_size", "rounds",
    "epsilon", "delta", "clip", "bounds", "overwrite", "delimiter", "decimal", "encoding", "settings",
}  # fmt: skip
EXAMPLES = (
    "Examples:\n\n"
    "  fedscaffold fit visits.csv --target readmitted --client hospital --out model\n\n"
    "  fedscaffold fit sales.parquet --target revenue --client shop --test new.parquet --out model\n\n"
    "  fedscaffold fit visits.csv --target ill --client hospital --epsilon 3 --bounds bounds.toml --out model\n\n"
    "  fedscaffold fit visits.csv --target days --client hospital --set min_rows=1 --set rounds=50 --out model\n\n"
    "--set takes every other parameter of fedscaffold.fit: columns (categorical, reference, dates, exposure, "
    "offset, weight), limits (min_rows, max_categories), CSV files (delimiter, decimal, encoding), the run "
    "(batch_size, step_size, local_steps, rounds, seed, close, dispersion, client_intercepts), the privacy budget "
    "(delta, clip).\n\n"
    "The folder gets model.json, trace.npz and report.html. The same command resumes after an interruption."
)


@tables.with_table_options(more=(*tables.FIT_SETTINGS, "delta", "clip", "cache_dir"))
def command(
    context: typer.Context,
    data: tables.Data,
    table: tables.TableFlags,
    out: Annotated[Path, typer.Option(help="Folder for the model, the trace and the report.")],
    tolerance: tables.Tolerance = TOLERANCE,
    test: Annotated[Path | None, typer.Option(help="A table of other rows, to score the model on.")] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the fit of other data or settings that the folder holds.")
    ] = False,
    epsilon: tables.Epsilon = None,
    bounds: tables.BoundsFile = None,
) -> None:
    """Fit one model to a table whose rows belong to clients, as a federation would.

    Numbers are standardised, text becomes categories, there is an intercept, and clients count by their rows. Step
    size, local steps and rounds are chosen so that the model comes within --tolerance of the one that pooled data
    would give. A Parquet table that would take more than a quarter of the memory is kept in the folder 'cache'
    of --out unless --set cache_dir=FOLDER is given.

    With --epsilon the model protects every row: gradients are clipped and get noise, columns are coded by
    --bounds, and nothing else is computed from the rows. The folder then gets model.json and privacy.txt.
    """
    if epsilon is not None:
        with refusals(interrupted="nothing was written"):
            given = tables.given_options(context) | set(table.settings)
            refuse_beside_epsilon(dict.fromkeys(name for name in sorted(given - PRIVATE)), {})
            planned = {name: table.settings.get(name) for name in tables.BUDGET_SETTINGS}
            _fit_privately(data, table, out, PrivacySettings(epsilon=epsilon, **planned), bounds, overwrite)
        return
    with refusals(interrupted=RESUMABLE):
        for name in ("delta", "clip", "bounds"):
            if name in table.settings or (name == "bounds" and bounds is not None):
                raise InvalidInput(f"{name} requires epsilon=...")
        settings = table.fit_settings(tolerance=tolerance)
        is_parquet(data if data.is_dir() else existing_file(data))
        if test is not None:
            if settings.client_intercepts:
                raise InvalidInput("test=... does not support client_intercepts, which the model does not hold")
            is_parquet(existing_file(test))
        with folder.output_folder(out):
            began, cache_dir, opener = time.perf_counter(), table.cache_dir, partial(table.open, data)
            with progress_bar("Reading the table", None):
                problem = folder.open_with_cache(opener, out, cache_dir=cache_dir, overwrite=overwrite)
            seconds = time.perf_counter() - began
            kind = tables.describe_kind(problem, table.table.get("kind"))
            typer.echo(f"Model: {kind}")
            if in_file(problem.x):
                typer.echo(
                    f"The table's numbers, {problem.x.nbytes / 2**30:,.2f} GiB, are read from "
                    f"{cache_dir or out / folder.CACHE}; that folder may be removed when it is no longer needed."
                )
            report = folder.fit_in_folder(
                problem,
                settings,
                out,
                data=data,
                kind=kind,
                missing=table.table.get("missing", "error"),
                command=shlex.join(context.meta["words"]),
                test=test,
                text=tables.csv_format(table.settings),
                overwrite=overwrite,
                reading_seconds=seconds,
                announce=typer.echo,
            )
    _print(report)
    typer.echo(f"Model, trace and report are in {out}")


def _fit_privately(
    data: Path,
    table: tables.TableFlags,
    out: Path,
    settings: PrivacySettings,
    bounds: Path | None,
    overwrite: bool,
) -> None:
    """Fit under a privacy budget; model.json and privacy.txt are all that is written."""
    given, file = table.table, None if bounds is None else Bounds.load(bounds)
    known = Bounds.parse(
        file, target=table.target, kind=given.get("kind"), categorical=given.get("categorical", ())
    )
    with folder.output_folder(out):
        if not overwrite and (out / folder.MODEL).exists():
            raise InvalidInput(f"{out} holds a model already; {folder.OVERWRITE}")
        rows = read_table(data, tables.csv_format(table.settings))
        pick_all(rows.column_names, [table.client, *known.columns])
        l2 = given.get("l2", "auto")
        found = private_fit(rows, bounds=known, client=table.client, settings=settings, l2=l2)
        write_text(out / PRIVACY, found.explain() + "\n")
        found.model.save(out / folder.MODEL)
    values = ((name, f"{value:.4g}") for name, value in found.model.named_coefficients)
    print_table(f"A private model of {table.target}", values, header=("column", "coefficient"))
    typer.echo(f"{found.explain()}\nThe model and this text are in {out}")


def _print(report: FitReport) -> None:
    facts = (*list(report.data.items())[:2], *list(report.cost.items())[:2])
    print_table(f"A federated model of {report.fit.model.encoding.target}", facts)
    scores, known = report.comparison.scores, [("", report.metrics), ("test ", report.test_metrics)]
    names = list(report.metrics[scores[0].name])[:2]
    found = [(f"{prefix}{name}", name, values) for prefix, values in known if values for name in names]
    rows = (
        (
            each.name,
            f"{each.loss:.5g}",
            each.distance_text,
            *(fmt(of[each.name].get(name)) for _, name, of in found),
        )
        for each in scores
    )
    header = ("model", "loss", "distance", *(title for title, _, _ in found))
    print_table("Scaffold, FedAvg and pooled data", rows, header=header)
    phases = ", ".join(f"{name} {seconds}" for name, seconds in report.time.items())
    typer.echo(f"{report.headline}\nTime: {phases}")
