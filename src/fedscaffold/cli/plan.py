"""`fedscaffold plan`: which step size, local steps and rounds to use."""

from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from fedscaffold.cli import options
from fedscaffold.cli.refusals import refusals
from fedscaffold.core.checks import positive, whole_number
from fedscaffold.plan import GRADIENT_COST, ROUND_COST, plan
from fedscaffold.problems import paper
from fedscaffold.problems.paper import L2
from fedscaffold.reports import prediction as figure
from fedscaffold.run import run
from fedscaffold.theory import predict

EXAMPLES = (
    "Examples:\n\n"
    "  fedscaffold plan 1.0 --clients 100\n\n"
    "  fedscaffold plan 1e-3 --problem classification --simulate 20 --plot p.png\n\n"
    "  fedscaffold plan 1.0 --round-cost 1000    (communication is dear)"
)


def command(
    target: Annotated[float, typer.Argument(help="Squared error to reach.")],
    problem: options.Problem = "regression",
    clients: options.Clients = 100,
    l2: options.Penalty = L2,
    batch_size: options.BatchSize = "10",
    mode: Annotated[str, typer.Option(help="sharp (predicted) or certified (proved).")] = "sharp",
    max_local_steps: Annotated[int | None, typer.Option(help="Most local steps in a round.")] = None,
    max_rounds: Annotated[int | None, typer.Option(help="Most rounds.")] = None,
    round_cost: Annotated[float, typer.Option(help="What a communication costs.")] = ROUND_COST,
    gradient_cost: Annotated[float, typer.Option(help="What a stochastic gradient costs.")] = GRADIENT_COST,
    seed: options.Seed = 0,
    simulate: options.Simulate = 0,
    plot: options.Plot = None,
) -> None:
    """Find the cheapest way to a target, on one of the paper's problems, and explain it."""
    with refusals(interrupted="nothing was written"):
        positive("target", target)
        whole_number("simulate", simulate, least=0)
        batch = options.batch_size_of(batch_size)
        options.check_figure(plot)
        kind: Any = problem
        wanted: Any = mode
        made = paper(kind, n_clients=clients, l2=l2, seed=seed)
        found = plan(
            made,
            target_mse=target,
            batch_size=batch,
            mode=wanted,
            max_local_steps=max_local_steps,
            max_rounds=max_rounds,
            round_cost=round_cost,
            gradient_cost=gradient_cost,
        )
        console = Console(highlight=False)
        console.print(found.explain())
        trace = None
        if simulate:
            trace = run(made, found.method, rounds=found.rounds, batch_size=batch, seed=seed, repetitions=simulate)
            last = trace.mse[:, -1]
            error = last.std() / np.sqrt(last.size)
            console.print(f"Simulated squared error after the last round: {last.mean():.4g} ± {error:.2g}.")
        if plot is not None:
            predicted = predict(made, found.method, batch_size=batch, rounds=found.rounds)
            assert predicted.curve is not None
            figure.draw(
                plot,
                title=f"Plan for {problem}, N = {clients:,}: γ = {found.method.step_size:.3g}, "
                f"H = {found.method.local_steps}, T = {found.rounds}",
                method="Scaffold",
                curve=predicted.curve,
                plateau=predicted.mse,
                simulated=None if trace is None else trace.mse,
                target=target,
            )
