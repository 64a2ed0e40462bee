"""The server's backup of each client's state, for clients that lose theirs."""

import os
from pathlib import Path
from typing import Any

from fedscaffold.core.errors import CheckpointMismatch
from fedscaffold.core.storage import npz
from fedscaffold.core.types import Array
from fedscaffold.federation.ledger import Ledger
from fedscaffold.federation.messages import NEVER
from fedscaffold.federation.run_config import RunConfig

WHAT = "fedscaffold backup of a client state 2"


class StateBackup:
    """Client states as the server computes them itself: with the method's rule, from what the clients sent.

    A backup costs no traffic, and gives the server no new information: whoever knows what a client sent and what
    was made of it can compute its state. It costs one file of about d numbers for each client, written when the
    client's update is counted. Where N·d numbers are too many for the server's disk, keep no backup; a client that
    loses its state then makes the server reset all client states.

    A file belongs to one round. The file of the round before is removed by `remove_old` once the ledger is safely
    on disk, so that a server that was killed in between finds the file that its ledger refers to.

    Parameters
    ----------
    folder
        Folder of the files, which is created; None for no backup.

    Examples
    --------
    >>> from fedscaffold.federation import StateBackup
    >>> StateBackup(None).folder is None
    True
    """

    def __init__(self, folder: str | os.PathLike[str] | None) -> None:
        self.folder = None if folder is None else Path(folder)
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)

    def load(self, config: RunConfig, client: int, *, last_counted: int, resets: int) -> Any:
        """The client's state after round `last_counted`, arrays (1, 1, dim); None if there is no backup of it."""
        if last_counted == NEVER or not config.has_client_state:
            return config.initial_client_state
        path = self._path(client, last_counted, resets)
        if path is None or not path.exists():
            return None
        try:
            found, description = npz.read(path)
        except (OSError, ValueError) as error:
            raise CheckpointMismatch(f"{path} cannot be read: {error}; delete it") from None
        if description != _description(config, client, last_counted, resets):
            raise CheckpointMismatch(f"{path} belongs to another run or client; delete it")
        return type(config.initial_client_state)(**found)

    def save_update(self, config: RunConfig, client: int, sent: Array, before: Ledger, after: Ledger) -> None:
        """Compute and store the client's state after a round in which its update was counted."""
        path = self._path(client, before.round, before.resets)
        if path is None or not config.has_client_state:
            return
        state = self.load(config, client, last_counted=int(before.last_counted[client]), resets=before.resets)
        if state is None:
            return
        state = config.method.update_clients(state, sent[None, None, :], before.server, after.server)
        npz.write(path, state._asdict(), _description(config, client, before.round, before.resets))

    def remove_old(self, ledger: Ledger) -> None:
        """Remove the files that this ledger, which must be on disk, no longer refers to."""
        if self.folder is None:
            return
        needed = {self._path(c, round, ledger.resets) for c, round in enumerate(ledger.last_counted.tolist())}
        for path in self.folder.glob("client-*.npz"):
            if path not in needed:
                path.unlink(missing_ok=True)

    def _path(self, client: int, round: int, resets: int) -> Path | None:
        return None if self.folder is None else self.folder / f"client-{client:05d}-{resets}-{round:06d}.npz"


def _description(config: RunConfig, client: int, round: int, resets: int) -> dict[str, Any]:
    return {"what": WHAT, "run": config.digest, "client": client, "resets": resets, "round": round}
