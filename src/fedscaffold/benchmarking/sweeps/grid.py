"""The grid of a sweep: a family of problems, and a cell for each number of clients, method and batch size."""

import inspect
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, Literal, get_args

import numpy as np

from fedscaffold.core import provenance
from fedscaffold.core.checks import check_method, choice, given, positive, seed_number, set_fields, whole_number
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.protocols import Engine, Method
from fedscaffold.core.random.batches import Batches
from fedscaffold.core.storage import npz as arrays
from fedscaffold.problems import LogisticStream, RidgeStream, paper
from fedscaffold.simulation.clients import open_shard, shard_of
from fedscaffold.simulation.setup import RunSetup

Start = Literal["zero", "optimum"]
Key = tuple[Any, ...]
DIM = 20  # of streams whose settings do not give it
PAPER = ("regression", "classification")
STREAMS: dict[str, Callable[..., Any]] = {"ridge-stream": RidgeStream, "logistic-stream": LogisticStream}
NAMES = (*PAPER, *STREAMS)
FEWEST = 2  # clients of any family
LARGEST_DIM = 1_000_000


@dataclass(frozen=True, kw_only=True, eq=False)
class Family:
    """The same problem for every number of clients.

    Parameters
    ----------
    name
        "regression" or "classification", the paper's, with other data for each N; "ridge-stream" or
        "logistic-stream", whose first clients are the same for all N.
    settings
        Further arguments of the problem, such as {"l2": 0.1}; a stream's `dim` is 20 by default, and its
        `spectrum` may be one number for all features.
    seed
        Seed of the data.

    Examples
    --------
    >>> from fedscaffold.benchmarking import Family
    >>> family = Family(name="ridge-stream", settings={"dim": 3})
    >>> family(10).n_clients, family(10).dim
    (10, 3)
    """

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        choice("problem", self.name, tuple(NAMES))
        set_fields(self, seed=seed_number("seed", self.seed))
        settings: Any = self.settings
        if not isinstance(settings, Mapping) or not all(isinstance(name, str) for name in settings):
            raise InvalidInput(f"settings must be a dictionary such as {{'dim': 20}}, got {given(self.settings)}")
        known = inspect.signature(paper if self.name in PAPER else STREAMS[self.name]).parameters
        allowed = [name for name in known if name not in ("kind", "n_clients", "weights", "seed")]
        unknown = sorted(set(self.settings) - set(allowed))
        if unknown:
            raise InvalidInput(f"{self.name} has no setting {unknown[0]!r}; choose among {', '.join(allowed)}")
        try:
            arrays.plain(dict(self.settings))
        except TypeError as error:
            raise InvalidInput(f"settings of {self.name} must be numbers or lists of numbers: {error}") from None
        self(FEWEST)

    def __call__(self, n_clients: int) -> Any:
        """The problem with `n_clients` clients."""
        if self.name in PAPER:
            kind: Any = self.name
            return paper(kind, n_clients=n_clients, seed=self.seed, **self.settings)
        settings = {"dim": DIM, **self.settings}
        if isinstance(settings.get("spectrum"), Real):
            dim = whole_number("dim", settings["dim"], least=1, most=LARGEST_DIM)
            settings["spectrum"] = np.full(dim, positive("spectrum", settings["spectrum"]))
        return STREAMS[self.name](n_clients=n_clients, seed=self.seed, **settings)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One cell of the grid: a method with its settings on a number of clients, run once for each of `seeds` seeds.

    Attributes
    ----------
    n_clients, method, batch_size, rounds
        N, the method, B (None for full gradients) and T.
    seeds
        Number of independent runs.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> from fedscaffold.benchmarking import Cell
    >>> method = fs.Scaffold(step_size=0.02, local_steps=10)
    >>> Cell(n_clients=4, method=method, batch_size=1, rounds=5, seeds=2).steps()  # 4 · 10 · 5 · 2
    400.0
    """

    n_clients: int
    method: Method
    batch_size: int | None
    rounds: int
    seeds: int

    def settings(self) -> str:
        """The method with all its fields, as JSON."""
        return json.dumps(arrays.plain(provenance.describe(self.method)))

    def key(self) -> Key:
        """Number of clients, method, batch size, rounds and seeds, by which a table knows its cells."""
        return self.n_clients, self.settings(), self.batch_size, self.rounds, self.seeds

    def steps(self) -> float:
        """Expected number of local steps of all clients, rounds and runs."""
        each = float(self.method.local_step_counts(self.n_clients, np.full(1, 0.5)).mean())
        return self.method.participants(self.n_clients) * each * self.rounds * self.seeds


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Sweep:
    """A grid of runs: every method on every number of clients with every batch size.

    Parameters
    ----------
    family
        The problem for each number of clients.
    clients
        Numbers of clients.
    methods
        Each with its own step size and local steps, such as
        [Scaffold(step_size=g, local_steps=H) for g in (0.01, 0.05) for H in (10, 100)].
    rounds
        T, of each run.
    batch_sizes
        Records in each stochastic gradient; None for full gradients.
    seeds
        Independent runs of each cell, side by side: `repetitions` of `fedscaffold.run`.
    seed
        Seed of the runs; chooses the records that are drawn.
    start
        First model of the runs: "zero", or "optimum" for a short way to the plateau. Control variates start at
        zero.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> from fedscaffold.benchmarking import Family, Sweep
    >>> methods = [fs.Scaffold(step_size=g, local_steps=10) for g in (0.02, 0.05)]
    >>> Sweep(family=Family(name="ridge-stream"), clients=(10, 100), methods=methods, rounds=100, seeds=5)
    Sweep(ridge-stream, N = 10, 100: 4 cells of 100 rounds and 5 seeds)
    """

    family: Family
    clients: Sequence[int]
    methods: Sequence[Method]
    rounds: int
    batch_sizes: Sequence[int | None] = (10,)
    seeds: int = 1
    seed: int = 0
    start: Start = "zero"

    def __post_init__(self) -> None:
        if not isinstance(self.family, Family):
            raise InvalidInput(
                f"family must be a Family such as Family(name='ridge-stream'), got {given(self.family)}"
            )
        set_fields(
            self,
            rounds=whole_number("rounds", self.rounds, least=1),
            seeds=whole_number("seeds", self.seeds, least=1),
            seed=seed_number("seed", self.seed),
            clients=tuple(whole_number("clients", n, least=1) for n in _several("clients", self.clients)),
            methods=_several("methods", self.methods),
            batch_sizes=tuple(Batches(size).size for size in _several("batch_sizes", self.batch_sizes)),
        )
        choice("start", self.start, get_args(Start))
        for method in self.methods:
            check_method(method)
        _different("clients", self.clients)
        _different("methods", [arrays.plain(provenance.describe(method)) for method in self.methods])
        _different("batch_sizes", self.batch_sizes)
        for n_clients in self.clients:
            if self.family.name in PAPER and n_clients % 2:
                raise InvalidInput(f"each number of clients must be even, got {n_clients}")
            for method in self.methods:
                method.participants(n_clients)
                method.local_step_counts(n_clients, np.full(1, 0.5))

    def __repr__(self) -> str:
        clients = ", ".join(f"{n:,}" for n in self.clients)
        cells = f"{len(self.cells())} cells of {self.rounds:,} rounds and {self.seeds:,} seeds"
        return f"Sweep({self.family.name}, N = {clients}: {cells})"

    def check(self, engine: Engine) -> None:
        """Refuse settings that this engine does not support, by opening it for two clients."""
        small = self.family(FEWEST)
        for size in self.batch_sizes:
            for method in self.methods:
                theta = np.zeros((1, small.dim))
                setup = RunSetup(problem=small, method=method, engine=engine, theta=theta, batches=Batches(size))
                with open_shard(shard_of(setup, 0, FEWEST)):
                    pass

    def cells(self) -> list[Cell]:
        """All cells, from few clients to many."""
        return [
            Cell(n_clients=n, method=method, batch_size=size, rounds=self.rounds, seeds=self.seeds)
            for n in sorted(self.clients)
            for method in self.methods
            for size in self.batch_sizes
        ]

    def identity(self, engine: Engine) -> dict[str, Any]:
        """Problem, seeds, start, engine and version, which all cells of one table share."""
        return arrays.plain(
            {
                "problem": self.family.name,
                "settings": dict(self.family.settings),
                "data seed": self.family.seed,
                "seed": self.seed,
                "start": self.start,
                "engine": engine.name,
                "version": provenance.versions()["fedscaffold"],
            }
        )


def _several(name: str, values: Any) -> tuple[Any, ...]:
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise InvalidInput(f"{name} must be a list, got {given(values)}")
    try:
        return tuple(values)
    except TypeError:  # an array without axes
        raise InvalidInput(f"{name} must be a list, got {given(values)}") from None


def _different(name: str, values: Iterable[Any]) -> None:
    listed = list(values)
    if not listed or any(value in listed[:k] for k, value in enumerate(listed)):
        raise InvalidInput(f"{name} must be some, all different, got {listed}")
