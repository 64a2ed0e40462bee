"""Observers: what a run records in each round, a number or a vector for each repetition."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from fedscaffold.core.checks import given, numbers, set_fields, whole_number
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.protocols import Observer, Problem, Watch
from fedscaffold.core.types import Array
from fedscaffold.simulation.checkpoint import Saved
from fedscaffold.simulation.rounds import State


def squared_distance(theta: Array, optimum: Array) -> Array:
    """‖θ − θ*‖² of each row of θ, (repetitions, dim) → (repetitions,)."""
    return np.square(theta - optimum).sum(axis=-1)


@dataclass(frozen=True, eq=False)
class Mse:
    """Records ‖θ_t − θ*‖² after every round, with the problem's optimum θ*.

    Parameters
    ----------
    optimum
        θ*, (dim,), where it has been computed already; by default `problem.optimum()`. As it belongs to the
        problem, checkpoints do not mention it.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> problem = fs.problems.paper("regression", n_clients=4)
    >>> method = fs.Scaffold(step_size=0.05, local_steps=5)
    >>> observer = fs.simulation.Mse(problem.optimum())
    >>> fs.run(problem, method, rounds=3, batch_size=10, record=(observer,)).mse.shape
    (1, 4)
    """

    optimum: Array | None = field(default=None, repr=False)
    name: str = field(default="mse", init=False)
    keep: Literal["every"] = field(default="every", init=False)

    def __post_init__(self) -> None:
        if self.optimum is None:
            return
        try:
            own = numbers(self.optimum).copy()
        except (TypeError, ValueError) as error:
            raise InvalidInput(f"Mse's optimum must hold numbers: {error}") from None
        own.flags.writeable = False
        set_fields(self, optimum=own)

    def watch(self, problem: Problem) -> Watch:
        """A function that computes the squared distance to the optimum, which is found once."""
        optimum = problem.optimum() if self.optimum is None else self.optimum
        if optimum.shape != (problem.dim,):
            raise InvalidInput(f"Mse's optimum must have shape ({problem.dim},), got {optimum.shape}")

        def squared_error(round: int, theta: Array, previous: Array | None) -> Array:
            return squared_distance(theta, optimum)

        return squared_error


@dataclass(frozen=True)
class Loss:
    """Records the loss f(θ_t) on all records after every round.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> problem = fs.problems.paper("regression", n_clients=4)
    >>> method = fs.Scaffold(step_size=0.05, local_steps=5)
    >>> trace = fs.run(problem, method, rounds=3, batch_size=10, record=(fs.simulation.Loss(),))
    >>> bool(trace.loss[0, -1] < trace.loss[0, 0])
    True
    """

    name: str = field(default="loss", init=False)
    keep: Literal["every"] = field(default="every", init=False)

    def watch(self, problem: Problem) -> Watch:
        """A function that computes the loss of every repetition."""

        def loss(round: int, theta: Array, previous: Array | None) -> Array:
            return np.array([problem.loss(row) for row in theta])

        return loss


@dataclass(frozen=True)
class TailAverage:
    """Keeps (θ_{k+1} + ... + θ_t)/(t − k), the Polyak–Ruppert average of all rounds after round k.

    Parameters
    ----------
    after
        k, the number of rounds to leave out.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> problem = fs.problems.paper("regression", n_clients=4)
    >>> method = fs.Scaffold(step_size=0.05, local_steps=5)
    >>> trace = fs.run(problem, method, rounds=8, batch_size=10, record=(fs.simulation.TailAverage(after=4),))
    >>> trace.average.shape
    (1, 20)
    """

    after: int = 0
    name: str = field(default="average", init=False)
    keep: Literal["last"] = field(default="last", init=False)

    def __post_init__(self) -> None:
        set_fields(self, after=whole_number("after", self.after, least=0))

    def watch(self, problem: Problem) -> Watch:
        """A function that updates the average with the model of a round."""

        def average(round: int, theta: Array, previous: Array | None) -> Array:
            if previous is None or round <= self.after:
                return theta
            return previous + (theta - previous) / (round - self.after)

        return average


BY_NAME: dict[str, type[Mse] | type[Loss] | type[TailAverage]] = {"mse": Mse, "loss": Loss, "average": TailAverage}


def resolve_observers(record: Iterable[str | Observer]) -> list[Observer]:
    """Observers from names and objects; no two may record under the same name."""
    if isinstance(record, str | np.ndarray) or not hasattr(record, "__iter__"):
        example = (record,) if isinstance(record, str) and len(record) < 50 else ("mse",)
        raise InvalidInput(f"record must be a sequence of observers, for example {example!r}; got {given(record)}")
    observers: list[Observer] = []
    for item in record:
        if item not in BY_NAME if isinstance(item, str) else not hasattr(item, "watch"):
            raise InvalidInput(f"unknown observer {given(item)}; choose among {', '.join(map(repr, BY_NAME))}")
        observers.append(BY_NAME[item]() if isinstance(item, str) else item)
    names = [observer.name for observer in observers]
    if len(set(names)) < len(names):
        raise InvalidInput(f"each observer can be recorded once, got {names}")
    return observers


class Recorder:
    """The observers' values so far; those kept for every round grow along axis 1."""

    def __init__(self, observers: Iterable[Observer], problem: Any, saved: Saved | None = None) -> None:
        self._watches = [(observer.name, observer.keep, observer.watch(problem)) for observer in observers]
        self._values: dict[str, list[Array]] = {}
        if saved is None:
            return
        round, theta = saved.state.round, saved.state.theta
        saved.metrics.only(*(name for name, _, _ in self._watches))
        for name, keep, watch in self._watches:
            like = np.asarray(watch(0, theta, None))  # for its shape
            shape = (len(theta), round + 1, *like.shape[1:]) if keep == "every" else like.shape
            values = saved.metrics.array(name, shape, dtype=like.dtype, finite=False)
            self._values[name] = list(np.moveaxis(values, 1, 0)) if keep == "every" else [values]

    def record(self, state: State) -> bool:
        """Let every observer see θ after a round, or at the start; False: no observer ends a run."""
        for name, keep, watch in self._watches:
            values = self._values.setdefault(name, [])
            value = watch(state.round, state.theta, values[-1] if values else None)
            if keep == "last":
                values.clear()
            values.append(value)
        return False

    def metrics(self) -> dict[str, Array]:
        """The recorded arrays, by the observers' names."""
        return {
            name: np.stack(self._values[name], axis=1) if keep == "every" else self._values[name][0]
            for name, keep, _ in self._watches
        }
