"""`fedscaffold sweep`: grids of runs, in one table that grows."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from fedscaffold.benchmarking import Family, Sweep, SweepRow
from fedscaffold.benchmarking import sweep as experiment
from fedscaffold.benchmarking.sweeps.figure import panels
from fedscaffold.cli import options
from fedscaffold.cli.errors import RESUMABLE, refusals
from fedscaffold.core.checks import seed_number
from fedscaffold.core.display.progress import Advance
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.protocols import Engine, Method
from fedscaffold.core.storage.files import check_writable, folder_at
from fedscaffold.engines import Numba, Ray, choose_engine
from fedscaffold.reports import plateaus as figures

if TYPE_CHECKING:
    import pandas as pd

EXAMPLES = (
    "Examples:\n\n"
    "  fedscaffold sweep --problem ridge-stream --clients 10,100,1000 --step-size 0.01,0.05 "
    "--local-steps 10,100 --seeds 5 --rounds 200 --out results/\n\n"
    "  fedscaffold sweep --problem classification --clients 100,1000 --method scaffold --method fedavg "
    "--predict --figure plateaus.png\n\n"
    "  fedscaffold sweep --problem logistic-stream:spectrum=1,l2=0.1 --batch-size 1,10 --start optimum\n\n"
    "  fedscaffold sweep --problem ridge-stream --clients 1000000 --engine ray --address auto  (a cluster)\n\n"
    "After an interruption the same command resumes; another grid with the same --out adds to the table."
)
FILE = "sweep.parquet"
SHOWN = 20  # rows of the live table


def command(
    problem: Annotated[
        str,
        typer.Option(
            help="regression, classification (the paper's), ridge-stream or logistic-stream; "
            "NAME:FIELD=VALUE,... for more, such as ridge-stream:dim=50,heterogeneity=2."
        ),
    ] = "regression",
    clients: Annotated[str, typer.Option(help="Numbers of clients, with commas.")] = "10,100,1000",
    method: Annotated[
        list[str] | None,
        typer.Option(
            help=f"{options.METHOD_NAMES}, or NAME:FIELD=VALUE,...; once for each method.", show_default="scaffold"
        ),
    ] = None,
    step_size: Annotated[str, typer.Option(help="γ, with commas.")] = "0.05",
    local_steps: Annotated[str, typer.Option(help="H, with commas; for proxskip 1/p.")] = "10",
    batch_size: Annotated[str, typer.Option(help="Records per step, with commas; 'full' for all.")] = "10",
    rounds: Annotated[int, typer.Option(help="T, communications.")] = 200,
    seeds: Annotated[int, typer.Option(help="Independent runs of each cell, side by side.")] = 1,
    seed: Annotated[int, typer.Option(help="Seed of the noise.")] = 0,
    data_seed: Annotated[int, typer.Option(help="Seed of the data.")] = 0,
    start: Annotated[str, typer.Option(help="Where runs start: zero, or optimum.")] = "zero",
    predict: Annotated[bool, typer.Option("--predict", help="Add the predicted plateaus.")] = False,
    engine: Annotated[str, typer.Option(help="numba, ray, jax or reference.")] = "numba",
    threads: Annotated[int | None, typer.Option(help="Threads of numba; all cores by default.")] = None,
    shards: Annotated[int | None, typer.Option(help="Shards on ray; one per processor by default.")] = None,
    address: Annotated[str | None, typer.Option(help="Of a Ray cluster; this machine by default.")] = None,
    figure: Annotated[
        Path | None, typer.Option(help="Draw plateaus against N to this file: .png, .svg or .pdf.")
    ] = None,
    out: Annotated[Path, typer.Option(help="A .parquet file, or a folder for sweep.parquet.")] = Path(
        "results/sweep"
    ),
) -> None:
    """Run a grid: numbers of clients × methods × step sizes × local steps × batch sizes, some seeds each.

    Each cell becomes a row of one Parquet file: its plateau with a standard error, whether it was stationary,
    still moving or diverged, its last error, its time. Cells that the file has are not run again.
    """
    with refusals(interrupted=RESUMABLE):
        grid = Sweep(
            family=_family(problem, data_seed),
            clients=options.numbers_of("--clients", clients, int),
            methods=_methods(method or ["scaffold"], step_size, local_steps),
            batch_sizes=[options.batch_size_of(text) for text in batch_size.split(",")],
            rounds=rounds,
            seeds=seeds,
            seed=seed,
            start=start,  # type: ignore[arg-type]
        )
        chosen = _engine(engine, threads=threads, shards=shards, address=address)
        options.check_figure(figure, option="--figure")
        file = _file(out)
        with _shown(sys.stderr.isatty(), predict=predict) as (advance, seen):
            frame = experiment(grid, out=file, engine=chosen, predict=predict, progress=advance, seen=seen)
        if figure is not None:
            figures.draw(panels(frame), [figure])
    _print(frame, file, predict=predict)


def _family(text: str, seed: int) -> Family:
    name, settings = options.fields_of("--problem", text)
    seed_number("data_seed", seed)
    return Family(name=name, settings=settings, seed=seed)


def _methods(given: Sequence[str], step_size: str, local_steps: str) -> list[Method]:
    sizes = options.numbers_of("--step-size", step_size, float)
    lengths = options.numbers_of("--local-steps", local_steps, int)
    if min(lengths) < 1:
        raise InvalidInput(f"--local-steps must be at least 1, got {local_steps}")
    return [m for text in given for m in options.candidates_of(text, step_sizes=sizes, local_steps=lengths)]


def _engine(name: str, *, threads: int | None, shards: int | None, address: str | None) -> Engine:
    chosen = choose_engine(name)
    if not isinstance(chosen, Ray) and (shards is not None or address is not None):
        raise InvalidInput("--shards and --address are for --engine ray")
    if not isinstance(chosen, Numba) and threads is not None:
        raise InvalidInput("--threads is for --engine numba")
    if isinstance(chosen, Ray):
        return Ray(shards=shards, address=address)
    return Numba(threads=threads) if isinstance(chosen, Numba) else chosen


def _file(out: Path) -> Path:
    file = out if out.suffix == ".parquet" else folder_at(out) / FILE
    check_writable(file)
    return file


@contextmanager
def _shown(wanted: bool, *, predict: bool) -> Iterator[tuple[Advance, Callable[[SweepRow], None]]]:
    """Show a table that grows and a progress bar; nothing unless `wanted`."""
    if not wanted:
        yield lambda done, total: None, lambda row: None
        return
    bars = Progress(TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    task = bars.add_task("Sweep", total=None)
    rows: list[dict[str, Any]] = []
    with Live(bars, console=Console(stderr=True), transient=True, refresh_per_second=4) as live:

        def seen(row: SweepRow) -> None:
            rows.append(vars(row))
            live.update(Group(_table(rows[-SHOWN:], predict=predict), bars))

        yield lambda done, total: bars.update(task, completed=done, total=total), seen


def _table(rows: Sequence[Mapping[Any, Any]], *, predict: bool) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1))
    columns = ["method", "N", "γ", "H", "B", "plateau", *(["predicted"] if predict else []), "", "s", "ns/step"]
    for column in columns:
        table.add_column(column, justify="left" if column in ("method", "") else "right", no_wrap=True)
    for row in rows:
        B = "full" if _missing(row["batch_size"]) else str(row["batch_size"])
        diverged = row["outcome"] == "diverged"
        reached = "–" if diverged else f"{row['plateau']:.3g} ± {row['standard_error']:.1g}"
        with_prediction = "–" if _missing(row["predicted"]) else f"{row['predicted']:.3g}"
        speed = "–" if diverged else f"{row['ns_per_step']:.0f}"
        table.add_row(
            row["method"], f"{row['n_clients']:,}", f"{row['step_size']:g}", f"{row['local_steps']:g}", B, reached,
            *([with_prediction] if predict else []), row["outcome"], f"{row['seconds']:.1f}", speed,
        )  # fmt: skip
    return table


def _missing(value: Any) -> bool:
    """Whether a value is None, NaN or pandas' NA."""
    import pandas as pd

    return bool(pd.isna(value))


def _print(frame: "pd.DataFrame", file: Path, *, predict: bool) -> None:
    """Print all rows on a terminal, and in any case how many there are and in which file."""
    if sys.stdout.isatty():
        Console().print(_table(frame.to_dict("records"), predict=predict))
    counts = frame["outcome"].value_counts()
    words = ", ".join(f"{counts[outcome]} {outcome}" for outcome in counts.index)
    typer.echo(f"{len(frame)} cells ({words}) are in {file}")
