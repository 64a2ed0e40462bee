"""`fedscaffold fit`: a table with a client column becomes a model with standard errors, and a page about it."""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from fedscaffold.cli import table_options as tables
from fedscaffold.cli.errors import refusals
from fedscaffold.cli.options import csv_format, print_table
from fedscaffold.core.display import progress_bar
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.files import check_writable, folder_at
from fedscaffold.core.machine import in_file
from fedscaffold.data.encoded import EncodedProblem
from fedscaffold.data.files import existing_file, is_parquet, read_table
from fedscaffold.data.on_disk import CacheMismatch, remove_cache
from fedscaffold.data.open import default_max_bytes_in_memory
from fedscaffold.data.public import Bounds
from fedscaffold.inference.training import TOLERANCE
from fedscaffold.models.fit import FILES, MODEL, Fit, fit
from fedscaffold.models.from_data import DROPPED
from fedscaffold.models.metrics import score_table
from fedscaffold.models.private import private_fit
from fedscaffold.privacy.plan import PrivacySettings, refuse_beside_epsilon

CACHE = "cache"  # a folder for the encoded rows of tables that do not fit in memory
PRIVATE = {
    "data", "target", "client", "out", "kind", "l2", "categorical", "step_size", "rounds",
    "epsilon", "delta", "clip", "bounds", "overwrite", "delimiter", "decimal", "encoding", "settings",
}  # fmt: skip
EXAMPLES = (
    "Examples:\n\n"
    "  fedscaffold fit visits.csv --target readmitted --client hospital --out model\n\n"
    "  fedscaffold fit sales.parquet --target revenue --client shop --test new.parquet --out model\n\n"
    "  fedscaffold fit visits.csv --target ill --client hospital --epsilon 3 --bounds bounds.toml --out model\n\n"
    "  fedscaffold fit visits.csv --target days --client hospital --trainer newton --set min_rows=1 --out m\n\n"
    "--set takes every other parameter of fedscaffold.fit: columns (categorical, reference, dates, exposure, "
    "offset, weight), limits (min_rows, max_categories), CSV files (delimiter, decimal, encoding), the training "
    "(max_exchanges, client_intercepts, dispersion, engine), the privacy budget (delta, clip, step_size, "
    "rounds).\n\n"
    "The folder gets model.json, summary.txt, coefficients, results.json, report.html, and the sums from which "
    "fedscaffold.models.load computes other standard errors."
)
MORE = (*tables.FIT_SETTINGS, *tables.BUDGET_SETTINGS, "cache_dir", *DROPPED)


@tables.with_table_options(more=MORE)
def command(
    context: typer.Context,
    data: tables.Data,
    table: tables.TableFlags,
    out: Annotated[Path, typer.Option(help="Folder for the model, its coefficients and the report.")],
    trainer: Annotated[
        str, typer.Option(help="newton (few coefficients), scaffold (many), or auto, the faster one.")
    ] = "auto",
    tolerance: tables.Tolerance = TOLERANCE,
    test: Annotated[Path | None, typer.Option(help="A table of other rows, to score the model on.")] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the model that the folder holds.")
    ] = False,
    epsilon: tables.Epsilon = None,
    bounds: tables.BoundsFile = None,
) -> None:
    """Fit one model to a table whose rows belong to clients, as a study would.

    Numbers are standardised, text becomes categories, there is an intercept, and clients count by their rows. The
    model is trained from sums over clients, and certified to be within --tolerance of the one that pooled data
    would give. A Parquet table that would take more than a quarter of the memory is kept in the folder 'cache'
    of --out unless --set cache_dir=FOLDER is given.

    With --epsilon the model protects every row: gradients are clipped and get noise, columns are coded by
    --bounds, and nothing else is computed from the rows. summary.txt then says what the budget protects.
    """
    with refusals(interrupted="nothing was written"):
        for name in table.settings:
            if name in DROPPED:
                raise InvalidInput(f"fit has no {name}: {DROPPED[name]}")
        if epsilon is not None:
            asked = tables.given_options(context) | set(table.settings)
            refuse_beside_epsilon(dict.fromkeys(name for name in sorted(asked - PRIVATE)), {})
            planned = {name: table.settings.get(name) for name in tables.BUDGET_SETTINGS}
            budget = PrivacySettings(epsilon=epsilon, **planned)
            given = {name: value for name, value in table.table.items() if name in ("kind", "categorical")}
            file = None if bounds is None else Bounds.load(bounds)
            known = Bounds.parse(file, target=table.target, **given)
            with output_folder(out, overwrite=overwrite):
                found = private_fit(
                    data, client=table.client, settings=budget, bounds=known, l2=table.table.get("l2", "auto"),
                    text=csv_format(table.settings),
                )  # fmt: skip
                found.save(out)
            values = ((name, f"{value:.4g}") for name, value in found.model.named_coefficients)
            print_table(f"A private model of {table.target}", values, header=("column", "coefficient"))
            typer.echo(f"{found.explain()}\nThe model and this text are in {out}")
            return
        for name in (*tables.BUDGET_SETTINGS, "bounds"):
            if name in table.settings or (name == "bounds" and bounds is not None):
                raise InvalidInput(f"{name} requires epsilon=...")
        chosen: Any = trainer
        settings = table.fit_settings(tolerance=tolerance, trainer=chosen)
        is_parquet(data if data.is_dir() else existing_file(data))
        if test is not None:
            if settings.client_intercepts is True:
                raise InvalidInput("test=... does not support client_intercepts, which the model does not hold")
            is_parquet(existing_file(test))
        with output_folder(out, overwrite=overwrite):
            with progress_bar("Reading the table", None):
                problem = open_with_cache(data, table, out, overwrite=overwrite)
            typer.echo(f"Model: {tables.describe_kind(problem, table.table.get('kind'))}")
            if in_file(problem.x):
                typer.echo(
                    f"The table's numbers, {problem.x.nbytes / 2**30:,.2f} GiB, are read from "
                    f"{table.cache_dir or out / CACHE}; that folder may be removed when it is no longer "
                    "needed."
                )
            with progress_bar("Training", None):
                found = fit(problem, settings=settings, name=data.name)
            command_line = shlex.join(context.meta["words"])
            found = replace(found, notes=(*found.notes, f"This page was made by: {command_line}"))
            if test is not None:
                found = replace(found, evaluation={str(test): _scores(found, test, table)})
            found.save(out)
    _print(found)
    typer.echo(f"Model, coefficients and report are in {out}")


