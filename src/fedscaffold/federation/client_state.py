"""A client's memory on its disk: what it remembers, and what it sent and may have been counted or not."""

import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedscaffold.core import npz as arrays
from fedscaffold.core.errors import CheckpointMismatch
from fedscaffold.core.types import Array
from fedscaffold.federation.messages import NEVER, TrainRequest
from fedscaffold.federation.run_config import RunConfig

WHAT = "fedscaffold client 1"


class Pending(NamedTuple):
    """A contribution whose fate is not known."""

    round: int
    sent: Array  # (1, 1, dim)
    before: Any  # the server's state that it started from


class Memory(NamedTuple):
    """What a client knows between rounds."""

    epoch: int
    settled: int  # the last round that memory includes, or NEVER
    memory: Any  # the method's
    pending: Pending | None


def first(terms: RunConfig, epoch: int) -> Memory:
    """Before the client's first round of an epoch."""
    return Memory(epoch, NEVER, terms.first_memory(), None)


def settled(known: Memory | None, order: TrainRequest) -> Memory | None:
    """Memory in agreement with what the server counted; None if it is lost.

    A pending contribution that was counted is entered with the method's rule. One that was not counted stays
    pending only if the same round is asked for again; else it is dropped by what comes next.
    """
    terms = order.terms
    if order.memory is not None:
        return Memory(order.epoch, order.counted, order.memory, None)
    if order.counted == NEVER:
        begun = first(terms, order.epoch)
        same = known is not None and known.epoch == order.epoch and known.settled == NEVER
        return begun._replace(pending=known.pending) if known is not None and same else begun
    if known is None or known.epoch != order.epoch:
        return None
    if known.settled == order.counted:
        return known
    pending = known.pending
    if pending is None or pending.round != order.counted:
        return None
    after = order.server if order.after is None else order.after
    updated = terms.method.update_clients(known.memory, pending.sent, pending.before, after)
    return Memory(order.epoch, order.counted, updated, None)


class Store:
    """One client's files of one run: folder/run/client-00000.npz, bound to both and refused elsewhere.

    Parameters
    ----------
    folder
        The node's folder, on a disk that outlives the node. Memories of many runs and clients may share it.
    terms
        Of the run.
    client
        Whose.
    """

    def __init__(self, folder: str | os.PathLike[str], terms: RunConfig, client: int) -> None:
        self.folder = Path(folder).expanduser() / terms.name
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)  # for nobody else's eyes
        self.terms, self.client = terms, client

    def load(self) -> Memory | None:
        """What was kept; None if there is nothing."""
        found = self._read(self._memory)
        if found is None:
            return None
        held, description = found
        server = type(self.terms.method.init_server(np.zeros((1, self.terms.dim))))
        own = type(self.terms.first_memory())
        pending = None
        if description["pending"] is not None:
            before = server(*(held[f"before/{name}"] for name in server._fields))
            pending = Pending(description["pending"], held["sent"], before)
        memory = own(*(held[f"memory/{name}"] for name in own._fields))
        return Memory(description["epoch"], description["settled"], memory, pending)

    def save(self, memory: Memory) -> None:
        """Replace what was kept, in one go."""
        held = {f"memory/{name}": values for name, values in memory.memory._asdict().items()}
        if memory.pending is not None:
            held |= {f"before/{name}": values for name, values in memory.pending.before._asdict().items()}
            held["sent"] = memory.pending.sent
        pending = None if memory.pending is None else memory.pending.round
        about = {"epoch": memory.epoch, "settled": memory.settled, "pending": pending}
        arrays.write(self._memory, held, {**self._owner(), **about})

    def load_gradient(self, order: TrainRequest) -> Array | None:
        """The gradient that the client sent in the order's round, (1, 1, dim); None if it is not there."""
        found = self._read(self._gradient)
        if found is None or (found[1]["round"], found[1]["epoch"]) != (order.round, order.epoch):
            return None
        return found[0]["gradient"]

    def save_gradient(self, order: TrainRequest, gradient: Array) -> None:
        """Keep the gradient that is sent in the order's round."""
        about = {"round": order.round, "epoch": order.epoch}
        arrays.write(self._gradient, {"gradient": gradient}, {**self._owner(), **about})

    @property
    def _memory(self) -> Path:
        return self.folder / f"client-{self.client:05d}.npz"

    @property
    def _gradient(self) -> Path:
        return self.folder / f"client-{self.client:05d}-gradient.npz"

    def _owner(self) -> dict[str, Any]:
        return {"what": WHAT, "run": self.terms.digest, "client": self.client}

    def _read(self, path: Path) -> tuple[dict[str, Any], dict[str, Any]] | None:
        if not path.exists():
            return None
        try:
            held, description = arrays.read(path)
        except (OSError, ValueError) as error:
            raise CheckpointMismatch(
                f"{path} cannot be read: {error}; delete it, and the server will help"
            ) from None
        for name, value in self._owner().items():
            if description.get(name) != value:
                raise CheckpointMismatch(
                    f"{path} belongs to another {name} ({description.get(name)} there, {value} here); give a run "
                    "with other settings another name, or delete the file"
                )
        return held, description
