"""A run's state on disk, bound to the run that it belongs to."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedscaffold.core import npz
from fedscaffold.core.checks import shown
from fedscaffold.core.errors import CheckpointMismatch
from fedscaffold.core.files import Fields, check_writable, path_of, remove_abandoned
from fedscaffold.core.protocols import Method
from fedscaffold.core.types import Array
from fedscaffold.simulation.rounds import State

WHAT = "fedscaffold checkpoint"


@dataclass(frozen=True)
class Saved:
    """The state to go on from, what was recorded so far, and what else the kind of run needs."""

    state: State
    metrics: Fields
    extra: Fields


@dataclass(frozen=True)
class CheckpointFile:
    """A checkpoint's path, rounds between two saves, and the identity of the run that may continue from it."""

    path: str | os.PathLike[str]
    every: int
    identity: Mapping[str, Any]

    def __post_init__(self) -> None:
        check_writable(self.path)
        remove_abandoned(self.path)

    def save(self, state: State, metrics: Mapping[str, Array], extra: Mapping[str, Array]) -> None:
        """Replace the file in one step, with a state whose client state is named arrays."""
        groups = {
            "server": state.server._asdict(),
            "client": state.client_state._asdict(),
            "metric": metrics,
            "extra": extra,
        }
        arrays = {f"{group}/{name}": values for group, found in groups.items() for name, values in found.items()}
        npz.write(self.path, arrays, {"what": WHAT, "round": state.round, "identity": dict(self.identity)})

    def load(self, method: Method, theta: Array, rounds: int, *, n_clients: int) -> Saved | None:
        """Return the saved run, or None without a file.

        Every array of the state is compared with this run's; recorded metrics and extra arrays are for the caller
        to read, with the shapes that it knows.

        Raises
        ------
        CheckpointMismatch
            If the file is not a checkpoint, belongs to another run, is damaged, or is past `rounds`.
        """
        if not path_of(self.path).exists():
            return None
        name = os.fspath(self.path)
        try:
            arrays, found = npz.read(self.path)
        except (OSError, ValueError) as error:
            raise CheckpointMismatch(f"{name} is not a checkpoint: {error}") from None
        description = Fields(found, name, error=CheckpointMismatch)
        if "what" not in description or description.value("what") != WHAT:
            raise CheckpointMismatch(f"{name} is not a checkpoint")
        self._check_identity(name, description.fields("identity"))
        round = description.integer("round", least=0)
        if round > rounds:
            raise CheckpointMismatch(f"{name} is at round {round}, past the {rounds} asked for")

        def group(prefix: str) -> Fields:
            some = {key.removeprefix(prefix): values for key, values in arrays.items() if key.startswith(prefix)}
            return Fields(some, name, error=CheckpointMismatch)

        server = method.init_server(theta)
        nobody = method.init_clients(len(theta), theta[0, :0], theta.shape[1], None)
        everybody = {
            key: (values.shape[0], n_clients, *values.shape[2:]) for key, values in nobody._asdict().items()
        }
        state = State(
            round,
            _read(group("server/"), server, {key: values.shape for key, values in server._asdict().items()}),
            _read(group("client/"), nobody, everybody),
        )
        return Saved(state, group("metric/"), group("extra/"))

    def _check_identity(self, name: str, theirs: Fields) -> None:
        ours = npz.plain(dict(self.identity))
        there = theirs.as_dict()
        missing = object()
        differing = [key for key in {**ours, **there} if there.get(key, missing) != ours.get(key, missing)]
        if differing:
            key = differing[0]
            its, own = (shown(found[key]) if key in found else "missing" for found in (there, ours))
            raise CheckpointMismatch(
                f"{name} belongs to another run: {', '.join(differing)} differ "
                f"({key}: {its} there, {own} here); choose another path or delete it"
            )


def _read(found: Fields, like: Any, shapes: Mapping[str, tuple[int, ...]]) -> Any:
    """Return a named tuple like `like`, whose arrays have its types, these shapes and finite numbers."""
    found.only(*shapes)
    return type(like)(
        **{key: found.array(key, shapes[key], dtype=values.dtype) for key, values in like._asdict().items()}
    )
