"""`fedscaffold plan`: which step size, local steps and rounds to use."""

from pathlib import Path
from typing import Annotated, Any

import typer

from fedscaffold.cli import options
from fedscaffold.cli import table_options as tables
from fedscaffold.cli.errors import refusals
from fedscaffold.cli.prepare import prepare_problem
from fedscaffold.core import display
from fedscaffold.core.checks import positive
from fedscaffold.core.errors import InvalidInput, OutOfReach
from fedscaffold.inference.training import TOLERANCE
from fedscaffold.planning import Plan, Plans, plan
from fedscaffold.planning.batches import (
    MAX_ROUNDS,
    automatic_batch,
    candidate_batches,
    costs_in_seconds,
    fastest_plan,
    out_of_reach,
)
from fedscaffold.planning.planner import GRADIENT_COST, ROUND_COST
from fedscaffold.problems import paper
from fedscaffold.problems.paper import L2

EXAMPLES = (
    "Examples:\n\n"
    "  fedscaffold plan 1.0 --clients 100\n\n"
    "  fedscaffold plan 1e-3 --problem classification --plot p.png\n\n"
    "  fedscaffold plan 1.0 --round-cost 1000    (communication is dear)\n\n"
    "  fedscaffold plan 1.0 --clients 10 --methods all    (which method)\n\n"
    "  fedscaffold plan visits.csv --target readmitted --client hospital --tolerance 0.01\n\n"
    "--set takes max_rounds, max_local_steps, δ of a privacy budget (delta), and every setting of a table."
)
LIMITS = ("max_local_steps", "max_rounds")
PLAN_SETTINGS = (*LIMITS, "delta", "cache_dir")  # that --set takes besides those of a table
NOT_PRIVATE = ("problem", "clients", "mode", "methods", "round_cost", "tolerance")


@tables.with_table_options("target", "client", "kind", "l2", required=False, more=PLAN_SETTINGS)
def command(
    context: typer.Context,
    what: Annotated[
        str,
        typer.Argument(
            metavar="SQUARED_ERROR|DATA",
            help="Squared error to reach on one of the paper's problems, or a table: a .csv or .parquet file.",
        ),
    ],
    table: tables.TableFlags,
    tolerance: tables.Tolerance = TOLERANCE,
    problem: options.Problem = "regression",
    clients: options.Clients = 100,
    batch_size: options.AnyBatchSize = None,
    mode: Annotated[
        str | None,
        typer.Option(
            help="sharp (exact or simulated), first_order (without runs; tables) or certified (proved).",
            show_default="sharp; first_order for tables",
        ),
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(help="Choose the method too: all, or names with commas.", show_default="Scaffold"),
    ] = None,
    round_cost: Annotated[
        float,
        typer.Option(
            help="Cost of a communication in units of a gradient's.", show_default="100; predicted for tables"
        ),
    ] = ROUND_COST,
    plot: options.Plot = None,
    epsilon: Annotated[
        str | None,
        typer.Option(help="Least error under a privacy budget instead: ε, or several with commas; table only."),
    ] = None,
) -> None:
    """Find the cheapest way to a target, on a table or one of the paper's problems, and explain it."""
    given = tables.given_options(context)
    number = tables.parse_number(what)
    squared_error = number if isinstance(number, float) else None
    with refusals(interrupted="nothing was written"):
        if methods is not None:
            tables.refuse_options(given, ("mode",), "one method; leave it out beside --methods")
        options.check_figure(plot)
        limits = {name: table.settings[name] for name in LIMITS if name in table.settings}
        if epsilon is not None:
            tables.refuse_options(
                given, NOT_PRIVATE, "plans without a privacy budget; leave it out beside --epsilon"
            )
            _private(what, table, epsilon, batch_size, limits, plot)
            return
        if "delta" in table.settings:
            raise InvalidInput("delta requires epsilon=...")
        if set(table.settings) <= set(limits):
            given -= {"settings"}
        costs: dict[str, Any] = {}
        tables.check_source(table, given, is_table=squared_error is None)
        if squared_error is not None:
            positive("the squared error to reach", squared_error)
            batch = options.batch_size_of(batch_size or "10")
            l2 = table.table.get("l2", L2)
            made: Any = paper(options.paper_problem(problem), n_clients=clients, l2=l2)
            name, optimum = problem, None
        else:
            batching = tables.parse_batch(batch_size or "auto")
            prepared = prepare_problem(table.open(Path(what)), table.fit_settings(tolerance=tolerance))
            name, made, optimum = table.target, prepared.problem, prepared.optimum
            batch = automatic_batch(made.sizes) if batching == "auto" else batching
            squared_error, mode = prepared.target_mse, mode or "first_order"
            sizes = candidate_batches(made.sizes) if batching == "auto" else [batch]
            if mode == "first_order" and len(sizes) > 1:
                try:
                    batch = fastest_plan(made, sizes, target_mse=squared_error, optimum=optimum).batch_size
                except OutOfReach as error:
                    raise out_of_reach(error, prepared.aim) from None
                typer.echo(f"Each step uses {'all' if batch is None else f'{batch:,}'} rows of a client.")
            limits = {"max_rounds": MAX_ROUNDS, **limits}
            if "round_cost" not in given:  # predicted for tables
                costs = costs_in_seconds(made, batch)
        costs = costs or {"round_cost": round_cost, "gradient_cost": GRADIENT_COST}
        names = None if methods is None else [name.strip() for name in methods.split(",")]
        chosen: Any = "sharp" if methods is not None else mode or "sharp"
        try:
            found = plan(
                made, target_mse=squared_error, batch_size=batch, mode=chosen, optimum=optimum,
                methods="all" if methods == "all" else names, **limits, **costs,
            )  # fmt: skip
        except OutOfReach as error:
            if optimum is None:
                raise
            raise out_of_reach(error, prepared.aim) from None
        title = f"{name}, N = {made.n_clients:,}: {type(found.method).__name__}, T = {found.rounds}"
        _show(found, plot, title)


def _show(found: Plan | Plans, plot: Path | None, title: str) -> None:
    """Print a plan or plans, and draw them if a file is given."""
    typer.echo(found.explain())
    if plot is not None:
        axes = found.plot()
        axes.set_title(title, fontsize=10)
        drawn: Any = axes.figure
        display.save(drawn, plot)


def _private(
    what: str, table: tables.TableFlags, epsilon: str, batch_size: str | None, limits: dict[str, Any],
    plot: Path | None,
) -> None:  # fmt: skip
    """Print the plans for one or several budgets, and draw what each would buy."""
    if not table.target or not table.client or isinstance(tables.parse_number(what), float):
        raise InvalidInput("--epsilon protects rows of a table: give one, with --target and --client")
    budgets = options.numbers_of("--epsilon", epsilon, float)
    made: Any = prepare_problem(table.open(Path(what)), table.fit_settings()).problem
    delta = table.settings.get("delta")
    if delta is None:
        delta = 0.1 / int(made.sizes.max())
        typer.echo(f"δ is {delta:.2g}, a tenth of one over the {made.sizes.max():,} rows of the largest client.")
    found = plan(
        made, epsilon=budgets, delta=delta, batch_size=options.batch_size_of(batch_size or "full"), **limits,
    )  # fmt: skip
    _show(found, plot, f"{table.target}, N = {made.n_clients:,}")
