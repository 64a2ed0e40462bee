"""Observers: quantities that a run records in each round, a number or a vector for each repetition."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from fedscaffold.core.checks import given, numbers, set_fields, whole_number
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.protocols import HasAccuracy, Observer, Problem, Watch
from fedscaffold.core.types import Array
from fedscaffold.simulation.checkpoint import Saved
from fedscaffold.simulation.rounds import State

Recorded = str | Observer | Callable[[Array], Any]  # what `record` may hold
Callback = Callable[[int, Mapping[str, Array]], object]  # of the round, and of the values recorded in it


def squared_distance(theta: Array, optimum: Array) -> Array:
    """Return ‖θ − θ*‖² of each row of θ, (repetitions, dim) → (repetitions,)."""
    return np.square(theta - optimum).sum(axis=-1)


@dataclass(frozen=True, eq=False)
class Mse:
    """Records ‖θ_t − θ*‖² after every round, with the problem's optimum θ*.

    Parameters
    ----------
    optimum
        θ*, (dim,), if it has been computed already; by default `problem.optimum()`. As it belongs to the
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
        """Return a function that computes the squared distance to the optimum, which is found once."""
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
        """Return a function that computes the loss of every repetition."""
        return _each(problem.loss)


@dataclass(frozen=True)
class Accuracy:
    """Records the share of all records whose class θ_t predicts, for Logistic, Multinomial and Torch problems.

    For other data, such as records held out for testing, record a function of θ: the method `accuracy` of another
    problem is one.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> problem = fs.problems.paper("classification", n_clients=4)
    >>> method = fs.Scaffold(step_size=0.5, local_steps=5)
    >>> trace = fs.run(problem, method, rounds=10, batch_size=10, record=("accuracy",))
    >>> bool(trace.accuracy[0, -1] > 0.7)
    True
    """

    name: str = field(default="accuracy", init=False)
    keep: Literal["every"] = field(default="every", init=False)

    def watch(self, problem: Problem) -> Watch:
        """Return a function that computes the accuracy of every repetition."""
        if not isinstance(problem, HasAccuracy):
            raise InvalidInput(
                "accuracy is known for Logistic, Multinomial and Torch problems, not for "
                f"{type(problem).__name__}; record a function of theta instead"
            )
        return _each(problem.accuracy)


@dataclass(frozen=True)
class ClientLosses:
    """Records every client's loss f_c(θ_t) after every round, (repetitions, rounds + 1, n_clients).

    Examples
    --------
    >>> import fedscaffold as fs
    >>> problem = fs.problems.paper("regression", n_clients=4)
    >>> method = fs.Scaffold(step_size=0.05, local_steps=5)
    >>> trace = fs.run(problem, method, rounds=3, batch_size=10, record=("client_losses", "worst_loss"))
    >>> trace.metrics["client_losses"].shape
    (1, 4, 4)
    >>> bool((trace.metrics["worst_loss"] == trace.metrics["client_losses"].max(axis=2)).all())
    True
    """

    name: str = field(default="client_losses", init=False)
    keep: Literal["every"] = field(default="every", init=False)

    def watch(self, problem: Any) -> Watch:
        """Return a function that computes the clients' losses of every repetition."""
        if not hasattr(problem, "client_losses"):
            raise InvalidInput(f"the clients' losses are not known for a {type(problem).__name__} problem")
        return _each(problem.client_losses)


@dataclass(frozen=True)
class WorstLoss(ClientLosses):
    """Records the largest of the clients' losses f_c(θ_t) after every round.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> problem = fs.problems.paper("regression", n_clients=4)
    >>> method = fs.Scaffold(step_size=0.05, local_steps=5)
    >>> trace = fs.run(problem, method, rounds=3, batch_size=10, record=(fs.simulation.WorstLoss(),))
    >>> trace.metrics["worst_loss"].shape
    (1, 4)
    """

    name: str = field(default="worst_loss", init=False)

    def watch(self, problem: Any) -> Watch:
        """Return a function that computes the largest loss of every repetition."""
        losses = super().watch(problem)
        return lambda round, theta, previous: losses(round, theta, previous).max(axis=1)


@dataclass(frozen=True)
class _Function:
    """Records a function of one model θ, (dim,), under the function's name."""

    name: str
    function: Callable[[Array], Any] = field(repr=False)
    keep: Literal["every"] = field(default="every", init=False)

    def watch(self, problem: Problem) -> Watch:
        return _each(self.function)


def _each(function: Callable[[Array], Any]) -> Watch:
    """Return a watch that applies a function of one model to every repetition."""

    def values(round: int, theta: Array, previous: Array | None) -> Array:
        return np.array([np.asarray(function(row), dtype=np.float64) for row in theta])

    return values


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
        """Return a function that updates the average with the model of a round."""

        def average(round: int, theta: Array, previous: Array | None) -> Array:
            if previous is None or round <= self.after:
                return theta
            return previous + (theta - previous) / (round - self.after)

        return average


BY_NAME: dict[str, Callable[[], Observer]] = {
    "mse": Mse,
    "loss": Loss,
    "accuracy": Accuracy,
    "average": TailAverage,
    "client_losses": ClientLosses,
    "worst_loss": WorstLoss,
}


def resolve_observers(record: Iterable[Recorded]) -> list[Observer]:
    """Return observers from names, objects and functions.

    Raises
    ------
    InvalidInput
        If one is unknown, or if two record under the same name.
    """
    if isinstance(record, str | np.ndarray) or not hasattr(record, "__iter__"):
        example = (record,) if isinstance(record, str) and len(record) < 50 else ("mse",)
        raise InvalidInput(f"record must be a sequence of observers, for example {example!r}; got {given(record)}")
    observers = [_observer(item) for item in record]
    names = [observer.name for observer in observers]
    if len(set(names)) < len(names):
        raise InvalidInput(f"each observer can be recorded once, got {names}")
    return observers


def _observer(item: Any) -> Observer:
    if isinstance(item, str) and item in BY_NAME:
        return BY_NAME[item]()
    if isinstance(item, Observer) and not isinstance(item, type):
        return item
    if callable(item) and isinstance(getattr(item, "__name__", None), str) and not isinstance(item, type):
        return _Function(item.__name__, item)
    raise InvalidInput(
        f"unknown observer {given(item)}; choose among {', '.join(map(repr, BY_NAME))}, or give a function of θ"
    )


class Recorder:
    """The observers' values so far; if a value is kept for every round, they grow along axis 1."""

    def __init__(
        self,
        observers: Iterable[Observer],
        problem: Any,
        saved: Saved | None = None,
        callbacks: Iterable[Callback] = (),
    ) -> None:
        self._callbacks = tuple(callbacks)
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
        """Record θ after a round, or at the start, and return False: no observer ends a run."""
        for name, keep, watch in self._watches:
            values = self._values.setdefault(name, [])
            value = watch(state.round, state.theta, values[-1] if values else None)
            if keep == "last":
                values.clear()
            values.append(value)
        newest = {name: values[-1] for name, values in self._values.items()}
        for callback in self._callbacks:
            callback(state.round, newest)
        return False

    def metrics(self) -> dict[str, Array]:
        """Return the recorded arrays by the observers' names."""
        return {
            name: np.stack(self._values[name], axis=1) if keep == "every" else self._values[name][0]
            for name, keep, _ in self._watches
        }
