"""A client's state on its own disk, together with its last update, which the server may have counted or not."""

import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedscaffold.core.errors import CheckpointMismatch
from fedscaffold.core.storage import npz
from fedscaffold.core.types import Array
from fedscaffold.federation.messages import NEVER, TrainRequest
from fedscaffold.federation.run_config import RunConfig

WHAT = "fedscaffold client state 2"


class PendingUpdate(NamedTuple):
    """An update that was computed, of which the client does not know yet whether the server counted it."""

    round: int
    sent: Array  # (1, 1, dim)
    server: Any  # the server state from which the local steps started


class StoredClientState(NamedTuple):
    """What a client keeps between two requests."""

    resets: int  # how often all client states of the run were reset before this one
    last_counted: int  # the last round that `client_state` includes, or NEVER
    client_state: Any  # the method's, a named tuple of arrays (1, 1, dim)
    pending: PendingUpdate | None


def initial_stored_state(config: RunConfig, resets: int) -> StoredClientState:
    """What a client keeps before its first round, or after a reset of all client states."""
    return StoredClientState(resets, NEVER, config.initial_client_state, None)


def reconcile(stored: StoredClientState | None, request: TrainRequest) -> StoredClientState | None:
    """The stored state, brought to the round that the server counted last; None if the state is lost.

    If the server counted the pending update, the method's rule enters it into the client state. If the server did
    not, the update stays pending, and is sent again only when the same round is requested again.
    """
    if request.client_state is not None:
        return StoredClientState(request.resets, request.last_counted, request.client_state, None)
    if request.last_counted == NEVER:
        initial = initial_stored_state(request.config, request.resets)
        if stored is None or (stored.resets, stored.last_counted) != (request.resets, NEVER):
            return initial
        return initial._replace(pending=stored.pending)
    if stored is None or stored.resets != request.resets:
        return None
    if stored.last_counted == request.last_counted:
        return stored
    pending = stored.pending
    if pending is None or pending.round != request.last_counted:
        return None
    after = request.server if request.server_after is None else request.server_after
    updated = request.config.method.update_clients(stored.client_state, pending.sent, pending.server, after)
    return StoredClientState(request.resets, request.last_counted, updated, None)


class ClientStateFiles:
    """One client's files of one run, such as state_dir/run/client-00000.npz; those of another run are refused.

    Parameters
    ----------
    state_dir
        The node's folder, on a disk that outlives the node. Several runs and clients may share it.
    config
        The run's configuration.
    client
        Index of the client.
    """

    def __init__(self, state_dir: str | os.PathLike[str], config: RunConfig, client: int) -> None:
        self.folder = Path(state_dir).expanduser() / config.name
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)  # client states are derived from records
        self.config, self.client = config, client

    def load(self) -> StoredClientState | None:
        """What `save` stored last; None if there is no file."""
        found = self._read(self._state_file)
        if found is None:
            return None
        held, description = found
        server = type(self.config.method.init_server(np.zeros((1, self.config.dim))))
        state = type(self.config.initial_client_state)
        pending = None
        if description["pending"] is not None:
            before = server(*(held[f"server/{name}"] for name in server._fields))
            pending = PendingUpdate(description["pending"], held["sent"], before)
        client_state = state(*(held[f"state/{name}"] for name in state._fields))
        return StoredClientState(description["resets"], description["last_counted"], client_state, pending)

    def save(self, stored: StoredClientState) -> None:
        """Replace what is stored, in one step that a crash cannot leave half done."""
        held = {f"state/{name}": values for name, values in stored.client_state._asdict().items()}
        if stored.pending is not None:
            held |= {f"server/{name}": values for name, values in stored.pending.server._asdict().items()}
            held["sent"] = stored.pending.sent
        pending = None if stored.pending is None else stored.pending.round
        about = {"resets": stored.resets, "last_counted": stored.last_counted, "pending": pending}
        npz.write(self._state_file, held, {**self._owner(), **about})

    def load_gradient(self, request: TrainRequest) -> Array | None:
        """The gradient that the client sent in the request's round, (1, 1, dim); None if it is not stored."""
        found = self._read(self._gradient_file)
        if found is None or (found[1]["round"], found[1]["resets"]) != (request.round, request.resets):
            return None
        return found[0]["gradient"]

    def save_gradient(self, request: TrainRequest, gradient: Array) -> None:
        """Store the gradient that is sent in the request's round."""
        about = {"round": request.round, "resets": request.resets}
        npz.write(self._gradient_file, {"gradient": gradient}, {**self._owner(), **about})

    @property
    def _state_file(self) -> Path:
        return self.folder / f"client-{self.client:05d}.npz"

    @property
    def _gradient_file(self) -> Path:
        return self.folder / f"client-{self.client:05d}-gradient.npz"

    def _owner(self) -> dict[str, Any]:
        return {"what": WHAT, "run": self.config.digest, "client": self.client}

    def _read(self, path: Path) -> tuple[dict[str, Any], dict[str, Any]] | None:
        if not path.exists():
            return None
        try:
            held, description = npz.read(path)
        except (OSError, ValueError) as error:
            raise CheckpointMismatch(
                f"{path} cannot be read: {error}; delete it, and the client asks the server for its state"
            ) from None
        for name, value in self._owner().items():
            if description.get(name) != value:
                raise CheckpointMismatch(
                    f"{path} belongs to another {name} ({description.get(name)} there, {value} here); give a run "
                    "with other settings another name, or delete the file"
                )
        return held, description
