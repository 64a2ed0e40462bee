"""Runs of an implementation under test, recorded: its model and its corrections after each round."""

import copy
import pickle
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedscaffold.conformance.task import Array, Federation, NotSupported, Start, Task, draw_cohorts, make_task
from fedscaffold.core.errors import InvalidInput

EVERYONE_ROUNDS = 100  # enough for correct implementations to reach 1e-8 on all tasks
COHORT_ROUNDS = 300  # the same if a third of the clients take part
DIVERGED = 1e6  # a coordinate this large has diverged: optima and starts are of size 1 to 10


@dataclass(frozen=True)
class Stop:
    """A client, or the server (None), that is saved after one round and restarts from it before a later one."""

    client: int | None
    saved_after: int
    back_before: int


@dataclass(frozen=True, eq=False)
class Scenario:
    """A task, the clients of each round, and disturbances."""

    task: Task  # the problem, with the first round's step size and local steps
    cohorts: tuple[tuple[int, ...], ...]  # the clients of each round
    settings: tuple[tuple[float, tuple[int, ...]], ...] = ()  # of each round; empty if they never change
    lost: tuple[tuple[int, ...], ...] = ()  # clients of each round whose reply does not arrive; empty if all do
    stops: tuple[Stop, ...] = ()  # clients, or the server, that restart

    def task_in(self, round: int) -> Task:
        """Return the task with the step size and the local steps of a round, counted from 0."""
        if not self.settings:
            return self.task
        step_size, local_steps = self.settings[round]
        return replace(self.task, step_size=step_size, local_steps=local_steps)

    def run_round(self, federation: Federation, round: int) -> None:
        """Run one round of the scenario, counted from 0, on a federation that has run the earlier ones."""
        if self.settings and (round == 0 or self.settings[round] != self.settings[round - 1]):
            federation.reconfigure(copy.deepcopy(self.task_in(round)))  # type: ignore[attr-defined]
        lost = self.lost[round] if self.lost else ()
        if lost:
            federation.round_with_lost_replies(self.cohorts[round], lost)  # type: ignore[attr-defined]
        else:
            federation.round(self.cohorts[round])


@dataclass(frozen=True, eq=False)
class Recording:
    """Models (rounds + 1, dim) and corrections (rounds + 1, clients, dim); fewer rounds if it diverged."""

    scenario: Scenario
    models: Array
    read_corrections: Array | Exception

    def corrections(self) -> Array:
        """Return ξ_c before the first and after each round; raise the error that reading them raised."""
        if isinstance(self.read_corrections, Exception):
            raise self.read_corrections
        return self.read_corrections

    @property
    def diverged(self) -> bool:
        """Whether the run was ended because the model exceeded `DIVERGED` or was not finite."""
        return bool(not np.abs(self.models[-1]).max() < DIVERGED)


def record(start: Start, scenario: Scenario) -> Recording:
    """Run all rounds of a scenario, or until the model exceeds `DIVERGED`, and record them."""
    task = scenario.task
    federation = begin(start, task)
    saved: dict[Stop, Any] = {}
    models, corrections = [_vector("model()", federation.model(), task.dim)], [_read_corrections(federation, task)]
    for done in range(len(scenario.cohorts)):
        for stop in scenario.stops:
            if stop.saved_after == done:
                saved[stop] = copy.deepcopy(_save(federation, stop.client))
            if stop.back_before == done + 1 and stop.client is None:
                federation.restart_server(saved[stop])  # type: ignore[attr-defined]
            elif stop.back_before == done + 1:
                federation.restart(stop.client, saved[stop])  # type: ignore[attr-defined]
        scenario.run_round(federation, done)
        models.append(_vector("model()", federation.model(), task.dim))
        if not np.abs(models[-1]).max() < DIVERGED:
            break
        corrections.append(_read_corrections(federation, task))
    unreadable = next((read for read in corrections if isinstance(read, Exception)), None)
    readable = [read for read in corrections if not isinstance(read, Exception)]
    return Recording(scenario, np.stack(models), np.stack(readable) if unreadable is None else unreadable)


def goes_on_changing(start: Start, scenario: Scenario, client: int | None) -> bool:
    """Return whether the next round changes the state that a client, or the server (None), has saved."""
    federation = begin(start, scenario.task)
    scenario.run_round(federation, 0)
    saved = _save(federation, client)
    before = pickle.dumps(saved)  # only compared, never loaded
    scenario.run_round(federation, 1)
    return pickle.dumps(saved) != before


def _save(federation: Federation, client: int | None) -> Any:
    if client is None:
        return federation.save_server()  # type: ignore[attr-defined]
    return federation.save(client)  # type: ignore[attr-defined]


def require(bench: "Bench", *names: str) -> None:
    """Raise `NotSupported` unless the implementation has the optional functions of these names."""
    federation = begin(bench.start, bench.scenarios["everyone"][0].task)
    if not all(callable(getattr(federation, name, None)) for name in names):
        raise NotSupported(f"the adapter has no {' and '.join(names)}")


def begin(start: Start, task: Task) -> Federation:
    """Return a new federation with a copy of the task; raise if it does not start at θ0."""
    federation = start(copy.deepcopy(task))
    missing = [name for name in ("round", "model", "correction") if not callable(getattr(federation, name, None))]
    if missing:
        raise InvalidInput(f"the object that start(task) returns must have the functions {', '.join(missing)}")
    if not np.allclose(_vector("model()", federation.model(), task.dim), task.theta0, rtol=1e-5):
        raise InvalidInput("model() must return task.theta0 before the first round")
    return federation


