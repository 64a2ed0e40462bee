"""`fedscaffold compare`: methods against each other at equal cost, each with its best settings."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from fedscaffold import benchmarking as experiment
from fedscaffold.benchmarking import Cost, Curve, Growth, best, cheapest, growth
from fedscaffold.cli import options
from fedscaffold.cli.errors import refusals
from fedscaffold.core.checks import whole_number
from fedscaffold.core.errors import InvalidInput, MissingDependency
from fedscaffold.core.files import check_writable, replacing
from fedscaffold.core.protocols import Method
from fedscaffold.core.random.batches import Batches
from fedscaffold.engines import Numba
from fedscaffold.problems.paper import L2
from fedscaffold.reports import comparison as figure
from fedscaffold.reports import growth as cost_figure
from fedscaffold.simulation import provenance

EXAMPLES = (
    "Examples:\n\n"
    "  fedscaffold compare --method scaffold --method fedavg --target 1e-2,1e-3\n\n"
    "  fedscaffold compare --method scaffold --method proxskip --clients 10,40,160 --target 1e-3 --out c\n\n"
    "  fedscaffold compare --method scaffold:participation=0.1 --method fedavg:step_size=0.05 --vectors 200\n\n"
    "NAME:FIELD=VALUE,... fixes a field of the method; step size and local steps that are not fixed are searched."
)
GRID_FROM, GRID_POINTS = 4.0, 10  # step sizes: 4/L, 2/L, 1/L, ...
TABLES = ("costs.csv", "costs.parquet", "curves.csv", "curves.parquet", "comparison.json")
AXES = {"rounds": "round", "gradients": "gradients per client", "vectors": "vectors per client"}


@dataclass(frozen=True)
class Result:
    """What a comparison found."""

    targets: Sequence[float]
    curves: Sequence[Curve]
    costs: Sequence[Cost]
    growth: Sequence[Growth]


def command(
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="scaffold, fedavg, two-sided, proxskip or fedlin, or NAME:FIELD=VALUE,...; once for each method."
        ),
    ] = None,
    problem: options.Problem = "classification",
    clients: Annotated[str, typer.Option(help="Numbers of clients, each even, with commas.")] = "100",
    target: Annotated[
        str | None, typer.Option(help="Mean squared errors to reach, with commas. Without: the budget is used up.")
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="Budget of rounds. [default: 1000 if no budget]")] = None,
    gradients: Annotated[float | None, typer.Option(help="Budget of gradients per client.")] = None,
    vectors: Annotated[float | None, typer.Option(help="Budget of vectors received and sent per client.")] = None,
    step_sizes: Annotated[
        str | None, typer.Option(help="Step sizes to try, with commas. [default: 4/L, 2/L, 1/L, ..., ten of them]")
    ] = None,
    local_steps: Annotated[
        str, typer.Option(help="Local steps to try, with commas; for proxskip 1/p.")
    ] = "1,4,16,64,256",
    l2: options.Penalty = L2,
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
    """Compare methods on one of the paper's problems, each with the best step size and local steps of a grid.

    All candidates see the same draws. With --target: for each method, number of clients and target, the candidate
    with the fewest rounds and the one with the fewest gradients per client. Without: the smallest error when the
    budget is used up. With --out the same command goes on after an interruption, and methods can be added later.
    """
    advice = "the same command goes on where it stopped" if out else "with --out FOLDER it could go on"
    with refusals(interrupted=advice):
        targets = [] if target is None else options.numbers_of("--target", target, float)
        if not all(0 < each < np.inf for each in targets):
            raise InvalidInput(f"--target must be positive numbers, got {target}")
        numbers = options.numbers_of("--clients", clients, int)
        batch = options.batch_size_of(batch_size)
        batches, engine = Batches(batch), Numba(threads=threads)
        whole_number("repetitions", repetitions, least=1)
        given = _sizes(step_sizes)
        lengths = options.numbers_of("--local-steps", local_steps, int)
        if min(lengths) < 1:
            raise InvalidInput(f"--local-steps must be at least 1, got {local_steps}")
        _methods(method, given or [1.0], lengths)  # refuses now what is wrong, before data are made
        if rounds is None and gradients is None and vectors is None:
            rounds = 1000
        _need_packages()
        options.check_figure(plot)
        options.check_figure(plot_costs, option="--plot-costs")
        if plot_costs is not None and not targets:
            raise InvalidInput("--plot-costs draws what it costs to reach targets; give some with --target")
        if plot_costs is not None and len(targets) < 2 and len(numbers) < 2:
            raise InvalidInput("--plot-costs needs several numbers of clients or several targets")
        cells = None if out is None else _folder(out)
        kind: Any = problem
        problems = experiment.nested_problems(kind, numbers, l2=l2, seed=seed)
        sizes = given or _grid(problems[max(numbers)].smoothness(batches))
        methods = _methods(method, sizes, lengths)
        curves: list[Curve] = []
        for made in problems.values():
            curves += experiment.compare(
                made, methods, rounds=rounds, gradients=gradients, vectors=vectors, targets=targets,
                batch_size=batch, seed=seed, repetitions=repetitions, engine=engine, cells=cells,
            )  # fmt: skip
        costs = cheapest(curves, targets)
        result = Result(targets, curves, costs, growth(costs))
        shown = drawn(result)
        if plot is not None:
            figure.draw(panels(shown, targets), [plot])
        if plot_costs is not None:
            cost_figure.draw(cost_panels(costs), [plot_costs])
        if out is not None:
            about = {"problem": problem, "l2": l2, "batch_size": batch, "seed": seed, "repetitions": repetitions}
            budget = {"rounds": rounds, "gradients": gradients, "vectors": vectors}
            grid = {"step_sizes": sizes, "local_steps": lengths}
            _write(result, shown, {**about, "budget": budget, "grid": grid}, out)
    _print(result, Console())
    if out is not None:
        typer.echo(f"Tables are in {out}")


def drawn(result: Result) -> dict[str, list[Curve]]:
    """The curves that stand for each method on each axis: the cheapest to the smallest target that it reached."""
    if not result.targets:
        found = best(result.curves)
        return dict.fromkeys(AXES, found)
    shown: dict[str, list[Curve]] = {axis: [] for axis in AXES}
    for axis, curves in shown.items():
        measure = "gradients" if axis == "gradients" else "rounds"
        rows = [cost for cost in result.costs if cost.cheapest_in == measure and cost.rounds is not None]
        last = {(row.name, row.n_clients): row for row in rows}  # targets fall
        for (name, n_clients), row in last.items():
            key = (name, n_clients, row.method)
            curves += [c for c in result.curves if (c.name, c.n_clients, c.method) == key]
    return shown


def panels(shown: dict[str, list[Curve]], targets: Sequence[float]) -> list[list[figure.Panel]]:
    """A row for each number of clients, a panel for each cost."""
    numbers = sorted({curve.n_clients for curves in shown.values() for curve in curves})
    if not numbers:
        raise InvalidInput("nothing to draw: no method reached a target; give a larger budget or target")
    return [
        [
            figure.Panel(
                f"N = {n:,}",
                label,
                {c.name: figure.Line(c.cost(axis), c.mse) for c in shown[axis] if c.n_clients == n},
                targets,
            )
            for axis, label in AXES.items()
        ]
        for n in numbers
    ]


def cost_panels(costs: Sequence[Cost]) -> list[cost_figure.Panel]:
    """Fewest gradients against N for the smallest target, fewest rounds against targets for the largest N."""
    reached = [cost for cost in costs if cost.rounds]
    if not reached:
        raise InvalidInput("nothing to draw: no method reached a target; give a larger budget or target")
    target, n_clients = min(cost.target for cost in reached), max(cost.n_clients for cost in reached)
    names = list(dict.fromkeys(cost.name for cost in reached))
    panels = []
    if len({cost.n_clients for cost in costs}) > 1:
        rows = [cost for cost in reached if cost.target == target and cost.cheapest_in == "gradients"]
        series = {name: _series([c for c in rows if c.name == name], "n_clients", "gradients") for name in names}
        panels.append(cost_figure.Panel(f"squared error {target:g}", "N", "gradients per client", series))
    if len({cost.target for cost in costs}) > 1:
        rows = [cost for cost in reached if cost.n_clients == n_clients and cost.cheapest_in == "rounds"]
        series = {name: _series([c for c in rows if c.name == name], "target", "rounds") for name in names}
        panels.append(cost_figure.Panel(f"N = {n_clients:,}", "squared error", "rounds", series, power=False))
    return panels


def _series(rows: Sequence[Cost], x: str, y: str) -> cost_figure.Series:
    pairs = [(float(getattr(row, x)), float(getattr(row, y))) for row in rows]
    return cost_figure.Series(*np.array(pairs, dtype=np.float64).reshape(-1, 2).T)


def _methods(given: list[str] | None, sizes: Sequence[float], lengths: Sequence[int]) -> dict[str, list[Method]]:
    if not given or len(set(given)) < len(given):
        raise InvalidInput("give different methods, for example --method scaffold --method fedavg")
    return {text: options.candidates_of(text, step_sizes=sizes, local_steps=lengths) for text in given}


def _sizes(text: str | None) -> list[float]:
    return [] if text is None else options.numbers_of("--step-sizes", text, float)


def _grid(smoothness: float) -> list[float]:
    """4/L, 2/L, ..., to two digits."""
    return [float(f"{GRID_FROM / 2**k / smoothness:.2g}") for k in range(GRID_POINTS)]


def _need_packages() -> None:
    """Fail now rather than after the computation."""
    try:
        import matplotlib  # noqa: F401
        import pandas  # noqa: F401
        import pyarrow  # noqa: F401
        import sklearn  # noqa: F401
    except ImportError as error:
        raise MissingDependency(f"{error.name} is not installed; pip install 'fedscaffold[reproduce]'") from None


def _folder(out: Path) -> Path:
    cells = out / "cells"
    try:
        cells.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"cannot make the folder {cells}: {error.strerror}") from None
    for name in TABLES:
        check_writable(out / name)
    return cells


def _write(result: Result, shown: dict[str, list[Curve]], about: dict[str, Any], out: Path) -> None:
    import pandas as pd

    rows = [{**asdict(cost), "method": json.dumps(cost.method)} for cost in result.costs]
    different = {id(curve): curve for curves in shown.values() for curve in curves}
    frames = {"costs": pd.DataFrame(rows), "curves": experiment.curves_to_frame(list(different.values()))}
    for name, frame in frames.items():
        with replacing(out / f"{name}.csv") as temporary:
            frame.to_csv(temporary, index=False)
        with replacing(out / f"{name}.parquet") as temporary:
            frame.to_parquet(temporary, index=False)
    content = {
        "settings": {**about, "targets": list(result.targets)},
        "costs": [asdict(cost) for cost in result.costs],
        "growth": [{**asdict(each), "fit": each.fit._asdict()} for each in result.growth],
        "versions": provenance.versions(),
        "machine": provenance.machine(),
        "finished": provenance.now(),
    }
    with replacing(out / "comparison.json") as temporary:
        temporary.write_text(json.dumps(content, indent=2) + "\n")


def _print(result: Result, console: Console) -> None:
    if not result.targets:
        console.print(_errors(result.curves))
        return
    console.print(_costs(result.costs))
    for line in _growth(result.growth):
        console.print(line, highlight=False, soft_wrap=True)


def _table(title: str, caption: str, columns: Sequence[str]) -> Table:
    """Narrow enough for 80 characters a line."""
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
        spent = (f"{curve.cost(axis)[-1]:,.0f}" for axis in AXES)
        table.add_row(curve.name, f"{curve.n_clients:,}", f"{curve.mean[-1]:.3g}", *spent, _settings(curve.method))
    return table


def _costs(costs: Sequence[Cost]) -> Table:
    columns = ("method", "N", "target", "fewest", "rounds", "gradients", "vectors", "with")
    caption = (
        "per client; of all candidates of the grid the one with the fewest rounds (and vectors), or gradients"
    )
    table = _table("Cost to reach a mean squared error", caption, columns)
    for cost in costs:
        start = (cost.name, f"{cost.n_clients:,}", f"{cost.target:g}", cost.cheapest_in)
        if cost.rounds is None or cost.method is None:
            table.add_row(*start, "–", "–", "–", "not in the budget")
        else:
            spent = f"{cost.rounds:,}", f"{cost.gradients:,.0f}", f"{cost.vectors:,.0f}"
            table.add_row(*start, *spent, _settings(cost.method))
    return table


def _settings(method: dict[str, Any]) -> str:
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
