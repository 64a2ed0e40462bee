"""`fedscaffold predict`: what a run will reach, without running it."""

import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from fedscaffold.cli import options
from fedscaffold.cli.errors import refusals
from fedscaffold.core.checks import whole_number
from fedscaffold.core.random.batches import Batches
from fedscaffold.core.types import Array
from fedscaffold.methods import FedAvg, Scaffold
from fedscaffold.problems import Logistic, Ridge, paper
from fedscaffold.problems.paper import L2
from fedscaffold.reports import prediction as figure
from fedscaffold.simulation import Trace
from fedscaffold.simulation.run import run
from fedscaffold.theory import Prediction, bounds, constants, predict

EXAMPLES = (
    "Examples:\n\n"
    "  fedscaffold predict --clients 1000\n\n"
    "  fedscaffold predict --problem classification --step-size 0.02 --plot p.png\n\n"
    "  fedscaffold predict --clients 100 --simulate 20 --plot p.png    (compare)"
)


def command(
    problem: options.Problem = "regression",
    clients: options.Clients = 100,
    l2: options.Penalty = L2,
    method: Annotated[str, typer.Option(help="scaffold or fedavg.")] = "scaffold",
    step_size: Annotated[float, typer.Option(help="γ.")] = 0.05,
    local_steps: Annotated[int, typer.Option(help="H, steps between communications.")] = 100,
    rounds: Annotated[int, typer.Option(help="T, communications.")] = 100,
    batch_size: options.BatchSize = "10",
    seed: options.Seed = 0,
    simulate: options.Simulate = 0,
    plot: options.Plot = None,
) -> None:
    """Predict the error by round and the plateau, on one of the paper's problems.

    Also says whether the paper's Theorem 4.9 covers the setting.
    """
    with refusals(interrupted="nothing was written"):
        chosen = options.method_of(method)(step_size=step_size, local_steps=local_steps)
        whole_number("rounds", rounds, least=1)
        whole_number("simulate", simulate, least=0)
        batch = options.batch_size_of(batch_size)
        Batches(batch)
        options.check_figure(plot)
        kind: Any = problem
        made = paper(kind, n_clients=clients, l2=l2, seed=seed)
        begin = time.perf_counter()
        found = predict(made, chosen, batch_size=batch, rounds=rounds)
        seconds = time.perf_counter() - begin
        bound, missed = proved(made, chosen, batch, rounds)
        trace = None
        if simulate:
            trace = run(made, chosen, rounds=rounds, batch_size=batch, seed=seed, repetitions=simulate)
        if plot is not None:
            title = f"{type(chosen).__name__}, {problem}, N = {clients:,}, γ = {step_size:g}, H = {local_steps}"
            _draw(plot, title, chosen, found, bound, trace)
    _print(found, missed, trace, seconds)


def proved(
    problem: Ridge | Logistic, method: Scaffold | FedAvg, batch_size: int | None, rounds: int
) -> tuple[Array | None, str]:
    """Theorem 4.9's curve if its conditions hold, and what to say about it."""
    if not isinstance(method, Scaffold) or np.ptp(problem.weights) > 0:
        return None, "for Scaffold with equal weights only"
    known = constants(problem, batch_size=batch_size)
    optimum = problem.optimum()
    setting: dict[str, Any] = {
        "step_size": method.step_size,
        "local_steps": method.local_steps,
        "n_clients": problem.n_clients,
    }
    start = bounds.initial_distance2(known, squared_error=float(optimum @ optimum), **setting)
    found = [
        bounds.finite_time_mse(known, rounds=t, initial_distance2=start, **setting) for t in range(rounds + 1)
    ]
    if found[0].holds:
        return np.array([bound.value for bound in found]), f"at most {found[-1].value:.4g} after the last round"
    worst = max(found[0].conditions, key=lambda condition: condition.missed_by)
    return None, f"does not apply: {worst.name} is missed {worst.missed_by:.3g} times"


def _draw(
    plot: Path,
    title: str,
    method: Scaffold | FedAvg,
    found: Prediction,
    bound: Array | None,
    trace: Trace | None,
) -> None:
    assert found.curve is not None
    figure.draw(
        plot,
        title=title,
        method=type(method).__name__,
        curve=found.curve,
        plateau=found.mse,
        bound=bound,
        simulated=None if trace is None else trace.mse,
    )


def _print(found: Prediction, missed: str, trace: Trace | None, seconds: float) -> None:
    assert found.curve is not None
    table = Table(show_header=False, title="Prediction of the squared error")
    last = found.curve.size - 1
    rows = [
        ("at the start", f"{found.curve[0]:.4g}"),
        (f"after round {last}", f"{found.curve[-1]:.4g}"),
        ("plateau", f"{found.mse:.4g}"),
        ("of which noise, falls as 1/N", f"{found.mse_variance_part:.3g}"),
        (
            "of which bias, does not",
            f"{found.mse_bias_part if found.mse_bias_part > 1e-15 * found.mse else 0:.3g}",
        ),
        ("Theorem 4.9", missed),
        ("seconds", f"{seconds:.2f}"),
    ]
    if trace is not None:
        error = trace.mse[:, -1].std() / np.sqrt(len(trace.theta))
        rows.append((f"simulated, round {last}", f"{trace.mse[:, -1].mean():.4g} ± {error:.2g}"))
        plateau = trace.plateau()
        if plateau is not None:
            rows.append(("simulated plateau", f"{plateau.mean:.4g} ± {plateau.standard_error:.2g}"))
    for row in rows:
        table.add_row(*row)
    Console().print(table)
