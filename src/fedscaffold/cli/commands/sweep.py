"""`fedscaffold sweep`: grids of runs, in one table that grows."""

from typing import Annotated

import typer

from fedscaffold.benchmarking import Sweep
from fedscaffold.cli import options
from fedscaffold.cli.errors import RESUMABLE, refusals

EXAMPLES = (
    "Examples:\n\n"
    "  fedscaffold sweep --problem ridge-stream --clients 10,100,1000 --step-size 0.01,0.05 "
    "--local-steps 10,100 --out results/\n\n"
    "  fedscaffold sweep --problem classification --clients 100,1000 --method scaffold --method fedavg "
    "--predict --plot plateaus.png\n\n"
    "  fedscaffold sweep --problem my_module.make_problem:noise=2 --batch-size 1,10\n\n"
    "  fedscaffold sweep --problem ridge-stream --clients 1000000 --engine ray:address=auto    # a cluster\n\n"
    "After an interruption the same command resumes; another grid with the same --out runs only its new cells."
)


def command(
    problem: options.Problem = "regression",
    clients: options.SeveralClients = "10,100,1000",
    method: options.Methods = None,
    step_size: options.SeveralStepSizes = "0.05",
    local_steps: options.SeveralLocalSteps = "10",
    batch_size: Annotated[str, typer.Option(help="Records per step, with commas; 'full' for all.")] = "10",
    rounds: options.Rounds = 200,
    repetitions: options.Repetitions = 1,
    seed: Annotated[int, typer.Option(help="Seed of the noise.")] = 0,
    predict: Annotated[bool, typer.Option("--predict", help="Add the predicted plateaus.")] = False,
    engine: options.EngineName = "auto",
    plot: options.Plot = None,
    out: options.ResultFolder = None,
) -> None:
    """Run a grid: numbers of clients × methods × step sizes × local steps × batch sizes.

    Prints a row for each cell: its plateau with a standard error, and whether it was stationary, still moving or
    diverged. With --out the rows are kept, and finished cells are not run again.
    """
    advice = RESUMABLE if out else "with --out FOLDER the same command could resume"
    with refusals(interrupted=advice):
        function, arguments = options.problem_of(problem)
        sizes = options.numbers_of("--step-size", step_size or "", float)
        lengths = options.numbers_of("--local-steps", local_steps, int, least=1)
        methods = [
            candidate
            for text in method or ["scaffold"]
            for candidate in options.candidates_of(text, step_sizes=sizes, local_steps=lengths)
        ]
        grid = {
            **arguments,
            "n_clients": options.numbers_of("--clients", clients, int),
            "method": methods,
            "batch_size": [options.batch_size_of(text) for text in batch_size.split(",")],
        }
        study = Sweep(problem=function, grid=grid, rounds=rounds, repetitions=repetitions, seed=seed)
        chosen = options.engine_of(engine)
        options.check_figure(plot)
        table = study.run(out=out, engine=chosen, predict=predict)
        typer.echo(table.table())
        if out is not None:
            typer.echo(f"The table and finished cells are in {out}")
        if plot is not None:
            table.draw(plot)
