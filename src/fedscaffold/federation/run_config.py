"""The configuration of a federated run, equal on server and clients, and the methods that it may name.

A configuration carries a method's class name and plain settings. A node never imports a module because a server
names it; it knows the library's methods, methods that installed distributions advertise under the entry point
group "fedscaffold.methods", and methods that its app passes.
"""

import dataclasses
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from importlib.metadata import entry_points
from typing import Any

import numpy as np

from fedscaffold import methods as library
from fedscaffold.core.checks import given, seed_number, shown, whole_number
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.npz import plain_number
from fedscaffold.core.privacy import ClientLevel, Privacy, RecordLevel
from fedscaffold.core.protocols import Method
from fedscaffold.core.random.stream import Batches, round_uniforms
from fedscaffold.core.types import Array, IntArray, RoundInfo
from fedscaffold.simulation.block import message_length
from fedscaffold.simulation.rounds import round_info

GROUP = "fedscaffold.methods"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
MOST_DIM = 2**40
INVALID = (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, MemoryError, RecursionError)
MOST_CLIENTS = 10**7  # arrays with a number per client are made before anything else is known of a run


class UnknownMethod(InvalidInput):
    """A method whose class is not known at this node."""


def find_method(name: str, passed: Sequence[type[Method]] = ()) -> type[Method]:
    """Return the class of that name: the library's, a passed one, or an installed distribution's."""
    own = {method.__name__: method for method in passed}
    builtin = getattr(library, name, None) if name in library.__all__ else None
    if builtin is not None:
        if own.get(name, builtin) is not builtin:
            raise InvalidInput(f"fedscaffold has a method called {name}; give your class another name")
        return builtin
    if name in own:
        return own[name]
    for found in entry_points(group=GROUP, name=name):
        try:
            return found.load()
        except (ImportError, AttributeError) as error:
            raise UnknownMethod(f"the method {name} is advertised as {found.value!r}, but: {error}") from error
    raise UnknownMethod(
        f"the method {name} is not known here: install the package that advertises it under the entry point group "
        f"{GROUP!r}, or pass its class to the client's app, client_app(..., methods=[{name}])"
    )


def check_method(method: Method) -> None:
    """Raise if clients could not build the method from its class name and its settings."""
    if not dataclasses.is_dataclass(method) or isinstance(method, type) or not hasattr(method, "update_clients"):
        raise InvalidInput(
            "method must be a dataclass with the interface of fedscaffold.core.protocols.Method, such as "
            f"Scaffold(step_size=0.05, local_steps=100); got {method!r}"
        )
    kind, description = type(method), describe_method(method)
    if message_length(method, 1) != 1:
        raise InvalidInput(
            f"{kind.__name__} cannot run on a federation, since its messages are longer than a model; use "
            "Scaffold, Scallion or ProxSkip"
        )
    find_method(kind.__name__, [kind])
    try:
        text = json.dumps(description, allow_nan=False, default=plain_number)
        rebuilt = build_method(json.loads(text), [kind])
        same = all(getattr(rebuilt, name) == value for name, value in description["settings"].items())
    except (TypeError, ValueError, AttributeError):
        same = False
    if not same:
        raise InvalidInput(
            f"{kind.__name__} cannot run on a federation, since clients cannot build it from JSON: its fields "
            "must be numbers, text, or sequences of them that it accepts as lists"
        )


def describe_method(method: Any) -> dict[str, Any]:
    """Return class name and settings of a method, from which `build_method` makes an equal one."""
    settings = {field.name: getattr(method, field.name) for field in dataclasses.fields(method) if field.init}
    return {"name": type(method).__name__, "settings": settings}


def build_method(description: dict[str, Any], passed: Sequence[type[Method]] = ()) -> Method:
    """Return the method that `describe_method` described; raise if its class is not known."""
    return find_method(description["name"], passed)(**description["settings"])


