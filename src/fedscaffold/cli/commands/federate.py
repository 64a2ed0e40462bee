"""`fedscaffold federate`: a real federation on this machine, compared with the simulation."""

import os
import signal
import subprocess
import tempfile
import time
import warnings
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from fedscaffold.cli import table_options as tables
from fedscaffold.cli.errors import FAILED, refusals
from fedscaffold.core.errors import DataWarning, InvalidInput, Option
from fedscaffold.core.progress import Advance, progress_bar
from fedscaffold.data import from_frame
from fedscaffold.data.columns import pick
from fedscaffold.data.open import guess_kind
from fedscaffold.flower.demo import ROUND, Demo, SiteTable, pool_tables, site_tables
from fedscaffold.flower.loopback import ADDRESS, Loopback
from fedscaffold.flower.processes import FederationFailed
from fedscaffold.models.planning.planned import TOLERANCE, FitSettings, PlannedFit, plan_fit
from fedscaffold.simulation.run import run

EXAMPLES = (
    "Examples:\n\n"
    "  fedscaffold federate bonn.csv graz.csv kiel.parquet --target readmitted\n\n"
    "  fedscaffold federate visits.csv --client hospital --target readmitted --rounds 20 --out demo\n\n"
    "A round takes some seconds: Flower starts a process for every message."
)
AGREES = 1e-10


def command(
    data: Annotated[list[Path], typer.Argument(help="A .csv or .parquet file per node; one file with --client.")],
    target: tables.Target,
    client: Annotated[str | None, typer.Option(help="Split one file by this column, a node per value.")] = None,
    kind: tables.Kind = None,
    features: tables.Features = None,
    l2: tables.TablePenalty = None,
    missing: tables.Missing = "error",
    batch_size: tables.Batch = "auto",
    step_size: Annotated[float | None, typer.Option(help="γ; planned unless given.")] = None,
    local_steps: Annotated[int | None, typer.Option(help="H; planned unless given.")] = None,
    rounds: Annotated[int | None, typer.Option(help="T; planned unless given.")] = None,
    seed: tables.Seed = 0,
    out: Annotated[
        Path | None,
        typer.Option(help="A new folder for the model, the app, keys and logs; a temporary one otherwise."),
    ] = None,
) -> None:
    """Run a real federation on this machine: a Flower SuperNode per table, then compare.

    Every process is real and talks over TLS; nodes prove who they are with keys made for this run. Each node reads
    its own file only. At the end the model is compared with the one that `fedscaffold.run` simulates from the same
    seed.
    """
    console = Console(highlight=False)
    with refusals(interrupted="all processes were ended"), _ended_by_signal():
        settings = FitSettings(
            batch_size=tables.parse_batch(batch_size), step_size=step_size, local_steps=local_steps, rounds=rounds,
            seed=seed, tolerance=TOLERANCE,
        )  # fmt: skip
        if out is not None and out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise InvalidInput(f"{out} exists and is not empty; give the name of a new folder")
        with progress_bar("Reading and planning", None):
            parts = site_tables(data, client)
            task = _task(parts, settings, target=target, kind=kind, features=features, l2=l2, missing=missing)
        with tempfile.TemporaryDirectory(prefix="fedscaffold-") as temporary:
            demo = Demo(folder=(Path(temporary) / "federation" if out is None else out).resolve())
            demo.write(task, seed=seed)
            split = client is not None
            files = (
                [demo.write_part(k, part.table) for k, part in enumerate(parts)] if split else _files(data, parts)
            )
            seconds, theta = _federate(demo, task, files, console)
        simulated = run(
            task.problem, task.method, rounds=task.rounds, batch_size=task.batch_size, seed=seed,
            progress=False,
        )  # fmt: skip
        if out is not None:
            task.model(theta, {"federation": True, "rounds": task.rounds, "seed": seed}).save(out / "model.json")
        difference = float(np.abs(theta - simulated.theta[0]).max())
        distance = task.relative_distance(theta)
        _warn_if_far(task, distance)
    _print(parts, task, seconds, difference, distance, out, console)
    if not difference <= AGREES:
        raise typer.Exit(FAILED)


