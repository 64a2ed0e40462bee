"""A run's state on disk, bound to the run that it belongs to."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedscaffold.core import npz as arrays
from fedscaffold.core.errors import CheckpointMismatch
from fedscaffold.core.types import Array


@dataclass(frozen=True)
class Stored:
    """Everything that the next round depends on, and what was recorded so far."""

    round: int
    server: Mapping[str, Array]
    memory: Mapping[str, Array]
    records: Mapping[str, Array]


def save(path: str | os.PathLike[str], state: Stored, identity: dict[str, Any]) -> None:
    """Replace the checkpoint, in one go."""
    server = {f"server/{name}": values for name, values in state.server.items()}
    memory = {f"memory/{name}": values for name, values in state.memory.items()}
    records = {f"record/{name}": values for name, values in state.records.items()}
    description = {"what": "fedscaffold checkpoint", "round": state.round, "identity": identity}
    arrays.write(path, {**server, **memory, **records}, description)


def load(path: str | os.PathLike[str], identity: dict[str, Any]) -> Stored | None:
    """The state to go on from; None if there is no file; refused if it is another run's."""
    identity = arrays.plain(identity)
    if not Path(path).exists():
        return None
    try:
        stored, description = arrays.read(path)
    except (OSError, ValueError) as error:
        raise CheckpointMismatch(f"{os.fspath(path)} is not a checkpoint: {error}") from None
    if description.get("what") != "fedscaffold checkpoint":
        raise CheckpointMismatch(f"{os.fspath(path)} is not a checkpoint")
    theirs = description.get("identity", {})
    differing = [name for name in identity if theirs.get(name) != identity[name]]
    if differing:
        name = differing[0]
        raise CheckpointMismatch(
            f"{os.fspath(path)} belongs to another run: {', '.join(differing)} differ "
            f"({name}: {theirs.get(name)} there, {identity[name]} here); choose another path or delete it"
        )

    def group(prefix: str) -> dict[str, Array]:
        return {name.removeprefix(prefix): values for name, values in stored.items() if name.startswith(prefix)}

    return Stored(description["round"], group("server/"), group("memory/"), group("record/"))
