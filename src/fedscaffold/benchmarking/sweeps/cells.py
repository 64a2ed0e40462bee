"""One cell of a sweep: its run, and the row of the table that it becomes."""

import json
import time
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from fedscaffold.benchmarking.plateaus import reached_plateau
from fedscaffold.benchmarking.sweeps.grid import Cell, Key, Sweep
from fedscaffold.core import provenance
from fedscaffold.core.arrays import evenly_spaced_clients
from fedscaffold.core.display.progress import Advance
from fedscaffold.core.errors import Diverged, InvalidInput
from fedscaffold.core.protocols import Engine
from fedscaffold.core.random.batches import Batches
from fedscaffold.core.types import Array
from fedscaffold.simulation import Trace
from fedscaffold.simulation.observers import Mse
from fedscaffold.simulation.run_method import run
from fedscaffold.theory import predict
from fedscaffold.theory.exact import is_exact

Outcome = Literal["stationary", "moving", "diverged"]


@dataclass(frozen=True, kw_only=True, repr=False)
class SweepRow:
    """Result of one cell of a sweep; its fields are the columns of the table.

    Attributes
    ----------
    problem, n_clients, method, step_size, local_steps, batch_size, rounds, seeds
        The cell; local_steps is the mean over clients and rounds, batch_size missing for full gradients.
    settings
        The method with all its fields, as JSON.
    outcome
        "stationary"; "moving" when the run was too short to tell, and the plateau is the mean of the last quarter
        of its rounds; "diverged".
    plateau, standard_error, from_round
        Mean squared error from that round on.
    plateaus
        The same for each seed.
    final_mse
        ‖θ − θ*‖² after the last round, mean over the seeds.
    predicted, predicted_variance, predicted_bias
        E‖θ − θ*‖² on the plateau by theory, tr Cov θ and ‖E θ − θ*‖²; missing where theory has no answer.
    seconds
        Of the whole run, compilation and start of workers included.
    ns_per_step
        Nanoseconds per client, stochastic gradient and seed, without the first round.
    message
        Of a run that diverged: where, and which step size would have been safe.
    provenance
        Engine, versions, machine and time, as JSON.

    Examples
    --------
    >>> from fedscaffold.benchmarking import SweepRow
    >>> SweepRow(problem="ridge-stream", n_clients=10, method="Scaffold", step_size=0.02, local_steps=10.0,
    ...          batch_size=1, rounds=100, seeds=5, outcome="stationary", plateau=0.0213, standard_error=0.0004,
    ...          seconds=0.5, settings="{}", provenance="{}")
    SweepRow(Scaffold on ridge-stream, N = 10, γ = 0.02, H = 10, B = 1:
        stationary, plateau 0.0213 ± 0.0004)
    """

    problem: str
    n_clients: int
    method: str
    step_size: float
    local_steps: float
    batch_size: int | None
    rounds: int
    seeds: int
    outcome: Outcome
    plateau: float | None = None
    standard_error: float | None = None
    from_round: int | None = None
    plateaus: list[float] = field(default_factory=list)
    final_mse: float | None = None
    predicted: float | None = None
    predicted_variance: float | None = None
    predicted_bias: float | None = None
    seconds: float
    ns_per_step: float | None = None
    message: str | None = None
    settings: str
    provenance: str

    def __repr__(self) -> str:
        batch = "all" if self.batch_size is None else self.batch_size
        cell = f"{self.method} on {self.problem}, N = {self.n_clients:,}, γ = {self.step_size:g}"
        level = "" if self.plateau is None else f", plateau {self.plateau:.3g} ± {self.standard_error:.1g}"
        return f"SweepRow({cell}, H = {self.local_steps:g}, B = {batch}:\n    {self.outcome}{level})"

    def key(self) -> Key:
        """The key of the cell, which tells it from the other cells of its table."""
        return self.n_clients, self.settings, self.batch_size, self.rounds, self.seeds


def measure(
    grid: Sweep, cell: Cell, problem: Any, optimum: Array, engine: Engine,
    advance: Advance = lambda done, rounds: None,
) -> SweepRow:  # fmt: skip
    """Run a cell with `fedscaffold.run` and return its row."""
    at: list[float] = []

    def progress(done: int, rounds: int) -> None:
        at.append(time.perf_counter())
        advance(done, rounds)

    begin = time.perf_counter()
    trace, message = None, None
    try:
        trace = run(
            problem, cell.method, rounds=cell.rounds, batch_size=cell.batch_size, seed=grid.seed,
            repetitions=cell.seeds, engine=engine, theta0=optimum if grid.start == "optimum" else None,
            progress=progress, record=(Mse(optimum),),
        )  # fmt: skip
    except Diverged as error:
        message = str(error)
    found = {"outcome": "diverged"} if trace is None else _summary(trace, cell, at)
    lengths = cell.method.local_step_counts(cell.n_clients, np.full(1, 0.5))
    p = getattr(cell.method, "communication_probability", None)
    return SweepRow(
        problem=grid.family.name,
        n_clients=cell.n_clients,
        method=type(cell.method).__name__,
        step_size=float(cell.method.step_size),
        local_steps=float(lengths.mean()) if p is None else 1.0 / p,
        batch_size=cell.batch_size,
        rounds=cell.rounds,
        seeds=cell.seeds,
        seconds=time.perf_counter() - begin,
        message=message,
        settings=cell.settings(),
        provenance=json.dumps({"engine": engine.name, **provenance.origin()}),
        **found,
    )


def _summary(trace: Trace, cell: Cell, at: list[float]) -> dict[str, Any]:
    """Fields of a row about the plateau and the time per step; `at` has the times of rounds 0, 1, ..."""
    reached, stationary = reached_plateau(trace)
    warm = 1 if cell.rounds > 1 else 0
    spent = trace.gradients_per_client
    steps = float((spent[:, -1] - spent[:, warm]).sum()) * cell.n_clients
    return {
        "outcome": "stationary" if stationary else "moving",
        "plateau": reached.mean,
        "standard_error": reached.standard_error,
        "from_round": reached.from_round,
        "plateaus": trace.mse[:, reached.from_round :].mean(axis=1).tolist(),
        "final_mse": float(trace.mse[:, -1].mean()),
        "ns_per_step": 1e9 * (at[-1] - at[warm]) / steps,
    }


def forecast(cell: Cell, problem: Any) -> dict[str, Any]:
    """Return the fields of a row about the predicted plateau; none if there is no plateau.

    Of more than 1,000 clients whose law is not exact, 1,000 are measured: variance falls as 1/N, and bias stays.
    """
    method: Any = cell.method
    share, most = 1.0, 1000
    if cell.n_clients > most and not is_exact(problem, method, Batches(cell.batch_size)):
        problem, share = problem.subset(evenly_spaced_clients(cell.n_clients, most)), most / cell.n_clients
    try:
        found = predict(problem, method, batch_size=cell.batch_size, accuracy=0.05)
    except InvalidInput:
        return {}
    variance, bias = share * found.variance, found.squared_bias
    return {"predicted": variance + bias, "predicted_variance": variance, "predicted_bias": bias}