def _task(
    parts: list[SiteTable], settings: FitSettings, *, target: str, kind: str | None, features: str | None,
    l2: float | None, missing: str,
) -> PlannedFit:  # fmt: skip
    table, column = pool_tables(parts)
    wanted: Any = kind or guess_kind(table.column(pick(table.schema.names, target)).chunks)
    filled: Any = missing
    columns = None if features is None else [name.strip() for name in features.split(",") if name.strip()]
    problem = from_frame(
        table, target=target, client=column, features=columns, kind=wanted, missing=filled, weights="rows",
        l2="auto" if l2 is None else l2, standardize=True, intercept=True,
    )  # fmt: skip
    return plan_fit(problem, settings)


def _files(data: list[Path], parts: list[SiteTable]) -> list[Path]:
    """The user's files in the order of the nodes."""
    by_name = {file.name.split(".")[0]: file for file in data}
    return [by_name[part.name] for part in parts]


def _federate(demo: Demo, task: PlannedFit, files: list[Path], console: Console) -> tuple[float, Any]:
    """Start all processes, run, and end them; returns seconds per round and θ."""
    nodes = [demo.node(k, file) for k, file in enumerate(files)]
    last: deque[str] = deque(maxlen=30)
    with Loopback(demo.folder / "flower", nodes) as loopback:
        console.print(
            f"SuperLink on {ADDRESS}:{loopback.port} with TLS; {len(nodes)} SuperNodes with registered keys",
            soft_wrap=True,
        )  # fmt: skip
        process = loopback.run(demo.app, {"settings": str(demo.settings)})
        began = time.monotonic()
        try:
            with progress_bar("Federation", None) as advance:
                first = _follow(process, last, advance)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        done, theta = demo.theta(task)
        if done < task.rounds:
            raise FederationFailed(
                f"the run ended after {done} of {task.rounds} rounds; the end of Flower's log:\n" + "".join(last)
            )
    return (time.monotonic() - (first or began)) / max(1, task.rounds - 1), theta


def _follow(process: "subprocess.Popen[str]", last: deque[str], advance: Advance) -> float | None:
    """Read the log until it ends; returns the time at which the first round was closed."""
    assert process.stdout is not None
    first = None
    for line in process.stdout:
        last.append(line)
        found = ROUND.search(line)
        if found:
            first = first or time.monotonic()
            advance(int(found[1]), int(found[2]))
    process.wait()
    return first


@contextmanager
def _ended_by_signal() -> Iterator[None]:
    """Treat SIGTERM as an interrupt too, so that no process is left behind."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _warn_if_far(task: PlannedFit, distance: float) -> None:
    """Say so where the model is not as close to the pooled one as a plan would bring it."""
    if distance <= task.aim:
        return
    planned = 0 if task.plan is None else task.plan.rounds
    more = planned if planned > task.rounds else 2 * task.rounds
    warnings.warn(
        DataWarning(
            f"after {task.rounds:,} rounds the coefficients are {100.0 * distance:.2g} % from the pooled model's, "
            f"more than {100.0 * task.aim:.2g} %",
            remedies=[("take ", Option("rounds", more))],
        ),
        stacklevel=2,
    )


def _print(
    parts: list[SiteTable], task: PlannedFit, seconds: float, difference: float, distance: float, out: Path | None,
    console: Console,
) -> None:  # fmt: skip
    shown = Table(title=f"{len(parts)} nodes, {task.rounds} rounds", show_header=False)
    names = ", ".join(f"{part.name} ({part.table.num_rows:,} rows)" for part in parts)
    shown.add_row("nodes", names)
    shown.add_row("method", f"Scaffold, γ = {task.method.step_size:.3g}, H = {task.method.local_steps}")
    shown.add_row("seconds per round", f"{seconds:.1f}")
    shown.add_row("distance to the pooled model", f"{distance:.2g} (relative)")
    shown.add_row("largest difference to the simulation", f"{difference:.2g}")
    console.print(shown)
    verdict = "the same model" if difference <= AGREES else f"NOT the same model: more than {AGREES:g} apart"
    console.print(f"Federation and simulation give {verdict}.", soft_wrap=True)
    if out is not None:
        console.print(f"Model, app, keys and logs are in {out}", soft_wrap=True, markup=False)
