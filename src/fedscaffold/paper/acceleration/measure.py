"""Rounds until the target, by the simulator and by theory, for every cell of the study."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedscaffold.benchmarking.costs import LineFit, fit_line
from fedscaffold.core.display.progress import Advance
from fedscaffold.core.errors import Diverged, InvalidInput
from fedscaffold.core.types import Array
from fedscaffold.methods import FedLin, ProxSkip
from fedscaffold.paper.acceleration.cells import (
    DIM,
    AccelerationRun,
    AccelerationSettings,
    Part,
    all_cells,
    problem_of,
)
from fedscaffold.problems import LogisticStream
from fedscaffold.simulation.run_method import run
from fedscaffold.theory import predict

if TYPE_CHECKING:
    import pandas as pd

BRIEF = 1e8  # work of runs that are kept once they are complete, a second or two
FAMILY_ROUNDS, FAMILY_STEPS, FAMILY_NUMBERS = 1000, 200, 200  # that FedLin is predicted for: what takes seconds


@dataclass(frozen=True)
class Point:
    """What became of a cell.

    Attributes
    ----------
    cell
        The method, the problem and the target.
    rounds
        Rounds until the mean squared error over repetitions is at the target, with a fraction; NaN if never.
    error
        Standard error of `rounds`, by leaving out one repetition after another; NaN with fewer than three.
    predicted
        The same by theory; NaN where it was not asked, or says never.
    diverged
        Whether the run diverged.
    """

    cell: AccelerationRun
    rounds: float
    error: float
    predicted: float
    diverged: bool = False

    @property
    def gradients(self) -> float:
        """Stochastic gradients of each client; an exchanged full gradient counts as its records."""
        return self.rounds * self.gradients_per_round

    @property
    def gradients_per_round(self) -> float:
        """Stochastic gradients of each client in a round."""
        return self.cell.steps + (2 * DIM if isinstance(self.cell.method, FedLin) else 0)


def simulate(
    settings: AccelerationSettings, *, scratch: Path, advance: Advance = lambda done, total: None
) -> list[Point]:
    """All points; runs that an interrupted call left in `scratch` are not computed again."""
    cells = list(all_cells(settings))
    total, done, points = sum(cell.work for cell in cells), 0.0, []
    for cell in cells:
        problem = problem_of(cell, settings.seed)
        before = done

        def counted(now: int, of: int, cell: AccelerationRun = cell, before: float = before) -> None:
            advance(int(before + cell.work * now / max(of, 1)), int(total))

        predicted = _predicted(problem, cell)
        try:
            trace = run(
                problem, cell.method, rounds=cell.rounds, batch_size=1, seed=settings.seed,
                repetitions=cell.repetitions, checkpoint=scratch / f"{cell.label}-{settings.seed}.npz",
                checkpoint_every=cell.rounds if cell.work < BRIEF else None, progress=counted,
            )  # fmt: skip
            rounds, error = crossing_with_error(trace.mse, cell.target)
            points.append(Point(cell, rounds, error, predicted))
        except Diverged:
            points.append(Point(cell, math.nan, math.nan, predicted, diverged=True))
        done += cell.work
        advance(int(done), int(total))
    return points


def _predicted(problem: object, cell: AccelerationRun) -> float:
    """The round in which the predicted error is at the target; NaN where there is no prediction."""
    try:
        if isinstance(cell.method, ProxSkip):  # its random rounds take longer to predict than to run
            return math.nan
        if isinstance(cell.method, FedLin) and (
            cell.rounds > FAMILY_ROUNDS or cell.steps > FAMILY_STEPS or DIM * cell.n_clients > FAMILY_NUMBERS
        ):
            return math.nan
        how: Any = "first order" if isinstance(problem, LogisticStream) else "exact"
        found = predict(problem, cell.method, batch_size=1, rounds=cell.rounds, how=how)  # type: ignore[arg-type]
    except InvalidInput:  # no plateau
        return math.nan
    assert found.curve is not None
    return crossing(found.curve, cell.target)


def crossing(errors: Array, target: float) -> float:
    """Where errors by round first fall to the target, between rounds on a logarithmic scale; NaN if never."""
    below = np.flatnonzero(errors <= target)
    if not below.size or below[0] == 0:
        return math.nan
    t = int(below[0])
    fall = math.log(errors[t - 1] / errors[t]) if errors[t] > 0.0 else math.inf
    return t - 1 + (math.log(errors[t - 1] / target) / fall if math.isfinite(fall) else 1.0)


def crossing_with_error(errors: Array, target: float) -> tuple[float, float]:
    """Crossing of the mean over repetitions, (repetitions, rounds + 1), and its jackknife standard error."""
    R = len(errors)
    found = crossing(errors.mean(axis=0), target)
    if R < 3:
        return found, math.nan
    total = errors.sum(axis=0)
    each = np.array([crossing((total - one) / (R - 1), target) for one in errors])
    return found, float(np.sqrt((R - 1) * np.mean((each - each.mean()) ** 2)))


@dataclass(frozen=True)
class Line:
    """Points of one recipe in one part of the study: x is κ, γHL or N; y rounds or gradients per client."""

    x: Array
    measured: Array
    error: Array
    predicted: Array

    @property
    def fit(self) -> LineFit:
        """The line through log y over log x, whose slope is the exponent."""
        return _fit(self.x, self.measured)

    @property
    def predicted_fit(self) -> LineFit:
        """The same line through the predictions."""
        return _fit(self.x, self.predicted)


def _fit(x: Array, y: Array) -> LineFit:
    there = np.isfinite(y)
    return fit_line(np.log(x[there]), np.log(y[there]))


def line(points: Sequence[Point], part: Part, recipe: str) -> Line:
    """The points of a recipe, by κ (rounds), by γHL (rounds) or by N (gradients per client)."""
    chosen = [point for point in points if point.cell.part == part and point.cell.recipe == recipe]
    name = {"condition": "condition", "length": "length"}.get(part, "n_clients")
    each = np.array([point.gradients_per_round if name == "n_clients" else 1.0 for point in chosen])
    return Line(
        x=np.array([getattr(point.cell, name) for point in chosen], dtype=np.float64),
        measured=each * np.array([point.rounds for point in chosen]),
        error=each * np.array([point.error for point in chosen]),
        predicted=each * np.array([point.predicted for point in chosen]),
    )


def to_frame(points: Sequence[Point]) -> "pd.DataFrame":
    """One row for each point."""
    import pandas as pd

    return pd.DataFrame(
        {
            "part": point.cell.part,
            "recipe": point.cell.recipe,
            "condition": point.cell.condition,
            "n_clients": point.cell.n_clients,
            "gamma_H_L": point.cell.length,
            "step_size": point.cell.method.step_size,
            "steps_per_round": point.cell.steps,
            "target": point.cell.target,
            "repetitions": point.cell.repetitions,
            "rounds": point.rounds,
            "rounds_error": point.error,
            "rounds_predicted": point.predicted,
            "gradients_per_client": point.gradients,
            "diverged": point.diverged,
        }
        for point in points
    )
