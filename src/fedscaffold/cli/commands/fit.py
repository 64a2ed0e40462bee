"""`fedscaffold fit`: a table with a client column becomes a model, its numbers and a page about them."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedscaffold.cli import options
from fedscaffold.cli import table_options as tables
from fedscaffold.cli.errors import refusals
from fedscaffold.core import npz as arrays
from fedscaffold.core.errors import Diverged, InvalidInput
from fedscaffold.core.files import replacing
from fedscaffold.core.memmap import in_file
from fedscaffold.core.progress import progress_bar
from fedscaffold.data.files import existing_file, is_parquet, read_table
from fedscaffold.data.on_disk.cache import CacheMismatch, remove_cache
from fedscaffold.data.open import L2, default_max_bytes_in_memory
from fedscaffold.models import compare, folder
from fedscaffold.models.fit import TOLERANCE, Settings, prepare, run_task
from fedscaffold.models.metrics import of_model
from fedscaffold.models.report import ReportInputs, tell
from fedscaffold.reports.page import Content, render

EXAMPLES = (
    "Examples:\n\n"
    "  fedscaffold fit visits.csv --target readmitted --client hospital --out model\n\n"
    "  fedscaffold fit sales.parquet --target revenue --client shop --test new.parquet --out model\n\n"
    "The folder gets model.json, trace.npz and report.html. The same command goes on after an interruption."
)


def command(
    context: typer.Context,
    data: tables.Data,
    target: tables.Target,
    client: tables.Client,
    out: Annotated[Path, typer.Option(help="Folder for the model, the trace and the report.")],
    kind: tables.Kind = None,
    features: tables.Features = None,
    test: Annotated[Path | None, typer.Option(help="A table of other rows, to judge the model on.")] = None,
    l2: options.Penalty = L2,
    missing: tables.Missing = "error",
    tolerance: tables.Tolerance = TOLERANCE,
    batch_size: tables.Batch = "auto",
    step_size: Annotated[float | None, typer.Option(help="γ; planned unless given.")] = None,
    local_steps: Annotated[int | None, typer.Option(help="H; planned unless given.")] = None,
    rounds: Annotated[int | None, typer.Option(help="T; planned unless given.")] = None,
    seed: tables.Seed = 0,
    cache_dir: Annotated[
        Path | None,
        typer.Option(
            help="Parquet: keep the encoded records in this folder, not in memory. Unless given, tables that "
            "would take more than a quarter of the memory are kept in the folder 'records' of --out."
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the fit of other data or settings that the folder holds.")
    ] = False,
) -> None:
    """Fit one model to a table whose rows belong to clients, as a federation would.

    Numbers are standardised, text becomes categories, there is an intercept, and clients count by their rows. Step
    size, local steps and rounds are chosen so that the model comes within --tolerance of the one that pooled data
    would give.
    """
    with refusals(interrupted="the same command goes on where it stopped"):
        settings = Settings(
            tolerance=tolerance,
            batch_size=tables.batch_of(batch_size),
            step_size=step_size,
            local_steps=local_steps,
            rounds=rounds,
            seed=seed,
        )
        is_parquet(data if data.is_dir() else existing_file(data))
        if test is not None:
            is_parquet(existing_file(test))
        folder.check_folder(out)
        own = out / folder.RECORDS if cache_dir is None else cache_dir
        asked: dict[str, Any] = {
            "target": target,
            "client": client,
            "kind": kind,
            "features": features,
            "l2": l2,
            "missing": missing,
            "cache_dir": own,
            "max_bytes_in_memory": default_max_bytes_in_memory() if cache_dir is None else 0,
        }
        with progress_bar("Reading the table", None):
            try:
                problem = tables.open_table(data, **asked)
            except CacheMismatch:
                if not overwrite or cache_dir is not None:
                    raise
                remove_cache(own)
                problem = tables.open_table(data, **asked)
            request = arrays.plain(folder.request_of(problem, settings))
        if not overwrite:
            folder.check_owner(out, request)
        console = Console(highlight=False)
        console.print(f"Model: {tables.chosen(problem, kind)}", soft_wrap=True, markup=False)
        if in_file(problem.x):
            console.print(
                f"The table's numbers, {problem.x.nbytes / 2**30:,.2f} GiB, are read from {own}; that folder may "
                "be removed when it is no longer needed.",
                soft_wrap=True,
                markup=False,
            )
        with progress_bar("Planning", None):
            task = prepare(problem, settings)
            test_table = _test_table(test, task.model(task.optimum))
        if folder.begin(out, request):
            console.print("Going on where an earlier fit was interrupted.")
        provenance: dict[str, Any] = {"data": data.name, "request": request}
        try:
            fitted = run_task(task, settings, checkpoint=out / folder.CHECKPOINT, provenance=provenance)
        except Diverged:
            folder.finish(out)
            raise
        averaged = compare.fedavg(task, settings, rounds=fitted.trace.rounds)
        story = ReportInputs(
            data=data,
            test=test,
            test_table=test_table,
            kind=tables.chosen(problem, kind),
            missing=missing,
            command=tables.command_line(context),
        )
        with progress_bar("Comparing and writing", None):
            content = tell(fitted, averaged, story)
            fitted.trace.save(out / folder.TRACE)
            with replacing(out / folder.REPORT) as temporary:
                temporary.write_text(render(content), encoding="utf-8")
            fitted.model.save(out / folder.MODEL)
            folder.finish(out)
    _print(content, out, console)


def _test_table(test: Path | None, model: Any) -> Any:
    """The test rows, refused now rather than after the run where the model could not read them."""
    if test is None:
        return None
    table = read_table(test)
    try:
        of_model(model, table)
    except InvalidInput as error:
        raise InvalidInput(f"{test}: {error}") from None
    return table


def _print(content: Content, out: Path, console: Console) -> None:
    """Tables that can be read at 80 columns."""
    facts = Table(title=escape(content.title), show_header=False)
    for name, value in (*content.data[:2], *content.cost[:2]):
        facts.add_row(name, value)
    console.print(facts)
    names = list(content.candidates[0].metrics)[:2]
    shown = Table(title="Scaffold, FedAvg and pooled data")
    columns = ["model", "loss", "distance", *names]
    tested = content.candidates[0].test is not None
    columns += [f"test {name}" for name in names] if tested else []
    for column in columns:
        shown.add_column(column, justify="left" if column == "model" else "right")
    for candidate in content.candidates:
        cells = [candidate.name, f"{candidate.loss:.5g}", f"{candidate.distance:.2g}"]
        for metrics in (candidate.metrics, candidate.test):
            if metrics is not None:
                cells += [f"{metrics[name]:.4g}" if name in metrics else "–" for name in names]
        shown.add_row(*cells)
    console.print(shown)
    console.print(content.summary, soft_wrap=True, markup=False)
    console.print(f"Model, trace and report are in {out}", soft_wrap=True, markup=False)
