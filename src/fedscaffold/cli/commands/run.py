"""`fedscaffold run`: one run of one method."""

from pathlib import Path
from typing import Annotated, Any

import typer

from fedscaffold.cli import options
from fedscaffold.cli.errors import RESUMABLE, refusals
from fedscaffold.core.checks import whole_number
from fedscaffold.core.files import write_frame
from fedscaffold.simulation.run_method import run

EXAMPLES = (
    "Examples:\n\n"
    "  fedscaffold run --clients 100\n\n"
    "  fedscaffold run --problem classification --method fedavg --step-size 0.01 --out trace.npz\n\n"
    "  fedscaffold run --method scaffold:participation=0.1 --local-steps 20 --rounds 1000\n\n"
    "  fedscaffold run --engine native:threads=2,dtype=float32\n\n"
    "  fedscaffold run --track tensorboard:runs/scaffold"
)


def command(
    problem: options.Problem = "regression",
    clients: options.Clients = 100,
    method: options.OneMethod = "scaffold",
    step_size: options.StepSize = 0.05,
    local_steps: options.LocalSteps = 100,
    rounds: options.Rounds = 100,
    batch_size: options.BatchSize = "10",
    repetitions: options.Repetitions = 1,
    seed: options.Seed = 0,
    engine: options.EngineName = "auto",
    checkpoint: Annotated[Path | None, typer.Option(help="File to resume from after an interruption.")] = None,
    track: Annotated[
        list[str] | None, typer.Option(help="tensorboard:DIR, mlflow:URI or wandb:PROJECT; may be repeated.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Where to save: .npz (all), .csv or .parquet (curves).")] = None,
) -> None:
    """Run one method on a synthetic problem and print where it gets.

    Without options: Scaffold in the paper's setting, on regression with 100 clients.
    """
    with refusals(interrupted=RESUMABLE if checkpoint else "with --checkpoint FILE the same command could resume"):
        options.check_file("--out", out, (".npz", ".csv", ".parquet"))
        (chosen,) = options.candidates_of(method, step_sizes=[step_size], local_steps=[local_steps])
        settings: dict[str, Any] = {
            "rounds": whole_number("rounds", rounds, least=1),
            "repetitions": whole_number("repetitions", repetitions, least=1),
            "batch_size": options.batch_size_of(batch_size),
            "engine": options.engine_of(engine),
            "track": [options.tracker_of(each) for each in track or ()],
        }
        made = options.make_problem(problem, n_clients=clients, seed=seed)
        trace = run(made, chosen, seed=seed, checkpoint=checkpoint, **settings)
        if out is not None and out.suffix == ".npz":
            trace.save(out)
        elif out is not None:
            write_frame(out, trace.to_frame())
    plateau = trace.plateau()
    stationary = plateau and f"{options.with_error(plateau)}, from round {plateau.from_round} on"
    options.print_table(
        f"{method} on {trace.provenance['problem']['kind']}, {clients:,} clients",
        (
            ("squared error at the start", f"{trace.mse[:, 0].mean():.4g}"),
            ("after the last round", f"{trace.mse[:, -1].mean():.4g}"),
            ("plateau", stationary or "not reached yet"),
            ("gradients per client", f"{trace.gradients_per_client[:, -1].mean():,.0f}"),
            ("vectors sent and received per client", f"{trace.vectors_per_client[-1]:,.0f}"),
            ("seconds", f"{trace.provenance['elapsed_seconds']:.2f}"),
        ),
    )
