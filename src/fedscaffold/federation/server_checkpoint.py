"""The server's ledger on disk, bound to its run."""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedscaffold.core import npz as arrays
from fedscaffold.core.errors import CheckpointMismatch
from fedscaffold.core.types import Array
from fedscaffold.federation.ledger import Ledger
from fedscaffold.federation.run_config import RunConfig

WHAT = "fedscaffold federation 1"


class Stored(NamedTuple):
    """The ledger, and what clients told about themselves: weights, and keys that their nodes showed."""

    ledger: Ledger
    weights: Array
    keys: Mapping[int, str]


def save(path: str | os.PathLike[str], terms: RunConfig, theta0: Array, stored: Stored) -> None:
    """Replace the file, in one go."""
    ledger = stored.ledger
    held = {f"server/{name}": values for name, values in ledger.server._asdict().items()}
    for round, state in ledger.states.items():
        held |= {f"after/{round}/{name}": values for name, values in state._asdict().items()}
    held |= {"counted": ledger.counted, "weights": stored.weights}
    description = {
        "what": WHAT,
        "terms": terms.to_json(),
        "start": _digest(theta0),
        "round": ledger.round,
        "epoch": ledger.epoch,
        "reach": ledger.reach,
        "states": sorted(ledger.states),
        "keys": {str(client): key for client, key in stored.keys.items()},
    }
    arrays.write(path, held, description)


def load(path: str | os.PathLike[str], terms: RunConfig, theta0: Array) -> Stored | None:
    """What to go on from; None if there is no file; refused if it is another run's."""
    if not Path(path).exists():
        return None
    try:
        held, description = arrays.read(path)
    except (OSError, ValueError) as error:
        raise CheckpointMismatch(f"{os.fspath(path)} is not a server's file: {error}") from None
    if description.get("what") != WHAT:
        raise CheckpointMismatch(f"{os.fspath(path)} is not a server's file of this version")
    here = {"terms": terms.to_json(), "start": _digest(theta0)}
    for name, value in here.items():
        if description[name] != value:
            raise CheckpointMismatch(
                f"{os.fspath(path)} belongs to another run: {name} differ ({description[name]} there, {value} "
                "here); choose another name and folder"
            )
    server = type(terms.method.init_server(theta0[None, :]))

    def state(prefix: str) -> Any:
        return server(*(held[f"{prefix}/{name}"] for name in server._fields))

    ledger = Ledger(
        round=description["round"],
        epoch=description["epoch"],
        server=state("server"),
        counted=held["counted"],
        states={round: state(f"after/{round}") for round in description["states"]},
        reach=description["reach"],
    )
    return Stored(ledger, held["weights"], {int(c): key for c, key in description["keys"].items()})


def _digest(theta0: Array) -> str:
    return hashlib.sha256(np.ascontiguousarray(theta0).tobytes()).hexdigest()
