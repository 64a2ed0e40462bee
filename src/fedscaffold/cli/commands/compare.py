"""`fedscaffold compare`: methods against each other at equal cost, each with its best settings."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from fedscaffold.benchmarking import Cost, Curve, FedNewton, Growth, best, compare, nested_problems
from fedscaffold.benchmarking.comparison import Candidate
from fedscaffold.benchmarking.method_comparison import (
    COST_LABELS,
    MethodComparison,
    check_folder,
    default_step_sizes,
)
from fedscaffold.cli import options
from fedscaffold.cli import table_options as tables
from fedscaffold.cli.errors import RESUMABLE, refusals
from fedscaffold.core.checks import whole_number
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.protocols import Problem
from fedscaffold.core.random.batches import Batches
from fedscaffold.engines import Numba
from fedscaffold.models.planning.planned import TOLERANCE, prepare_problem
from fedscaffold.problems.paper import L2

EXAMPLES = (
    "Examples:\n\n"
    "  fedscaffold compare --method scaffold --method fedavg --squared-error 1e-2,1e-3\n\n"
    "  fedscaffold compare --method scaffold --method proxskip --clients 10,40 --squared-error 1e-3 --out c\n\n"
    "  fedscaffold compare visits.csv --target ill --client hospital --method scaffold --method fednewton\n\n"
    "  fedscaffold compare --method scaffold:participation=0.1 --method fedavg:step_size=0.05 --vectors 200\n\n"
    "NAME:FIELD=VALUE,... fixes a field of the method; step size and local steps that are not fixed are searched."
)

ANY_CONSTANTS = {"smoothness": lambda: 1e100, "strong_convexity": lambda: 1e-100}  # before there is a problem


@tables.with_table_options("target", "client", "kind", "l2", required=False, more=("cache_dir",))
def command(
    context: typer.Context,
    table: tables.TableFlags,
    data: Annotated[
        Path | None, typer.Argument(help="A table: a .csv or .parquet file. Without: one of the paper's problems.")
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(help=f"{options.METHOD_NAMES}, fednewton, or NAME:FIELD=VALUE,...; once for each method."),
    ] = None,
    tolerance: tables.Tolerance = TOLERANCE,
    problem: options.Problem = "classification",
    clients: Annotated[str, typer.Option(help="Numbers of clients, each even, with commas.")] = "100",
    squared_error: Annotated[
        str | None,
        typer.Option(
            help="Mean squared errors to reach, with commas. Without: the budget is used up.",
            show_default="for tables what --tolerance means",
        ),
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(help="Budget of rounds.", show_default="1000 if no budget is given")
    ] = None,
    gradients: Annotated[float | None, typer.Option(help="Budget of gradients per client.")] = None,
    vectors: Annotated[float | None, typer.Option(help="Budget of vectors received and sent per client.")] = None,
    step_sizes: Annotated[
        str | None,
        typer.Option(help="Step sizes to try, with commas.", show_default="4/L, 2/L, 1/L, ..., ten of them"),
    ] = None,
    local_steps: Annotated[
        str, typer.Option(help="Local steps to try, with commas; for proxskip 1/p.")
    ] = "1,4,16,64,256",
    batch_size: options.BatchSize = "10",
    repetitions: Annotated[int, typer.Option(help="Independent runs of each candidate.")] = 10,
    seed: options.Seed = 0,
    threads: Annotated[int | None, typer.Option(help="Threads; all cores by default.")] = None,
    plot: options.Plot = None,
    plot_costs: Annotated[
        Path | None, typer.Option(help="Draw costs against N and target to this file: .png, .svg or .pdf.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for tables (CSV, Parquet, JSON) and for finished candidates.")
    ] = None,
) -> None:
    """Compare methods on a table or one of the paper's problems, each with the best settings of a grid.

    All candidates see the same draws. For each method, number of clients and squared error, the candidate with the
    fewest rounds and the one with the fewest gradients per client; without squared errors, the smallest error when
    the budget is used up. With --out the same command resumes after an interruption; methods can be added later.
    """
    given = {name for name in context.params if tables.is_given(context, name)}
    advice = RESUMABLE if out else "with --out FOLDER the same command could resume"
    with refusals(interrupted=advice):
        targets = [] if squared_error is None else options.numbers_of("--squared-error", squared_error, float)
        if not all(0 < each < np.inf for each in targets):
            raise InvalidInput(f"--squared-error must be positive numbers, got {squared_error}")
        tables.refuse_unfit(given, is_table=data is not None, paper_only=("problem", "clients"))
        if data is not None and not (table.target and table.client):
            raise InvalidInput("a table needs --target and --client, the columns to predict and of clients")
        numbers = options.numbers_of("--clients", clients, int)
        batch = options.batch_size_of(batch_size)
        batches, engine = Batches(batch), Numba(threads=threads)
        whole_number("repetitions", repetitions, least=1)
        wanted = _sizes(step_sizes)
        lengths = options.numbers_of("--local-steps", local_steps, int)
        if min(lengths) < 1:
            raise InvalidInput(f"--local-steps must be at least 1, got {local_steps}")
        _methods(method, wanted or [1.0], lengths, ANY_CONSTANTS)  # refuses a wrong method before data are made
        if rounds is None and gradients is None and vectors is None:
            rounds = 1000
        options.require_packages("matplotlib", "pandas", "pyarrow", "sklearn")
        options.check_figure(plot)
        options.check_figure(plot_costs, option="--plot-costs")
        if plot_costs is not None and not targets:
            raise InvalidInput("--plot-costs draws costs to reach squared errors; give some with --squared-error")
        if plot_costs is not None and len(targets) < 2 and (data is not None or len(numbers) < 2):
            raise InvalidInput("--plot-costs needs several numbers of clients or several squared errors")
        cells = None if out is None else check_folder(out)
        problems: Mapping[int, Any]
        if data is None:
            kind: Any = options.paper_problem(problem)
            l2 = L2 if table.l2 is None else table.l2
            problems = nested_problems(kind, numbers, l2=l2, seed=seed)
        else:
            opened = table.open(data)
            settings = table.fit_settings(tolerance=tolerance, batch_size=batch, seed=seed)
            prepared = prepare_problem(opened, settings)
            problems, l2 = {opened.n_clients: prepared.problem}, opened.l2
            targets = targets or [prepared.target_mse]
        largest = problems[max(problems)]
        sizes = wanted or default_step_sizes(largest.smoothness(batches))
        constants = {
            "smoothness": lambda: largest.smoothness(Batches()),
            "strong_convexity": lambda: _strong_convexity(largest),
        }
        methods = _methods(method, sizes, lengths, constants)
        curves: list[Curve] = []
        for made in problems.values():
            curves += compare(
                made, methods, rounds=rounds, gradients=gradients, vectors=vectors, targets=targets,
                batch_size=batch, seed=seed, repetitions=repetitions, engine=engine, cells=cells,
            )  # fmt: skip
        comparison = MethodComparison.of(curves, targets)
        if plot is not None:
            comparison.draw(plot)
        if plot_costs is not None:
            comparison.draw_costs(plot_costs)
        if out is not None:
            name = problem if data is None else data.name
            about = {"problem": name, "l2": l2, "batch_size": batch, "seed": seed, "repetitions": repetitions}
            budget = {"rounds": rounds, "gradients": gradients, "vectors": vectors}
            grid = {"step_sizes": sizes, "local_steps": lengths}
            comparison.save(out, {**about, "budget": budget, "grid": grid})
    _print(comparison, Console())
    if out is not None:
        typer.echo(f"Tables are in {out}")


def _strong_convexity(problem: Problem) -> float:
    """μ of the clients' losses, for methods that need it; refused where it is zero."""
    found = problem.strong_convexity()
    if found == 0.0:
        raise InvalidInput(
            "some client's loss is not strongly convex, and the method needs a positive strong_convexity; give a "
            "penalty with --l2, or a value with --method NAME:strong_convexity=VALUE"
        )
    return found


