"""Halve the step size each time that the run has become stationary, so that its error keeps falling."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.progress import Progress, progress_bar
from fedscaffold.core.random.batches import Sampling
from fedscaffold.core.types import Engine, Observer, Problem
from fedscaffold.simulation.observers import resolve as resolve_observers
from fedscaffold.simulation.recorder import Recorder
from fedscaffold.simulation.rounds import State, Step, initial_state, divergence_limit, open_rounds
from fedscaffold.simulation.run import costs, ended, opening
from fedscaffold.simulation.trace import Trace

QUOTIENT = 1.5  # of the lengths of consecutive windows
THRESHOLD = 0.6  # slopes are 2 when θ drifts, 1 when it walks at random, 0 when it is stationary
SHORTEST = 5.0  # rounds of the first stage, at least
GROWTH = 1.5  # of that least length from stage to stage,
SHARE = 0.5  # or this share of the stage before, if that is longer: with half of γ nothing goes faster


class Stage(NamedTuple):
    """Rounds after `after`, up to the next stage, were run with this step size."""

    after: int
    step_size: float


@dataclass(frozen=True, kw_only=True)
class Staged:
    """The result of `fedscaffold.staged`.

    Attributes
    ----------
    trace
        As of `fedscaffold.run`. Its provenance describes the method that it started with, and the stages.
    stages
        When the step size changed, and to what; the first is (0, the method's own).
    """

    trace: Trace
    stages: tuple[Stage, ...]


def staged(
    method: Any,
    problem: Problem,
    *,
    rounds: int,
    batch_size: int | None = None,
    seed: int = 0,
    repetitions: int = 1,
    engine: str | Engine = "auto",
    theta0: ArrayLike | None = None,
    record: Iterable[str | Observer] = ("mse",),
    sampling: Sampling = "with_replacement",
    progress: Progress = None,
) -> Staged:
    """γ ← γ/2 whenever d log D_n / d log n < 0.6, with D_n = ‖θ_n − θ_r‖² n rounds after the last change r.

    From where a stage starts, D_n grows as n² while θ drifts, as n while noise makes it walk, and stays the same
    once it is stationary (Pesme, Dieuleveut and Flammarion 2020). D_n is averaged over windows of rounds whose
    ends grow by half, and over the repetitions, which all change together. The first stage has 5 rounds or more,
    each next one at least 1.5 times that least length, and at least half of the rounds of the stage before.
    Neither the optimum nor any constant of the problem is used. H stays, and so do control variates, which are
    gradients and need no rescaling.

    It cannot be interrupted and gone on with; `fedscaffold.run` can.

    Parameters
    ----------
    method
        Any of the methods, with a step size that may be too large, but with which it does not diverge.
    problem
        What to minimise.
    rounds
        T, of all stages together.
    batch_size, seed, repetitions, engine, theta0, record, sampling, progress
        As in `fedscaffold.run`.
    """
    known = fields(method) if is_dataclass(method) and not isinstance(method, type) else ()
    if not any(field.name == "step_size" for field in known):
        raise InvalidInput(f"stages need a method with a step_size to halve, not {type(method).__name__}")
    batches, chosen, theta = opening(
        problem, rounds=rounds, batch_size=batch_size, seed=seed, repetitions=repetitions, engine=engine,
        theta0=theta0, sampling=sampling,
    )  # fmt: skip
    observers = resolve_observers(record)
    current = method
    gradients, vectors = costs(problem, current, batches, seed=seed, repetitions=repetitions, rounds=rounds)
    state = initial_state(problem, current, theta)
    recorder = Recorder(observers, problem, {})
    recorder.see(0, state.theta)
    stages = [Stage(0, current.step_size)]
    with np.errstate(over="ignore", invalid="ignore"), progress_bar("stages", progress) as advance:

        def seen(state: State) -> None:
            recorder.see(state.round, state.theta)
            advance(state.round, rounds)

        least = SHORTEST
        while True:
            with open_rounds(problem, current, chosen, batches, seed=seed, limit=divergence_limit(theta)) as step:
                state = _until_stationary(state, step, rounds, least, seen)
            if state.round == rounds:
                break
            least = max(GROWTH * least, SHARE * (state.round - stages[-1].after))
            current = replace(current, step_size=0.5 * current.step_size)
            stages.append(Stage(state.round, current.step_size))
    trace = ended(
        problem, method, batches, chosen, seed=seed, state=state, records=recorder.records(),
        gradients=gradients, vectors=vectors, stages=[list(stage) for stage in stages],
    )  # fmt: skip
    return Staged(trace=trace, stages=tuple(stages))


def _until_stationary(state: State, step: Step, rounds: int, least: float, seen: Callable[[State], None]) -> State:
    """The state once the slope is below the threshold, after `least` rounds or more, or when rounds are over."""
    start, distances = state.theta, list[float]()
    while state.round < rounds:
        state = step(state)
        seen(state)
        distances.append(float(np.square(state.theta - start).sum(axis=1).mean()))
        found = slope(distances)
        if found is not None and len(distances) >= least and found < THRESHOLD:
            break
    return state


def slope(distances: Sequence[float]) -> float | None:
    """log(D_k / D_{k−1}) / log(e_k / e_{k−1}), D_k the mean of the distances after e_{k−1} and up to e_k.

    Window ends e_k grow by half: 1, 2, 3, 5, 8, 12, 18, ... None unless the last distance ends a window; 0 when
    nothing moves.
    """
    ends = [0, 1]
    while ends[-1] < len(distances):
        ends.append(max(ends[-1] + 1, int(np.ceil(QUOTIENT * ends[-1]))))
    if ends[-1] != len(distances) or len(ends) < 3:
        return None
    before, last = np.mean(distances[ends[-3] : ends[-2]]), np.mean(distances[ends[-2] : ends[-1]])
    if before == 0.0 or last == 0.0:
        return 0.0
    return float(np.log(last / before) / np.log(ends[-1] / ends[-2]))
