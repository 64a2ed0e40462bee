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
from fedscaffold.planning import Plans, plan
from fedscaffold.planning.batches import (
    MAX_ROUNDS,
    automatic_batch,
    candidate_batches,
    costs_in_seconds,
    fastest_plan,
    out_of_reach,
)
from fedscaffold.planning.planner import GRADIENT_COST, ROUND_COST

EXAMPLES = (
    "Examples:\n\n"
    "  fedscaffold plan 1.0 --clients 100\n\n"
    "  fedscaffold plan 1e-3 --problem classification --plot p.png\n\n"
    "  fedscaffold plan 1.0 --round-cost 1000    # communication is dear\n\n"
    "  fedscaffold plan 1.0 --clients 10 --methods all    # which method\n\n"
    "  fedscaffold plan visits.csv --target readmitted --client hospital --set tolerance=0.01\n\n"
    "--set takes max_rounds, max_local_steps, δ of a privacy budget (delta), and every setting of a table."
)
LIMITS = ("max_local_steps", "max_rounds")
PLAN_SETTINGS = (*LIMITS, "delta", "cache_dir", "tolerance")  # that --set takes besides those of a table
NOT_PRIVATE = ("problem", "clients", "mode", "methods", "round_cost")


@tables.with_table_options("target", "client", "l2", required=False, more=PLAN_SETTINGS)
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
    is_table = not isinstance(number, float)
    with refusals(interrupted="nothing was written"):
        if methods is not None:
            tables.refuse_options(given, ("mode",), "one method; leave it out beside --methods")
        options.check_figure(plot)
        limits = {name: table.settings[name] for name in LIMITS if name in table.settings}
        if epsilon is not None:
            why = "plans without a privacy budget; leave it out beside --epsilon"
            tables.refuse_options(given, NOT_PRIVATE, why)
            if not (is_table and table.target and table.client):
                raise InvalidInput("--epsilon protects rows of a table: give one, with --target and --client")
            found: Any = _under_budgets(Path(what), table, epsilon, batch_size, limits)
        else:
            if "delta" in table.settings:
                raise InvalidInput("delta requires epsilon=...")
            if set(table.settings) <= set(limits):
                given -= {"settings"}
            tables.check_source(table, given, is_table=is_table)
            named = None if methods is None else [name.strip() for name in methods.split(",")]
            goal: dict[str, Any] = {"methods": "all" if methods == "all" else named, **limits}
            if "round_cost" in given or not is_table:
                goal |= {"round_cost": round_cost, "gradient_cost": GRADIENT_COST}
            if is_table:
                found = _for_table(Path(what), table, batch_size, mode, goal)
            else:
                positive("the squared error to reach", number)
                batch, how = options.batch_size_of(batch_size or "10"), "sharp" if methods is not None else mode
                made = options.make_problem(problem, n_clients=clients, **table.table)
                goal |= {"target_mse": number, "mode": how or "sharp"}
                found = plan(made, batch_size=batch, **goal)
        typer.echo(found.explain())
        if plot is not None:
            axes: Any = found.plot()
            chosen = "" if isinstance(found, Plans) else f": {type(found.method).__name__}, T = {found.rounds}"
            axes.set_title(f"{table.target or problem}{chosen}", fontsize=10)
            display.save(axes.figure, plot)


def _for_table(
    data: Path, table: tables.TableFlags, batch_size: str | None, mode: Any, goal: dict[str, Any]
) -> Any:
    """Return the plan for a table, by default to first order and with the fastest batch size."""
    prepared = prepare_problem(table.open(data), table.fit_settings())
    made: Any = prepared.problem
    batching = tables.parse_batch(batch_size or "auto")
    batch = automatic_batch(made.sizes) if batching == "auto" else batching
    sizes = candidate_batches(made.sizes) if batching == "auto" else [batch]
    how: Any = "sharp" if goal["methods"] is not None else mode or "first_order"
    target: dict[str, Any] = {"target_mse": prepared.target_mse, "optimum": prepared.optimum}
    try:
        if mode in (None, "first_order") and len(sizes) > 1:
            batch = fastest_plan(made, sizes, **target).batch_size
            typer.echo(f"Each step uses {'all' if batch is None else f'{batch:,}'} rows of a client.")
        costs: dict[str, Any] = {} if "round_cost" in goal else costs_in_seconds(made, batch)
        limits = {"max_rounds": MAX_ROUNDS, **goal}
        return plan(made, batch_size=batch, mode=how, **target, **limits, **costs)
    except OutOfReach as error:
        raise out_of_reach(error, prepared.aim) from None


def _under_budgets(
    data: Path, table: tables.TableFlags, epsilon: str, batch_size: str | None, limits: dict[str, Any]
) -> Plans:
    """Return the plans of least error for one or several privacy budgets."""
    budgets = options.numbers_of("--epsilon", epsilon, float)
    made: Any = prepare_problem(table.open(data), table.fit_settings()).problem
    delta = table.settings.get("delta")
    if delta is None:
        delta = 0.1 / int(made.sizes.max())
        typer.echo(f"δ is {delta:.2g}, a tenth of one over the {made.sizes.max():,} rows of the largest client.")
    batch = options.batch_size_of(batch_size or "full")
    return plan(made, epsilon=budgets, delta=delta, batch_size=batch, **limits)