@lru_cache(maxsize=64)
def _round_uniform(seed: int, round: int) -> Array:
    """Return the uniform number of a round, shape (1,), which each of its requests needs several times."""
    found = round_uniforms(seed, 1, range(round, round + 1))[:, 0]
    found.setflags(write=False)
    return found


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """A federated run's name, and everything that its numbers depend on apart from the data and the initial model.

    The server sends it along with every request, so that clients need no settings. A server that is started again
    after a stop continues the run with an equal configuration.

    Parameters
    ----------
    name
        1 to 64 letters, digits and . _ -, beginning with a letter or digit; the clients' folders have this name.
    method
        A method of `fedscaffold.methods`, or any other that is a dataclass of plain settings. Clients build it
        from its class name and its settings, so they must know a class of that name; see `from_json`.
    n_clients
        N; clients are 0, ..., N − 1.
    dim
        d, the number of entries of θ.
    seed
        Determines the cohorts, and the records that local steps draw.
    batches
        How local steps draw records.
    privacy
        Clipping and noise of every local step, which protect records, or of messages, which protect clients; none
        by default.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> from fedscaffold.federation import RunConfig
    >>> method = fs.Scaffold(step_size=0.1, local_steps=5, cohort=2)
    >>> config = RunConfig(name="demo", method=method, n_clients=4, dim=3)
    >>> config.cohort(0).size
    2
    >>> RunConfig.from_json(config.to_json()) == config
    True
    """

    name: str
    method: Method
    n_clients: int
    dim: int
    seed: int = 0
    batches: Batches = field(default_factory=Batches)
    privacy: Privacy | None = None

    def __post_init__(self) -> None:
        name: Any = self.name
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise InvalidInput(
                "a run's name must be 1 to 64 letters, digits and . _ -, and begin with a letter or digit; "
                f"got {given(self.name)}"
            )
        check_method(self.method)
        if whole_number("n_clients", self.n_clients, least=1) > MOST_CLIENTS:
            raise InvalidInput(f"n_clients must be at most {MOST_CLIENTS}, got {shown(self.n_clients)}")
        if whole_number("dim", self.dim, least=1) > MOST_DIM:
            raise InvalidInput(f"dim must be at most {MOST_DIM}, got {shown(self.dim)}")
        seed_number("seed", self.seed)
        self.method.participants(self.n_clients)  # both raise for settings that do not fit n_clients
        self.method.local_step_counts(self.n_clients, np.full(1, 0.5))

    def round_info(self, round: int) -> RoundInfo:
        """Return the cohort and the uniform number of a round, the same as in `fedscaffold.run`.

        The clients' weights are known to the server alone, so the `share` in it counts all clients alike.
        """
        uniform = _round_uniform(self.seed, round)
        alike = np.full(self.n_clients, 1.0 / self.n_clients)
        return round_info(self.method, alike, seed=self.seed, round=round, round_uniform=uniform)

    def cohort(self, round: int) -> IntArray:
        """Return the clients of a round, in ascending order, the same as in `fedscaffold.run`."""
        cohort = self.round_info(round).cohort
        return np.arange(self.n_clients) if cohort is None else cohort[0]

    def local_steps_of(self, client: int, round: int) -> int:
        """Return H_c, the number of local steps of a client in a round."""
        counts = self.method.local_step_counts(self.n_clients, _round_uniform(self.seed, round))[0]
        return int(counts[client if counts.size > 1 else 0])

    @cached_property
    def initial_client_state(self) -> Any:
        """The state of one client before its first round, a named tuple of arrays (1, 1, dim)."""
        return self.method.init_clients(1, np.ones(1), self.dim, None)

    @cached_property
    def client_kind(self) -> Any:
        """The named tuple that a client's state is; found without arrays of `dim` numbers, which may be many."""
        return type(self.method.init_clients(1, np.ones(1), 1, None))

    @cached_property
    def server_kind(self) -> Any:
        """The named tuple that the server state is."""
        return type(self.method.init_server(np.zeros((1, 1))))

    @property
    def has_client_state(self) -> bool:
        """Whether the method's clients keep anything between rounds."""
        return len(self.client_kind._fields) > 0

    @cached_property
    def digest(self) -> str:
        """SHA-256 digest of all fields, the name included."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def to_json(self) -> str:
        """Return JSON text from which `from_json` makes an equal configuration."""
        return self._json

    @cached_property
    def _json(self) -> str:
        found = {
            "name": self.name,
            "method": describe_method(self.method),
            "n_clients": self.n_clients,
            "dim": self.dim,
            "seed": self.seed,
            "batches": dataclasses.asdict(self.batches),
        }
        if self.privacy is not None:
            level = {"level": "client"} if isinstance(self.privacy, ClientLevel) else {}
            found["privacy"] = {**level, **dataclasses.asdict(self.privacy)}
        return json.dumps(found, sort_keys=True, allow_nan=False, default=plain_number)

    @staticmethod
    def from_json(text: str, methods: Sequence[type[Method]] = ()) -> "RunConfig":
        """Return the configuration that `to_json` wrote.

        Parameters
        ----------
        text
            The text that `to_json` returned.
        methods
            Classes of methods that the text may name, in addition to the library's and to classes that installed
            distributions advertise under the entry point group "fedscaffold.methods". No other class is imported.
        """
        return _from_json(text, tuple(methods))


@lru_cache(maxsize=16)
def _from_json(text: str, methods: tuple[type[Method], ...]) -> RunConfig:
    """Return the configuration in a text; cached, since every request of a run has the same text."""
    try:
        found = json.loads(text)
        method = build_method(found.pop("method"), methods)
        privacy = found.pop("privacy", None)
        return RunConfig(
            method=method, batches=Batches(**found.pop("batches")),
            privacy=None if privacy is None else _privacy(privacy), **found,
        )  # fmt: skip
    except InvalidInput:
        raise
    except INVALID as error:
        raise InvalidInput(
            f"this is not the configuration of a run, or of another version: {shown(error)}; do server and "
            "clients have the same version of fedscaffold?"
        ) from None


def _privacy(values: dict[str, Any]) -> Privacy:
    level = values.pop("level", "record")
    return (ClientLevel if level == "client" else RecordLevel)(**values)
