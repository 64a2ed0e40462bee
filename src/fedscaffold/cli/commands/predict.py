"""`fedscaffold predict`: the error that a run will reach, exact or measured."""

import time
from collections.abc import Iterator
from typing import Annotated

import numpy as np
import typer

from fedscaffold.cli import options
from fedscaffold.cli.errors import refusals
from fedscaffold.core.checks import whole_number
from fedscaffold.core.random.stream import Batches
from fedscaffold.planning import Prediction, predict
from fedscaffold.reports.figures import CurvePanel, draw_curves
from fedscaffold.simulation import Trace
from fedscaffold.simulation.run_method import run
from fedscaffold.simulation.stages.stationarity import MeanEstimate
from fedscaffold.theory.bounds import BoundCurve, bound_curve

EXAMPLES = (
    "Examples:\n\n"
    "  fedscaffold predict --clients 1000\n\n"
    "  fedscaffold predict --problem classification --step-size 0.02 --plot p.png\n\n"
    "  fedscaffold predict --clients 100 --simulate 20 --plot p.png    # compare"
)


def command(
    problem: options.Problem = "regression",
    clients: options.Clients = 100,
    method: options.OneMethod = "scaffold",
    step_size: options.StepSize = 0.05,
    local_steps: options.LocalSteps = 100,
    rounds: options.Rounds = 100,
    batch_size: options.BatchSize = "10",
    simulate: Annotated[int, typer.Option(help="Also simulate this many runs, to compare.")] = 0,
    plot: options.Plot = None,
) -> None:
    """Predict the error by round and the plateau, on one of the paper's problems.

    Also says whether the paper's Theorem 4.9 covers the setting.
    """
    with refusals(interrupted="nothing was written"):
        (chosen,) = options.candidates_of(method, step_sizes=[step_size], local_steps=[local_steps])
        whole_number("rounds", rounds, least=1)
        whole_number("simulate", simulate, least=0)
        batch = options.batch_size_of(batch_size)
        Batches(batch)
        options.check_figure(plot)
        made = options.make_problem(problem, n_clients=clients)
        begin = time.perf_counter()
        found = predict(made, chosen, batch_size=batch, rounds=rounds)
        seconds = time.perf_counter() - begin
        bound = bound_curve(made, chosen, batch_size=batch, rounds=rounds)
        trace = None
        if simulate:
            trace = run(made, chosen, rounds=rounds, batch_size=batch, repetitions=simulate)
        if plot is not None:
            title = f"{type(chosen).__name__}, {problem}, N = {clients:,}, γ = {step_size:g}, H = {local_steps}"
            errors = {
                "predicted": found.curve,
                "predicted plateau": np.full(rounds + 1, found.mse),
                "bound (Theorem 4.9)": bound.values,
                f"simulated, mean of {simulate}": None if trace is None else trace.mse,
            }
            at = np.arange(rounds + 1.0)
            lines = {name: (at, np.atleast_2d(each)) for name, each in errors.items() if each is not None}
            draw_curves([[CurvePanel(title=title, lines=lines)]], [plot])
    options.print_table("Prediction of the squared error", _facts(found, bound, trace, seconds))


def _facts(found: Prediction, bound: BoundCurve, trace: Trace | None, seconds: float) -> Iterator[tuple[str, str]]:
    """Return what the table shows."""
    assert found.curve is not None
    assert found.curve_error is not None
    last = found.curve.size - 1
    bias = found.squared_bias if found.squared_bias > 1e-15 * found.mse else 0.0  # below, it is rounding
    yield "how", {"measured": "measured, by simulated runs"}.get(found.how, found.how)
    yield "at the start", f"{found.curve[0]:.4g}"
    yield f"after round {last}", options.with_error(MeanEstimate(found.curve[-1], found.curve_error[-1]))
    yield "plateau", options.with_error(MeanEstimate(found.mse, found.standard_error))
    yield "of which noise, falls as 1/N", f"{found.variance:.3g}"
    yield "of which bias, does not", f"{bias:.3g}"
    yield "Theorem 4.9", _describe_bound(bound)
    yield "seconds", f"{seconds:.2f}"
    if trace is not None:
        yield f"simulated, round {last}", options.with_error(trace.final())
        plateau = trace.plateau()
        if plateau is not None:
            yield "simulated plateau", options.with_error(plateau)


def _describe_bound(bound: BoundCurve) -> str:
    if bound.values is not None:
        return f"at most {bound.values[-1]:.4g} after the last round"
    if bound.missed is None:
        return "for Scaffold with all clients and one number of local steps only"
    return f"does not apply: {bound.missed.name} is missed {bound.missed.missed_by:.3g} times"
