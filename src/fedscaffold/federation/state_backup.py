"""The server's account of each client's memory, for clients that lose theirs."""

import os
from pathlib import Path
from typing import Any

from fedscaffold.core import npz as arrays
from fedscaffold.core.errors import CheckpointMismatch
from fedscaffold.core.types import Array
from fedscaffold.federation.ledger import Ledger
from fedscaffold.federation.messages import NEVER
from fedscaffold.federation.run_config import RunConfig

WHAT = "fedscaffold account of a client's memory"


class StateBackup:
    """ξ_c of every client as the server can work it out itself: with the method's rule, from what c sent.

    It costs no traffic, and it tells the server nothing new: whoever knows what was sent and what was made of it
    can compute ξ_c. It costs one file of d numbers for each client, written when its contribution is counted.
    Where N·d is too much, keep none (folder None); a client that loses its memory then makes all memories start
    anew.

    A file belongs to one round. The one before is removed by `tidy`, once the ledger is safely on disk, so that a
    server that was killed in between finds the one that its ledger speaks of.

    Parameters
    ----------
    folder
        Where the files are; it is made.
    """

    def __init__(self, folder: str | os.PathLike[str] | None) -> None:
        self.folder = None if folder is None else Path(folder)
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)

    def memory(self, terms: RunConfig, client: int, counted: int, epoch: int) -> Any:
        """The client's memory after a round of an epoch; None if there is no account of that."""
        if counted == NEVER or not terms.remembers:
            return terms.first_memory()
        path = self._path(client, counted, epoch)
        if path is None or not path.exists():
            return None
        try:
            found, description = arrays.read(path)
        except (OSError, ValueError) as error:
            raise CheckpointMismatch(f"{path} cannot be read: {error}; delete it") from None
        if description != {"what": WHAT, "run": terms.digest, "client": client, "epoch": epoch, "round": counted}:
            raise CheckpointMismatch(f"{path} belongs to another run or client; delete it")
        return type(terms.first_memory())(**found)

    def remember(self, terms: RunConfig, client: int, sent: Array, before: Ledger, after: Ledger) -> None:
        """Enter a contribution that was counted."""
        path = self._path(client, before.round, before.epoch)
        if path is None or not terms.remembers:
            return
        memory = self.memory(terms, client, int(before.counted[client]), before.epoch)
        if memory is None:
            return
        memory = terms.method.update_clients(memory, sent[None, None, :], before.server, after.server)
        description = {
            "what": WHAT, "run": terms.digest, "client": client, "epoch": before.epoch, "round": before.round,
        }  # fmt: skip
        arrays.write(path, memory._asdict(), description)

    def tidy(self, ledger: Ledger) -> None:
        """Remove what a ledger that is on disk makes superfluous: all but each client's last counted round."""
        if self.folder is None:
            return
        needed = {self._path(c, round, ledger.epoch) for c, round in enumerate(ledger.counted.tolist())}
        for path in self.folder.glob("client-*.npz"):
            if path not in needed:
                path.unlink(missing_ok=True)

    def _path(self, client: int, round: int, epoch: int) -> Path | None:
        return None if self.folder is None else self.folder / f"client-{client:05d}-{epoch}-{round:06d}.npz"
