"""`fedscaffold run`: one run of one method."""

import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fedscaffold.cli.errors import RESUMABLE, refusals
from fedscaffold.cli.options import METHOD_NAMES, batch_size_of, candidates_of, engine_of, problem_of
from fedscaffold.core.checks import whole_number
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.files import check_writable, write_frame
from fedscaffold.simulation import Trace
from fedscaffold.simulation.run_method import run

EXAMPLES = (
    "Examples:\n\n"
    "  fedscaffold run --clients 100\n\n"
    "  fedscaffold run --problem classification --method fedavg --step-size 0.01 --out trace.npz\n\n"
    "  fedscaffold run --method scaffold:participation=0.1 --local-steps 20 --rounds 1000\n\n"
    "  fedscaffold run --engine numba:threads=2,dtype=float32"
)
SUFFIXES = (".npz", ".csv", ".parquet")


def command(
    problem: Annotated[
        str,
        typer.Option(
            help="regression or classification (the paper's data; the latter needs scikit-learn), ridge-stream or "
            "logistic-stream (clients that are distributions), or module.function; NAME:FIELD=VALUE,... for more."
        ),
    ] = "regression",
    clients: Annotated[int, typer.Option(help="Number of clients, even for the paper's problems.")] = 100,
    method: Annotated[str, typer.Option(help=f"{METHOD_NAMES}; NAME:FIELD=VALUE,... for more.")] = "scaffold",
    step_size: Annotated[float, typer.Option(help="γ.")] = 0.05,
    local_steps: Annotated[int, typer.Option(help="H, steps between communications.")] = 100,
    rounds: Annotated[int, typer.Option(help="T, communications.")] = 100,
    batch_size: Annotated[str, typer.Option(help="Records per step, or 'full'.")] = "10",
    repetitions: Annotated[int, typer.Option(help="Independent runs, side by side.")] = 1,
    seed: Annotated[int, typer.Option(help="Seed of data and noise.")] = 0,
    engine: Annotated[
        str, typer.Option(help="auto, numba, jax, ray or reference; NAME:FIELD=VALUE,... for more.")
    ] = "auto",
    checkpoint: Annotated[Path | None, typer.Option(help="File to resume from after an interruption.")] = None,
    out: Annotated[Path | None, typer.Option(help="Where to save: .npz (all), .csv or .parquet (curves).")] = None,
) -> None:
    """Run one method on a synthetic problem and print where it gets.

    Without options: Scaffold in the paper's setting, on regression with 100 clients.
    """
    with refusals(interrupted=RESUMABLE if checkpoint else "with --checkpoint FILE the same command could resume"):
        if out is not None:
            if out.suffix not in SUFFIXES:
                raise InvalidInput(f"out must end in {', '.join(SUFFIXES)}, got {out}")
            check_writable(out)
        (chosen,) = candidates_of(method, step_sizes=[step_size], local_steps=[local_steps])
        settings: dict[str, Any] = {
            "rounds": whole_number("rounds", rounds, least=1),
            "repetitions": whole_number("repetitions", repetitions, least=1),
            "batch_size": batch_size_of(batch_size),
            "engine": engine_of(engine),
        }
        make, arguments = problem_of(problem)
        data = make(**{"n_clients": clients, "seed": seed, **arguments})
        begin = time.perf_counter()
        trace = run(data, chosen, seed=seed, checkpoint=checkpoint, **settings)
        seconds = time.perf_counter() - begin
        if out is not None and out.suffix == ".npz":
            trace.save(out)
        elif out is not None:
            write_frame(out, trace.to_frame())
    _print(f"{method} on {trace.provenance['problem']['kind']}, {clients:,} clients", trace, seconds)


def _print(title: str, trace: Trace, seconds: float) -> None:
    table = Table(title=title, show_header=False)
    plateau = trace.plateau()
    reached = "not reached yet"
    if plateau is not None:
        reached = f"{plateau.mean:.4g} ± {plateau.standard_error:.2g}, from round {plateau.from_round} on"
    for name, value in (
        ("squared error at the start", f"{trace.mse[:, 0].mean():.4g}"),
        ("after the last round", f"{trace.mse[:, -1].mean():.4g}"),
        ("plateau", reached),
        ("gradients per client", f"{trace.gradients_per_client[:, -1].mean():,.0f}"),
        ("vectors sent and received per client", f"{trace.vectors_per_client[-1]:,.0f}"),
        ("seconds", f"{seconds:.2f}"),
    ):
        table.add_row(name, value)
    Console().print(table)