def _read_corrections(federation: Federation, task: Task) -> Array | Exception:
    """Return all corrections, or the error of reading them, which the checks that need them raise."""
    try:
        rows = np.stack(
            [_vector("correction()", federation.correction(c), task.dim) for c in range(task.n_clients)]
        )
        if not np.isfinite(rows).all():
            raise InvalidInput("correction() returned NaN or infinite values while the model was finite")
    except Exception as error:
        return error
    return rows


def _vector(name: str, value: ArrayLike, dim: int) -> Array:
    vector = np.array(value, dtype=np.float64)
    if vector.shape != (dim,):
        raise InvalidInput(f"{name} must return one vector of shape ({dim},), got shape {vector.shape}")
    return vector


class Bench:
    """Scenarios by name, each run once on first use; a failed run fails again on each use."""

    def __init__(self, start: Start, seed: int) -> None:
        self.start = start
        self.scenarios = scenarios(seed)
        self._outcomes: dict[str, list[Recording] | Exception] = {}

    def recordings(self, name: str) -> list[Recording]:
        """Return the recordings of all scenarios of a name; raise the error that the implementation raised."""
        if name not in self._outcomes:
            try:
                self._outcomes[name] = [record(self.start, scenario) for scenario in self.scenarios[name]]
            except Exception as error:
                self._outcomes[name] = error
        outcome = self._outcomes[name]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def completed(self, name: str) -> list[Recording]:
        """Return the recordings, or an empty list if it raised: another check reports on this scenario."""
        try:
            return self.recordings(name)
        except Exception:
            return []

    def with_corrections(self, *names: str) -> list[tuple[Recording, Array]]:
        """Return recordings and corrections of "everyone", and of the named scenarios that are supported."""
        needed = [(recording, recording.corrections()) for recording in self.recordings("everyone")]
        others = [recording for name in names for recording in self.completed(name)]
        return needed + [
            (rec, rec.corrections()) for rec in others if not isinstance(rec.read_corrections, NotSupported)
        ]


def scenarios(seed: int) -> dict[str, list[Scenario]]:
    """Draw all problems from the seed; step sizes, local steps, scales and heterogeneity differ widely."""

    def everyone(task: Task) -> Scenario:
        return Scenario(task, (tuple(range(task.n_clients)),) * EVERYONE_ROUNDS)

    def some(task: Task, size: int) -> Scenario:
        return Scenario(task, draw_cohorts(rng, task, size, COHORT_ROUNDS))

    def lossy(task: Task, size: int) -> Scenario:
        """Lose the reply of one client in each of the first fifth of the rounds."""
        cohorts = draw_cohorts(rng, task, size, COHORT_ROUNDS)
        early = COHORT_ROUNDS // 5
        return Scenario(
            task, cohorts, lost=tuple((cohort[t % size],) if t < early else () for t, cohort in enumerate(cohorts))
        )

    def changing(task: Task) -> Scenario:
        """Alternate between the task's settings, half the step size, and twice as many steps."""
        longer = tuple(2 * steps for steps in task.local_steps)
        turns = (
            (task.step_size, task.local_steps),
            (0.5 * task.step_size, task.local_steps),
            (0.5 * task.step_size, longer),
        )
        return replace(everyone(task), settings=tuple(turns[t % 3] for t in range(EVERYONE_ROUNDS)))

    rng = np.random.default_rng([seed, 20])
    make = make_task
    return {
        "everyone": [
            everyone(make(rng, n_clients=5, dim=3, smoothness=1.0, reach=1.2, local_steps=[4] * 5)),
            everyone(make(rng, n_clients=3, dim=2, smoothness=20.0, reach=1.2, local_steps=[10] * 3, spread=5.0)),
            everyone(make(rng, n_clients=8, dim=4, smoothness=0.2, reach=1.2, local_steps=[2] * 8, spread=2.0)),
        ],
        "some": [
            some(make(rng, n_clients=8, dim=3, smoothness=5.0, reach=1.0, local_steps=[3] * 8), 3),
            some(make(rng, n_clients=6, dim=2, smoothness=0.5, reach=0.8, local_steps=[8] * 6, spread=3.0), 2),
        ],
        "steps": [
            everyone(make(rng, n_clients=4, dim=3, smoothness=1.0, reach=0.8, local_steps=[1, 3, 5, 10])),
            everyone(make(rng, n_clients=6, dim=2, smoothness=10.0, reach=0.8, local_steps=[2, 2, 3, 4, 8, 8])),
        ],
        "weights": [
            everyone(
                make(rng, n_clients=n, dim=3, smoothness=s, reach=1.0, local_steps=[h] * n, equal_weights=False)
            )
            for n, s, h in ((4, 1.0, 5), (7, 8.0, 3))
        ],
        "weighted cohorts": [
            some(
                make(rng, n_clients=6, dim=3, smoothness=2.0, reach=0.8, local_steps=[4] * 6, equal_weights=False),
                3,
            ),
            some(
                make(rng, n_clients=5, dim=2, smoothness=0.5, reach=0.8, local_steps=[6] * 5, equal_weights=False),
                2,
            ),
        ],
        "changing": [
            changing(make(rng, n_clients=4, dim=3, smoothness=1.0, reach=1.0, local_steps=[3] * 4)),
            changing(make(rng, n_clients=6, dim=2, smoothness=10.0, reach=1.0, local_steps=[5] * 6, spread=2.0)),
        ],
        "lost": [lossy(make(rng, n_clients=8, dim=3, smoothness=2.0, reach=0.8, local_steps=[4] * 8), 4)],
    }
