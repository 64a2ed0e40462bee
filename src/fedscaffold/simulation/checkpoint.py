"""A run's state on disk, bound to the run that it belongs to."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedscaffold.core.errors import CheckpointMismatch
from fedscaffold.core.protocols import Method
from fedscaffold.core.storage import npz
from fedscaffold.core.storage.files import check_writable
from fedscaffold.core.types import Array
from fedscaffold.simulation.rounds import State

WHAT = "fedscaffold checkpoint"


@dataclass(frozen=True)
class Saved:
    """The state to go on from, what was recorded so far, and what else the kind of run needs."""

    state: State
    metrics: Mapping[str, Array]
    extra: Mapping[str, Array] = field(default_factory=dict)


@dataclass(frozen=True)
class CheckpointFile:
    """A checkpoint's path, rounds between two saves, and the identity of the run that may continue from it.

    With path None nothing is saved.
    """

    path: str | os.PathLike[str] | None
    every: int
    identity: Mapping[str, Any]

    def __post_init__(self) -> None:
        if self.path is not None:
            check_writable(self.path)

    def save(self, state: State, metrics: Mapping[str, Array], extra: Mapping[str, Array]) -> None:
        """Replace the file in one step, with a state whose client state is named arrays."""
        if self.path is None:
            return
        groups = {
            "server": state.server._asdict(),
            "client": state.client_state._asdict(),
            "metric": metrics,
            "extra": extra,
        }
        arrays = {f"{group}/{name}": values for group, found in groups.items() for name, values in found.items()}
        npz.write(self.path, arrays, {"what": WHAT, "round": state.round, "identity": dict(self.identity)})

    def load(self, method: Method, theta: Array, rounds: int) -> Saved | None:
        """The saved run; None if there is no file; refused if it is another run's or past `rounds`."""
        if self.path is None or not Path(self.path).exists():
            return None
        name = os.fspath(self.path)
        try:
            arrays, description = npz.read(self.path)
        except (OSError, ValueError) as error:
            raise CheckpointMismatch(f"{name} is not a checkpoint: {error}") from None
        if description.get("what") != WHAT:
            raise CheckpointMismatch(f"{name} is not a checkpoint")
        self._check_identity(name, description.get("identity", {}))
        if description["round"] > rounds:
            raise CheckpointMismatch(f"{name} is at round {description['round']}, past the {rounds} asked for")

        def group(prefix: str) -> dict[str, Array]:
            return {key.removeprefix(prefix): values for key, values in arrays.items() if key.startswith(prefix)}

        server = type(method.init_server(theta))(**group("server/"))
        nobody = method.init_clients(len(theta), theta[0, :0], theta.shape[1], None)
        state = State(description["round"], server, type(nobody)(**group("client/")))
        return Saved(state, group("metric/"), group("extra/"))

    def _check_identity(self, name: str, theirs: Mapping[str, Any]) -> None:
        ours = npz.plain(dict(self.identity))
        differing = [key for key in ours if theirs.get(key) != ours[key]]
        if differing:
            key = differing[0]
            raise CheckpointMismatch(
                f"{name} belongs to another run: {', '.join(differing)} differ "
                f"({key}: {theirs.get(key)} there, {ours[key]} here); choose another path or delete it"
            )