def _methods(
    given: list[str] | None,
    sizes: Sequence[float],
    lengths: Sequence[int],
    constants: Mapping[str, Callable[[], float]],
) -> dict[str, Sequence[Candidate]]:
    if not given or len(set(given)) < len(given):
        raise InvalidInput("give different methods, for example --method scaffold --method fedavg")
    return {
        text: [FedNewton()]
        if text == "fednewton"
        else options.candidates_of(text, step_sizes=sizes, local_steps=lengths, constants=constants)
        for text in given
    }


def _sizes(text: str | None) -> list[float]:
    return [] if text is None else options.numbers_of("--step-sizes", text, float)


def _print(comparison: MethodComparison, console: Console) -> None:
    if not comparison.targets:
        console.print(_errors(comparison.curves))
        return
    console.print(_costs(comparison.costs))
    for line in _growth(comparison.growth):
        console.print(line, highlight=False, soft_wrap=True)


def _table(title: str, caption: str, columns: Sequence[str]) -> Table:
    """An empty table that fits 80 columns."""
    table = Table(title=title, caption=caption, box=SIMPLE_HEAD, padding=0)
    for column in columns:
        left = column in ("method", "fewest", "with")
        table.add_column(
            column, justify="left" if left else "right", overflow="fold", no_wrap=column != "method", max_width=18
        )
    return table


