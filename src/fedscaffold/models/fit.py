"""A planned run of Scaffold on a table's problem, and the model that it gives."""

import math
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedscaffold.core import npz as arrays
from fedscaffold.core.checks import positive, whole_number
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.progress import Progress
from fedscaffold.core.types import Array
from fedscaffold.data.encoded import EncodedProblem, EncodedRidge
from fedscaffold.engines import Numba
from fedscaffold.methods import Scaffold
from fedscaffold.models.model import Model, in_own_units
from fedscaffold.simulation import Mse, Trace
from fedscaffold.simulation.run import run
from fedscaffold.theory.planning.plan import Plan, plan

TOLERANCE = 0.005
SMALL_CLIENT = 512  # rows on average: up to here a full gradient is cheap, and has no noise
BATCH = 64
MOST_ROUNDS = 20_000
ENGINE = Numba(specialise=False)  # a fit is short: no time to compile for its number of features
BatchSize = int | None | Literal["auto"]


def automatic_batch(sizes: NDArray[np.int64]) -> int | None:
    """Rows per step for clients of these sizes: all (None) where that is cheap, since then there is no noise."""
    return None if sizes.mean() <= SMALL_CLIENT else BATCH


def batch_words(batch: int | None) -> str:
    """Rows per step, in words."""
    return "all of a client's" if batch is None else f"{batch}"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How to fit; what is None is planned.

    Parameters
    ----------
    tolerance
        The distance to the pooled model to aim for, relative: ‖θ − θ*‖ / ‖θ*‖, on standardised features.
    batch_size
        Rows in each stochastic gradient, None for all of a client's, or "auto": all where clients have at most
        512 rows on average, else 64.
    step_size, local_steps, rounds
        γ, H and T.
    seed
        Chooses the rows that are drawn.
    """

    tolerance: float = TOLERANCE
    batch_size: BatchSize = "auto"
    step_size: float | None = None
    local_steps: int | None = None
    rounds: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not positive("tolerance", self.tolerance) < 1.0:
            raise InvalidInput(f"tolerance must be below 1, got {self.tolerance!r}")
        if self.step_size is not None:
            positive("step_size", self.step_size)
        for name, value in (("local_steps", self.local_steps), ("rounds", self.rounds)):
            if value is not None:
                whole_number(name, value, least=1)
        if self.batch_size not in (None, "auto"):
            whole_number("batch_size", self.batch_size, least=1)
        whole_number("seed", self.seed, least=0)

    def batch_for(self, problem: EncodedProblem) -> int | None:
        """Rows per step; None for all."""
        return automatic_batch(problem.sizes) if self.batch_size == "auto" else self.batch_size


@dataclass(frozen=True, kw_only=True)
class Task:
    """A problem ready to run: for ridge the target is standardised, y = shift + scale · (what is fitted)."""

    problem: EncodedProblem
    optimum: Array
    plan: Plan | None
    method: Scaffold
    rounds: int
    batch_size: int | None
    target_mse: float
    target_shift: float = 0.0
    target_scale: float = 1.0

    def model(self, theta: Array, provenance: Mapping[str, Any] | None = None) -> Model:
        """The model of a θ of this problem, in the table's own units."""
        vectors = np.reshape(theta, (self.problem.vectors, self.problem.n_features))
        encoding, equations = in_own_units(
            self.problem.encoding, vectors, target_shift=self.target_shift, target_scale=self.target_scale
        )
        return Model(encoding=encoding, equations=equations, provenance=provenance or {})

    @property
    def loss_scale(self) -> float:
        """What turns a loss of this problem into one in the target's own units."""
        return self.target_scale**2


@dataclass(frozen=True, kw_only=True)
class Fit:
    """A model, the run that gave it, and what it was planned from."""

    model: Model
    trace: Trace
    task: Task
    settings: Settings

    @property
    def theta(self) -> Array:
        """The fitted θ, for encoded rows."""
        return self.trace.theta[0]

    @property
    def relative_distance(self) -> float:
        """‖θ − θ*‖ / ‖θ*‖."""
        return float(np.sqrt(self.trace.mse[0, -1]) / np.linalg.norm(self.task.optimum))


class Goal(NamedTuple):
    """What there is to plan: a problem, its optimum, rows per step, and the squared distance to reach."""

    problem: EncodedProblem
    optimum: Array
    batch_size: int | None
    target_mse: float
    target_shift: float
    target_scale: float


def goal(problem: EncodedProblem, settings: Settings) -> Goal:
    """‖θ − θ*‖ ≤ tolerance · ‖θ*‖, on the problem with a numeric target standardised."""
    shift, scale = 0.0, 1.0
    if isinstance(problem, EncodedRidge):
        problem, shift, scale = standardised_target(problem)
    optimum = problem.optimum()
    wanted = settings.tolerance**2 * float(optimum @ optimum)
    if wanted == 0.0:
        raise InvalidInput("the features say nothing about the target: the best coefficients are all 0")
    return Goal(problem, optimum, settings.batch_for(problem), wanted, shift, scale)


