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
from fedscaffold.core.display.progress import progress_bar
from fedscaffold.core.errors import InvalidInput, Option
from fedscaffold.core.storage.memmap import in_file
from fedscaffold.data.files import existing_file, is_parquet
from fedscaffold.models import folder
from fedscaffold.models.planning.planned import FitSettings
from fedscaffold.reports.page import ReportContent

EXAMPLES = (
    "Examples:\n\n"
    "  fedscaffold fit visits.csv --target readmitted --client hospital --out model\n\n"
    "  fedscaffold fit sales.parquet --target revenue --client shop --test new.parquet --out model\n\n"
    "The folder gets model.json, trace.npz and report.html. The same command resumes after an interruption."
)


@tables.with_table_options()
def command(
    context: typer.Context,
    data: tables.Data,
    table: tables.TableFlags,
    out: Annotated[Path, typer.Option(help="Folder for the model, the trace and the report.")],
    test: Annotated[Path | None, typer.Option(help="A table of other rows, to score the model on.")] = None,
    batch_size: tables.Batch = "auto",
    step_size: Annotated[float | None, typer.Option(help="γ; planned unless given.")] = None,
    local_steps: Annotated[int | None, typer.Option(help="H; planned unless given.")] = None,
    rounds: Annotated[int | None, typer.Option(help="T; planned unless given.")] = None,
    close: Annotated[
        bool, typer.Option(help="Let up to two Newton steps, from sums over clients, end the fit at the optimum.")
    ] = True,
    dispersion: Annotated[
        str | None, typer.Option(help="Factor of the variance: 'pearson' (quasi-Poisson) or a number.")
    ] = None,
    seed: tables.Seed = 0,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the fit of other data or settings that the folder holds.")
    ] = False,
) -> None:
    """Fit one model to a table whose rows belong to clients, as a federation would.

    Numbers are standardised, text becomes categories, there is an intercept, and clients count by their rows. Step
    size, local steps and rounds are chosen so that the model comes within --tolerance of the one that pooled data
    would give. A Parquet table that would take more than a quarter of the memory is kept in the folder 'cache'
    of --out unless --cache-dir is given.
    """
    console = Console(highlight=False)
    with refusals(interrupted=RESUMABLE):
        settings = FitSettings(
            tolerance=tables.parse_number(table.tolerance),
            batch_size=tables.parse_batch(batch_size),
            step_size=step_size,
            local_steps=local_steps,
            rounds=rounds,
            seed=seed,
            close=close,
            client_intercepts=table.client_intercepts,
            dispersion=None if dispersion is None else tables.parse_number(dispersion),
        )
        is_parquet(data if data.is_dir() else existing_file(data))
        if test is not None and table.client_intercepts:
            raise InvalidInput(
                Option("test"), " rows need an intercept of their client, which the model does not hold"
            )
        if test is not None:
            is_parquet(existing_file(test))
        with folder.output_folder(out):
            began = time.perf_counter()
            with progress_bar("Reading the table", None):
                problem = folder.open_with_cache(
                    table.opener(data), out, cache_dir=table.cache_dir, overwrite=overwrite
                )
            reading_seconds = time.perf_counter() - began
            kind = tables.describe_kind(problem, table.kind)
            console.print(f"Model: {kind}", soft_wrap=True, markup=False)
            if in_file(problem.x):
                console.print(
                    f"The table's numbers, {problem.x.nbytes / 2**30:,.2f} GiB, are read from "
                    f"{table.cache_dir or out / folder.CACHE}; that folder may be removed when it is no longer "
                    "needed.",
                    soft_wrap=True,
                    markup=False,
                )
            content = folder.fit_in_folder(
                problem,
                settings,
                out,
                data=data,
                kind=kind,
                missing=table.missing,
                command=tables.command_line(context),
                test=test,
                text=table.text,
                overwrite=overwrite,
                reading_seconds=reading_seconds,
                announce=console.print,
            )
    _print(content, out, console)


def _print(content: ReportContent, out: Path, console: Console) -> None:
    """Print tables that fit 80 columns."""
    facts = Table(title=escape(content.title), show_header=False)
    for name, value in (*content.data[:2], *content.cost[:2]):
        facts.add_row(name, value)
    console.print(facts)
    names = list(content.models[0].metrics)[:2]
    shown = Table(title="Scaffold, FedAvg and pooled data")
    columns = ["model", "loss", "distance", *names]
    tested = content.models[0].test is not None
    columns += [f"test {name}" for name in names] if tested else []
    for column in columns:
        shown.add_column(column, justify="left" if column == "model" else "right")
    for model in content.models:
        cells = [model.name, f"{model.loss:.5g}", model.distance_text]
        for metrics in (model.metrics, model.test):
            if metrics is not None:
                cells += [f"{metrics[name]:.4g}" if name in metrics else "–" for name in names]
        shown.add_row(*cells)
    console.print(shown)
    console.print(content.summary, soft_wrap=True, markup=False)
    phases = ", ".join(f"{name} {seconds}" for name, seconds in content.time)
    console.print(f"Time: {phases}", soft_wrap=True, markup=False)
    console.print(f"Model, trace and report are in {out}", soft_wrap=True, markup=False)
