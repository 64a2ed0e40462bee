"""`fedscaffold fit`: a table with a client column becomes a model, its trace and a page about it."""

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedscaffold.cli import table_options as tables
from fedscaffold.cli.errors import RESUMABLE, refusals
from fedscaffold.cli.options import print_facts
from fedscaffold.core.display import progress_bar
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.files import write_text
from fedscaffold.core.machine import in_file
from fedscaffold.data.files import existing_file, is_parquet, read_table
from fedscaffold.data.public import Bounds
from fedscaffold.data.tables import pick_all
from fedscaffold.models import folder
from fedscaffold.models.planning.planned import TOLERANCE
from fedscaffold.models.private.fit import private_fit
from fedscaffold.models.report import FitReport
from fedscaffold.privacy.settings import PrivacySettings, refuse_beside_epsilon
from fedscaffold.reports.page import fmt

PRIVACY = "privacy.txt"
PRIVATE = {
    "data", "target", "client", "out", "kind", "l2", "categorical", "step_size", "local_steps", "rounds",
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
    console = Console(highlight=False)
    if epsilon is not None:
        with refusals(interrupted="nothing was written"):
            given = tables.given_options(context) | set(table.settings)
            refuse_beside_epsilon(dict.fromkeys(name for name in sorted(given - PRIVATE)), {})
            planned = {name: table.settings.get(name) for name in tables.BUDGET_SETTINGS}
            _fit_privately(
                data, table, out, PrivacySettings(epsilon=epsilon, **planned), bounds, console, overwrite=overwrite
            )
        return
    with refusals(interrupted=RESUMABLE):
        for name in ("delta", "clip", "bounds"):
            if name in table.settings or (name == "bounds" and bounds is not None):
                raise InvalidInput(f"{name} requires epsilon=...")
        settings = table.fit_settings(tolerance=tolerance)
        is_parquet(data if data.is_dir() else existing_file(data))
        if test is not None and settings.client_intercepts:
            raise InvalidInput("test=... does not support client_intercepts, which the model does not hold")
        if test is not None:
            is_parquet(existing_file(test))
        with folder.output_folder(out):
            began, cache_dir = time.perf_counter(), table.cache_dir
            with progress_bar("Reading the table", None):
                problem = folder.open_with_cache(table.opener(data), out, cache_dir=cache_dir, overwrite=overwrite)
            reading_seconds = time.perf_counter() - began
            kind = tables.describe_kind(problem, table.table.get("kind"))
            console.print(f"Model: {kind}", soft_wrap=True, markup=False)
            if in_file(problem.x):
                console.print(
                    f"The table's numbers, {problem.x.nbytes / 2**30:,.2f} GiB, are read from "
                    f"{cache_dir or out / folder.CACHE}; that folder may be removed when it is no longer "
                    "needed.",
                    soft_wrap=True,
                    markup=False,
                )
            report = folder.fit_in_folder(
                problem,
                settings,
                out,
                data=data,
                kind=kind,
                missing=table.table.get("missing", "error"),
                command=tables.command_line(context),
                test=test,
                text=tables.csv_format(table.settings),
                overwrite=overwrite,
                reading_seconds=reading_seconds,
                announce=console.print,
            )
    _print(report, out, console)


def _fit_privately(
    data: Path, table: tables.TableFlags, out: Path, settings: PrivacySettings, bounds: Path | None,
    console: Console, *, overwrite: bool,
) -> None:  # fmt: skip
    """Fit under a privacy budget; model.json and privacy.txt are all that is written."""
    given = table.table
    known = Bounds.parse(
        tables.load_bounds(bounds), target=table.target, kind=given.get("kind"),
        categorical=given.get("categorical", ()),
    )  # fmt: skip
    with folder.output_folder(out):
        if not overwrite and (out / folder.MODEL).exists():
            raise InvalidInput(f"{out} holds a model already; {folder.OVERWRITE}")
        rows = read_table(data, tables.csv_format(table.settings))
        pick_all(rows.column_names, [table.client, *known.columns])
        l2 = given.get("l2", "auto")
        found = private_fit(rows, bounds=known, client=table.client, settings=settings, l2=l2)
        write_text(out / PRIVACY, found.explain() + "\n")
        found.model.save(out / folder.MODEL)
    coefficients = Table("column", "coefficient", title=escape(f"A private model of {table.target}"))
    for name, value in found.model.named_coefficients:
        coefficients.add_row(escape(name), f"{value:.4g}")
    console.print(coefficients)
    console.print(found.explain(), soft_wrap=True, markup=False)
    console.print(f"The model and this text are in {out}", soft_wrap=True, markup=False)


def _print(report: FitReport, out: Path, console: Console) -> None:
    """Print tables that fit 80 columns."""
    facts = (*list(report.data.items())[:2], *list(report.cost.items())[:2])
    print_facts(f"A federated model of {report.fit.model.encoding.target}", facts)
    scores, tested = report.comparison.scores, report.test_metrics is not None
    names = list(report.metrics[scores[0].name])[:2]
    shown = Table(title="Scaffold, FedAvg and pooled data")
    columns = ["model", "loss", "distance", *names, *(f"test {name}" for name in names if tested)]
    for column in columns:
        shown.add_column(column, justify="left" if column == "model" else "right")
    for score in scores:
        cells = [score.name, f"{score.loss:.5g}", score.distance_text]
        for metrics in (report.metrics, report.test_metrics or {}):
            cells += [fmt(metrics[score.name].get(name)) for name in names if metrics]
        shown.add_row(*cells)
    console.print(shown)
    console.print(report.headline, soft_wrap=True, markup=False)
    phases = ", ".join(f"{name} {seconds}" for name, seconds in report.time.items())
    console.print(f"Time: {phases}", soft_wrap=True, markup=False)
    console.print(f"Model, trace and report are in {out}", soft_wrap=True, markup=False)