def prepare(problem: EncodedProblem, settings: Settings) -> Task:
    """The goal, and a plan for what was not given."""
    found = goal(problem, settings)
    planned, method, rounds = _planned(found, settings)
    return Task(**found._asdict(), plan=planned, method=method, rounds=rounds)


def _planned(found: Goal, settings: Settings) -> tuple[Plan | None, Scaffold, int]:
    """What was given, and a first-order plan for the rest; a smaller step size takes more rounds in proportion."""
    gamma, H, T = settings.step_size, settings.local_steps, settings.rounds
    if gamma is not None and H is not None and T is not None:
        return None, Scaffold(step_size=gamma, local_steps=H), T
    try:
        planned = plan(
            found.problem,
            target_mse=found.target_mse,
            batch_size=found.batch_size,
            mode="first_order",
            optimum=found.optimum,
            max_local_steps=H,
            max_rounds=MOST_ROUNDS,
        )
    except InvalidInput as error:
        raise InvalidInput(
            f"no plan reaches a tolerance of {settings.tolerance:g}; take a larger one or larger batches ({error})"
        ) from None
    method = planned.method
    if gamma is not None:
        method = replace(method, step_size=gamma)
    if H is not None:
        method = replace(method, local_steps=H)
    slower = max(1.0, planned.method.step_size / method.step_size)
    return planned, method, math.ceil(planned.rounds * slower) if T is None else T


def standardised_target(problem: EncodedRidge) -> tuple[EncodedRidge, float, float]:
    """The same problem with (y − mean)/deviation over all rows, that mean and that deviation.

    The optimum's features change by the factor 1/deviation, so relative distances no longer depend on where the
    target's zero lies.
    """
    mean = sum(float(share @ problem.y[rows]) for rows, share in problem.shares(problem.y))
    square = sum(float(share @ (problem.y[rows] - mean) ** 2) for rows, share in problem.shares(problem.y))
    deviation = float(np.sqrt(square))
    if deviation <= 1e-12 * abs(mean):
        raise InvalidInput(f"the target {problem.encoding.target!r} is the same in all rows; nothing to fit")
    y = problem.y - mean  # in memory, even where the rows lie in a file
    y /= deviation
    other = EncodedRidge(
        problem.x,
        y,
        problem.offsets,
        l2=problem.l2,
        weights=problem.weights,
        client_names=problem.client_names,
        encoding=problem.encoding,
    )
    return other, mean, deviation


def fit(
    problem: EncodedProblem,
    *,
    settings: Settings | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: Progress = None,
) -> Fit:
    """The model of a table, by Scaffold: planned for a distance to the pooled model, then run.

    Parameters
    ----------
    problem
        From `open_problem`, or from `data.from_frame` and its relatives.
    settings
        Tolerance, batches and seed; step size, local steps and rounds where they should not be planned.
    checkpoint
        A file. It is written now and then, and the same call goes on from it.
    progress
        As in `fedscaffold.run`.
    """
    settings = settings or Settings()
    return run_task(prepare(problem, settings), settings, checkpoint=checkpoint, progress=progress)


def run_task(
    task: Task,
    settings: Settings,
    *,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: Progress = None,
    provenance: Mapping[str, Any] | None = None,
) -> Fit:
    """Run what `prepare` planned; `provenance` is added to the model's.

    Where rounds were planned and do not suffice, since the plan is a first-order model, a quarter more are run,
    at most twice as many in all.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "checkpoint.npz" if checkpoint is None else Path(checkpoint)
        ladder = [task.rounds]
        if settings.rounds is None:
            ladder = [math.ceil(task.rounds * (1.0 + k / 4.0)) for k in range(5)]
        done = _rounds_in(file)
        for rounds in [t for t in ladder if t >= done] or ladder[-1:]:
            trace = run(
                task.problem,
                task.method,
                rounds=rounds,
                batch_size=task.batch_size,
                seed=settings.seed,
                engine=ENGINE,
                checkpoint=file,
                record=(Mse(task.optimum),),
                progress=progress,
            )
            if trace.mse[0, -1] <= task.target_mse:
                break
    own = {**arrays.plain(trace.provenance), "rounds": trace.rounds, "tolerance": settings.tolerance}
    return Fit(
        model=task.model(trace.theta[0], {**own, **(provenance or {})}), trace=trace, task=task, settings=settings
    )


def _rounds_in(checkpoint: Path) -> int:
    """How far an earlier run came; 0 where there is none, or what `run` will refuse."""
    try:
        return int(arrays.read(checkpoint)[1]["round"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0