def _errors(curves: Sequence[Curve]) -> Table:
    columns = ("method", "N", "error", "rounds", "gradients", "vectors", "with")
    table = _table("Smallest squared error at the end of the budget", "the best candidate of the grid", columns)
    for curve in best(curves):
        spent = (f"{curve.cost(axis)[-1]:,.0f}" for axis in COST_LABELS)
        table.add_row(curve.name, f"{curve.n_clients:,}", f"{curve.mean[-1]:.3g}", *spent, _settings(curve.method))
    return table


def _costs(costs: Sequence[Cost]) -> Table:
    columns = ("method", "N", "error", "fewest", "rounds", "gradients", "kbit", "with")
    caption = (
        "per client; of all candidates of the grid the one with the fewest rounds (and vectors), or gradients"
    )
    table = _table("Cost to reach a mean squared error", caption, columns)
    for cost in costs:
        start = (cost.name, f"{cost.n_clients:,}", f"{cost.target:g}", cost.cheapest_in)
        if cost.rounds is None or cost.method is None:
            table.add_row(*start, "–", "–", "–", "not in the budget")
        else:
            spent = f"{cost.rounds:,}", f"{cost.gradients:,.0f}", f"{(cost.bits or 0.0) / 1000:,.4g}"
            table.add_row(*start, *spent, _settings(cost.method))
    return table


def _settings(method: dict[str, Any]) -> str:
    if "step_size" not in method:
        return ""
    steps = f"H={method['local_steps']}" if "local_steps" in method else ""
    if "communication_probability" in method:
        steps = f"1/p={1 / method['communication_probability']:.3g}"
    return f"γ={method['step_size']:g} {steps}"


def _growth(found: Sequence[Growth]) -> list[str]:
    lines = []
    for each in found:
        between = f"95 % interval [{each.fit.low:.2f}, {each.fit.high:.2f}], {each.points} points"
        misfit = f"misfit {100 * each.fit.misfit:.1f} %"
        if each.what == "gradients by clients":
            lines.append(f"{each.name}: gradients ~ N^{each.fit.slope:.2f} to reach {each.at:g}; {between}")
        elif each.what == "rounds, logarithmic":
            a, b = each.fit.intercept, each.fit.slope
            lines.append(f"{each.name}, N = {each.at:,.0f}: rounds ~ {a:.2f} + {b:.2f} log10(1/ε²); {misfit}")
        else:
            text = f"rounds ~ (1/ε²)^{each.fit.slope:.2f}; {between}; {misfit}"
            lines.append(f"{each.name}, N = {each.at:,.0f}: {text}")
    return lines