def _scores(found: Fit, test: Path, table: tables.TableFlags) -> dict[str, float]:
    """Return metrics of the model on the rows of another file."""
    try:
        metrics = score_table(found.model, read_table(test, csv_format(table.settings))).metrics
        if metrics is None:
            raise InvalidInput(f"the table has no column {found.model.encoding.target!r}, the target")
        return metrics
    except InvalidInput as error:
        raise InvalidInput(f"{test}: {error}") from None


def open_with_cache(data: Path, table: tables.TableFlags, out: Path, *, overwrite: bool) -> EncodedProblem:
    """Return the problem of a table for a fit in the folder `out`.

    Encoded rows go to the folder of --set cache_dir=... Without it, and if they would take more than a quarter of
    the memory, they go to a folder of `out`; rows of another table there are replaced with `overwrite`.
    """
    if table.cache_dir is not None:
        return table.open(data, cache_dir=table.cache_dir)
    in_memory = default_max_bytes_in_memory()
    try:
        return table.open(data, cache_dir=out / CACHE, max_bytes_in_memory=in_memory)
    except CacheMismatch:
        if not overwrite:
            raise
        remove_cache(out / CACHE)
        return table.open(data, cache_dir=out / CACHE, max_bytes_in_memory=in_memory)


@contextmanager
def output_folder(out: Path, *, overwrite: bool) -> Iterator[None]:
    """Make a folder for a fit if it is missing; raise before any work if it holds a fit or cannot be written.

    Folders that were made here and are still empty when the block ends, as after an error, are removed.
    """
    if not overwrite and (out / MODEL).exists():
        raise InvalidInput(
            f"{out} holds a model already; choose another folder, or replace it with overwrite=True"
        )
    made = [folder for folder in (out, *out.parents) if not folder.exists()]
    folder_at(out)
    try:
        for name in FILES:
            check_writable(out / name)
        yield
    finally:
        for folder in made:
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()


def _print(found: Fit) -> None:
    """Print coefficients, then how they were found and how close they are to the pooled ones."""
    if found.has_standard_errors:
        typer.echo(f"A federated model of {found.coding.encoding.target}\n{found.summary()}")
    else:
        values = ((name, f"{value:.4g}") for name, value in found.model.named_coefficients)
        title = f"A federated model of {found.coding.encoding.target}"
        print_table(title, values, header=("column", "coefficient"))
    for name, metrics in found.evaluation.items():
        print_table(f"Scores on {name}", ((metric, f"{value:.4g}") for metric, value in metrics.items()))
    for note in found.trained.notes:
        typer.echo(note)
    typer.echo(
        f"After {found.rounds:,} exchanges with {len(found.sites):,} clients the coefficients are certified to be "
        f"at most {found.distance_text} away from those of pooled data, "
        f"{'within' if found.reached else 'NOT within'} the tolerance of {found.settings.tolerance}."
    )
