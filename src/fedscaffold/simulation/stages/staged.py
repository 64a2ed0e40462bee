"""Halve the step size each time that the run has become stationary, so that its error keeps falling."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedscaffold.core.checks import suggest_names
from fedscaffold.core.display import Progress, Summarised, progress_bar
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.files import Fields
from fedscaffold.core.protocols import Engine, Method, Problem
from fedscaffold.core.random.stream import Sampling
from fedscaffold.core.types import Array
from fedscaffold.simulation.observers import Recorded, Recorder, resolve_observers, squared_distance
from fedscaffold.simulation.rounds import State
from fedscaffold.simulation.run_method import checkpoint_file, make_trace, run_to_end
from fedscaffold.simulation.setup import validate_run
from fedscaffold.simulation.trace import Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Stage(NamedTuple):
    """The rounds after round `after`, up to the next stage, were run with this step size.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> fs.Stage(after=40, step_size=0.025).step_size
    0.025
    """

    after: int
    step_size: float


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Staged(Summarised):
    """The result of `fedscaffold.staged`: a trace, and the rounds after which the step size was halved.

    Attributes
    ----------
    trace
        As of `fedscaffold.run`. Its provenance describes the method that it started with, and the stages.
    stages
        When the step size changed, and to what; the first is (0, the method's own).

    Examples
    --------
    >>> import fedscaffold as fs
    >>> problem = fs.problems.paper("regression", n_clients=10)
    >>> found = fs.staged(problem, fs.Scaffold(step_size=0.05, local_steps=10), rounds=8, batch_size=10)
    >>> found.stages
    (Stage(after=0, step_size=0.05), Stage(after=5, step_size=0.025))
    >>> found
    <Staged | rounds: 8, stages: 2, step sizes: 0.05 to 0.025>
    """

    trace: Trace
    stages: tuple[Stage, ...]

    def plot(self, ax: "Axes | None" = None, *, name: str = "mse") -> "Axes":
        """Draw a recorded series by round, with lines at halvings of the step size; return the axes.

        Parameters
        ----------
        ax
            matplotlib axes to draw on; by default a new figure's.
        name
            Which series, as for `Trace.plot`.
        """
        ax = self.trace.plot(ax, name=name)
        for k, stage in enumerate(self.stages[1:]):
            ax.axvline(stage.after, color="#222222", lw=0.7, ls=":", label="step size halved" if k == 0 else None)
        ax.legend(frameon=False)
        return ax

    def _facts(self) -> dict[str, object]:
        sizes = f"{self.stages[0].step_size:.3g} to {self.stages[-1].step_size:.3g}"
        return {"rounds": f"{self.trace.rounds:,}", "stages": len(self.stages), "step sizes": sizes}


class _Progress(NamedTuple):
    """Where the current stage stands."""

    stages: tuple[Stage, ...]
    min_rounds: float  # of the current stage
    start: Array  # θ at its beginning, (repetitions, dim)
    distances: list[float]  # mean squared distance from there, after each of its rounds

    def arrays(self) -> dict[str, Array]:
        """Return the arrays that a checkpoint keeps."""
        return {
            "stages": np.array(self.stages, dtype=np.float64),
            "min_rounds": np.array(self.min_rounds),
            "start": self.start,
            "distances": np.array(self.distances),
        }

    @classmethod
    def from_fields(cls, found: Fields, state: State) -> "_Progress":
        """Read what a checkpoint kept; raise if it does not fit the state."""
        found.only("stages", "min_rounds", "start", "distances")
        stages = tuple(Stage(int(after), float(size)) for after, size in found.array("stages", (None, 2)))
        afters = [stage.after for stage in stages]
        ordered = afters[:1] == [0] and afters == sorted(set(afters)) and afters[-1] <= state.round
        if not ordered or not all(stage.step_size > 0.0 for stage in stages):
            raise found.error(f"{found.source}: its stages are not those of a run of {state.round} rounds")
        distances = found.array("distances", (state.round - afters[-1],)).tolist()
        start = found.array("start", state.theta.shape)
        return cls(stages, float(found.array("min_rounds", ())), start, distances)

    def next_stage(self, state: State) -> "_Progress":
        """Return the progress of the next stage, which begins in this state with half of the step size.

        It lasts at least half of the stage before, since with half of γ nothing goes faster.
        """
        shortest = max(1.5 * self.min_rounds, 0.5 * (state.round - self.stages[-1].after))
        stage = Stage(state.round, 0.5 * self.stages[-1].step_size)
        return _Progress((*self.stages, stage), shortest, state.theta, [])


@suggest_names
def staged(
    problem: Problem,
    method: Method,
    *,
    rounds: int,
    batch_size: int | None = None,
    seed: int = 0,
    repetitions: int = 1,
    engine: str | Engine = "auto",
    theta0: Any = None,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: Progress = None,
    sampling: Sampling = "with_replacement",
    record: Iterable[Recorded] = ("mse",),
    checkpoint_every: int | None = None,
) -> Staged:
    """Halve γ whenever d log D_n / d log n < 0.6, with D_n = ‖θ_n − θ_r‖² n rounds after the last change r.

    From where a stage starts, D_n grows as n² while θ drifts, as n while noise makes it walk, and stays the same
    once it is stationary (Pesme, Dieuleveut and Flammarion 2020). D_n is averaged over windows of rounds whose
    ends grow by half, and over the repetitions, which all change together. The first stage has 5 rounds or more,
    each next one at least 1.5 times that least length, and at least half of the rounds of the stage before.
    Neither the optimum nor any constant of the problem is used. H stays, and so do control variates, which are
    gradients and need no rescaling.

    Parameters
    ----------
    problem
        The objective.
    method
        Any of the methods, with a step size that may be too large, but with which it does not diverge.
    rounds
        T, of all stages together.
    batch_size, seed, repetitions, engine, theta0, checkpoint, progress, sampling, record, checkpoint_every
        As in `fedscaffold.run`.

    Returns
    -------
    Staged
        The trace, and the rounds after which the step size was halved.

    Raises
    ------
    InvalidInput
        If an argument cannot be used, or the method has no step_size to halve.
    Diverged
        If θ grows beyond all bounds. Its `trace` holds the rounds before.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> problem = fs.problems.paper("regression", n_clients=10)
    >>> found = fs.staged(problem, fs.Scaffold(step_size=0.05, local_steps=10), rounds=60, batch_size=10)
    >>> found.stages[0]
    Stage(after=0, step_size=0.05)
    """
    setup = validate_run(
        problem, method, rounds=rounds, batch_size=batch_size, seed=seed, repetitions=repetitions, engine=engine,
        theta0=theta0, sampling=sampling,
    )  # fmt: skip
    if not is_dataclass(method) or "step_size" not in [field.name for field in fields(method)]:
        raise InvalidInput(f"stages need a method with a step_size to halve, not {type(method).__name__}")
    observers = resolve_observers(record)
    file = checkpoint_file(setup, checkpoint, checkpoint_every, observers, run="staged")
    rounds = setup.rounds
    saved = None if file is None else file.load(method, setup.theta, rounds, n_clients=problem.n_clients)
    recorder = Recorder(observers, problem, saved)
    state, at = None, _Progress((Stage(0, method.step_size),), 5.0, setup.theta, [])
    if saved is not None:
        state, at = saved.state, _Progress.from_fields(saved.extra, saved.state)

    def record_round(state: State) -> bool:
        recorder.record(state)
        if state.round > at.stages[-1].after:
            at.distances.append(float(squared_distance(state.theta, at.start).mean()))
        return _is_stationary(at)

    def arrays() -> tuple[Mapping[str, Array], Mapping[str, Array]]:
        return recorder.metrics(), at.arrays()

    with progress_bar("stages", progress) as advance:
        while state is None or state.round < rounds:
            if state is not None and _is_stationary(at):
                at = at.next_stage(state)
            stage = replace(setup, method=replace(method, step_size=at.stages[-1].step_size))
            state = run_to_end(
                stage, state, record=record_round, arrays=arrays, file=file,
                progress=lambda done: advance(done, rounds),
            )  # fmt: skip
    trace = make_trace(setup, state, recorder.metrics(), stages=[list(stage) for stage in at.stages])
    return Staged(trace=trace, stages=at.stages)


def _is_stationary(at: _Progress) -> bool:
    """Return whether the slope is below 0.6, after the least number of rounds.

    Slopes are 2 when θ drifts, 1 when it walks at random, and 0 when it is stationary.
    """
    found = slope(at.distances)
    return found is not None and len(at.distances) >= at.min_rounds and found < 0.6


def slope(distances: Sequence[float]) -> float | None:
    """Return log(D_k / D_{k−1}) / log(e_k / e_{k−1}), D_k the mean of the distances after e_{k−1} and up to e_k.

    Window ends e_k grow by half: 1, 2, 3, 5, 8, 12, 18, ... None unless the last distance ends a window; 0 when
    nothing moves.
    """
    ends = [0, 1]
    while ends[-1] < len(distances):
        ends.append(max(ends[-1] + 1, int(np.ceil(1.5 * ends[-1]))))
    if ends[-1] != len(distances) or len(ends) < 3:
        return None
    before, last = np.mean(distances[ends[-3] : ends[-2]]), np.mean(distances[ends[-2] : ends[-1]])
    if before == 0.0 or last == 0.0:
        return 0.0
    return float(np.log(last / before) / np.log(ends[-1] / ends[-2]))
