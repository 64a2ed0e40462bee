"""`fedscaffold plan`: which step size, local steps and rounds to use."""

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from fedscaffold.cli import options
from fedscaffold.cli import table_options as tables
from fedscaffold.cli.errors import refusals
from fedscaffold.core.checks import positive, whole_number
from fedscaffold.core.errors import InvalidInput
from fedscaffold.models.fit import TOLERANCE, Settings, goal
from fedscaffold.problems import paper
from fedscaffold.problems.paper import L2
from fedscaffold.reports import prediction as figure
from fedscaffold.simulation.run import run
from fedscaffold.theory import predict
from fedscaffold.theory.planning.plan import GRADIENT_COST, ROUND_COST, plan

EXAMPLES = (
    "Examples:\n\n"
    "  fedscaffold plan 1.0 --clients 100\n\n"
    "  fedscaffold plan 1e-3 --problem classification --simulate 20 --plot p.png\n\n"
    "  fedscaffold plan 1.0 --round-cost 1000    (communication is dear)\n\n"
    "  fedscaffold plan visits.csv --target readmitted --client hospital --tolerance 0.01"
)


TABLES_ONLY = ("target", "client", "kind", "features", "missing", "tolerance", "cache_dir")
PAPER_ONLY = ("problem", "clients")


def command(
    context: typer.Context,
    what: Annotated[
        str,
        typer.Argument(
            metavar="SQUARED_ERROR|DATA",
            help="Squared error to reach on one of the paper's problems, or a table: a .csv or .parquet file.",
        ),
    ],
    problem: options.Problem = "regression",
    clients: options.Clients = 100,
    target: Annotated[str, typer.Option(help="Tables: the column to predict.")] = "",
    client: Annotated[str, typer.Option(help="Tables: the column that says whose row it is.")] = "",
    kind: tables.Kind = None,
    features: tables.Features = None,
    missing: tables.Missing = "error",
    tolerance: tables.Tolerance = TOLERANCE,
    l2: options.Penalty = L2,
    batch_size: tables.Batch = "10",
    mode: Annotated[
        str | None,
        typer.Option(
            help="sharp (predicted), first_order (a simpler model; tables) or certified (proved).",
            show_default="sharp; first_order for tables",
        ),
    ] = None,
    max_local_steps: Annotated[int | None, typer.Option(help="Most local steps in a round.")] = None,
    max_rounds: Annotated[int | None, typer.Option(help="Most rounds.")] = None,
    round_cost: Annotated[float, typer.Option(help="What a communication costs.")] = ROUND_COST,
    gradient_cost: Annotated[float, typer.Option(help="What a stochastic gradient costs.")] = GRADIENT_COST,
    seed: options.Seed = 0,
    simulate: options.Simulate = 0,
    plot: options.Plot = None,
    cache_dir: tables.CacheDir = None,
) -> None:
    """Find the cheapest way to a target, on a table or one of the paper's problems, and explain it."""
    given = {name for name in context.params if _given(context, name)}
    with refusals(interrupted="nothing was written"):
        whole_number("simulate", simulate, least=0)
        options.check_figure(plot)
        optimum = None
        if (squared_error := _number(what)) is not None:
            _refuse(given, TABLES_ONLY, "a table; give one instead of a number")
            positive("target", squared_error)
            batch = options.batch_size_of(batch_size)
            wanted: Any = problem
            made: Any = paper(wanted, n_clients=clients, l2=l2, seed=seed)
            title = f"{problem}, N = {clients:,}"
        else:
            _refuse(given, PAPER_ONLY, "the paper's problems; a table has its own")
            if not target or not client:
                raise InvalidInput("a table needs --target and --client, the columns to predict and of clients")
            settings = Settings(
                tolerance=tolerance, batch_size=tables.batch_of(batch_size if "batch_size" in given else "auto")
            )
            table = tables.open_table(
                Path(what),
                target=target,
                client=client,
                kind=kind,
                features=features,
                l2=l2,
                missing=missing,
                cache_dir=cache_dir,
            )
            made, optimum, batch, squared_error, *_ = goal(table, settings)
            title = f"{target}, N = {made.n_clients:,}"
        chosen: Any = mode or ("sharp" if _number(what) is not None else "first_order")
        found = plan(
            made,
            target_mse=squared_error,
            batch_size=batch,
            mode=chosen,
            max_local_steps=max_local_steps,
            max_rounds=max_rounds,
            round_cost=round_cost,
            gradient_cost=gradient_cost,
            optimum=optimum,
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
                title=f"Plan for {title}: γ = {found.method.step_size:.3g}, "
                f"H = {found.method.local_steps}, T = {found.rounds}",
                method="Scaffold",
                curve=predicted.curve,
                plateau=predicted.mse,
                simulated=None if trace is None else trace.mse,
                target=squared_error,
            )


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _refuse(given: set[str], names: tuple[str, ...], why: str) -> None:
    for name in names:
        if name in given:
            raise InvalidInput(f"--{name.replace('_', '-')} is for {why}")
