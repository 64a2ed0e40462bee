"""The server's ledger in one file, bound to its run, from which a server that was stopped continues."""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedscaffold.core.errors import CheckpointMismatch
from fedscaffold.core.storage import npz
from fedscaffold.core.types import Array
from fedscaffold.federation.ledger import Ledger
from fedscaffold.federation.run_config import RunConfig

WHAT = "fedscaffold federation 2"


class ServerCheckpoint(NamedTuple):
    """The ledger, the clients' weights, and the public keys of their nodes, if the run pins them."""

    ledger: Ledger
    weights: Array  # (n_clients,), summing to one
    keys: Mapping[int, str]  # in hexadecimal, by client


def save_checkpoint(
    path: str | os.PathLike[str], config: RunConfig, theta0: Array, checkpoint: ServerCheckpoint
) -> None:
    """Write or replace the file, in one step that a crash cannot leave half done."""
    ledger = checkpoint.ledger
    held = {f"server/{name}": values for name, values in ledger.server._asdict().items()}
    for round, state in ledger.earlier_states.items():
        held |= {f"after/{round}/{name}": values for name, values in state._asdict().items()}
    held |= {"last_counted": ledger.last_counted, "weights": checkpoint.weights}
    description = {
        "what": WHAT,
        "config": config.to_json(),
        "start": _digest(theta0),
        "round": ledger.round,
        "resets": ledger.resets,
        "distance_scale": ledger.distance_scale,
        "earlier_states": sorted(ledger.earlier_states),
        "keys": {str(client): key for client, key in checkpoint.keys.items()},
    }
    npz.write(path, held, description)


def load_checkpoint(path: str | os.PathLike[str], config: RunConfig, theta0: Array) -> ServerCheckpoint | None:
    """What `save_checkpoint` wrote; None if there is no file. A file of another run is refused."""
    if not Path(path).exists():
        return None
    try:
        held, description = npz.read(path)
    except (OSError, ValueError) as error:
        raise CheckpointMismatch(f"{os.fspath(path)} is not a server's file: {error}") from None
    if description.get("what") != WHAT:
        raise CheckpointMismatch(f"{os.fspath(path)} is not a server's file of this version")
    here = {"config": config.to_json(), "start": _digest(theta0)}
    for name, value in here.items():
        if description[name] != value:
            raise CheckpointMismatch(
                f"{os.fspath(path)} belongs to another run: its {name} is {description[name]} there and {value} "
                "here; choose another name and folder"
            )
    server = type(config.method.init_server(theta0[None, :]))

    def state(prefix: str) -> Any:
        return server(*(held[f"{prefix}/{name}"] for name in server._fields))

    ledger = Ledger(
        round=description["round"],
        resets=description["resets"],
        server=state("server"),
        last_counted=held["last_counted"],
        earlier_states={round: state(f"after/{round}") for round in description["earlier_states"]},
        distance_scale=description["distance_scale"],
    )
    keys = {int(client): key for client, key in description["keys"].items()}
    return ServerCheckpoint(ledger, held["weights"], keys)


def _digest(theta0: Array) -> str:
    return hashlib.sha256(np.ascontiguousarray(theta0).tobytes()).hexdigest()
