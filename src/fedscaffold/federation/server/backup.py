"""The server's backup of client states, for clients that lose them."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedscaffold.core.files import Fields, folder_at
from fedscaffold.core.types import Array
from fedscaffold.federation.log import LOG
from fedscaffold.federation.messages import NEVER
from fedscaffold.federation.run_config import RunConfig
from fedscaffold.federation.server.checks import few_rows
from fedscaffold.federation.server.ledger import Ledger, stack_states
from fedscaffold.federation.vectors import VectorFile, open_vectors, write_vectors

WHAT = "fedscaffold backup of client states 3"


class StateBackup:
    """Client states as the server computes them itself: with the method's rule, from what the clients sent.

    A backup costs no traffic, and gives the server no new information: a client's state follows from its updates
    and the server's states. A round writes one file with the states of all clients whose updates it
    counted; a file stays until all of them were counted again. With cohorts of k clients that is about ln k times
    N·d numbers. If these are too many for the server's disk, keep no backup; a client that loses its state then
    makes the server reset all client states.

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
        self._open: dict[int, VectorFile | None] = {}  # headers of files, by round

    def load(self, config: RunConfig, ledger: Ledger, client: int) -> Any:
        """Return the client's state after its last counted round, arrays (1, 1, dim); None without a backup."""
        counted = int(ledger.last_counted[client])
        if counted == NEVER or not config.has_client_state:
            return config.initial_client_state
        file = self._file(config, ledger, counted)
        try:
            return None if file is None else _read(config, file, client)
        except (OSError, ValueError) as error:
            LOG.warning("the backup of client %d's state cannot be used: %s", client, error)
            return None

    def load_all(self, config: RunConfig, ledger: Ledger, clients: Iterable[int]) -> dict[int, Any]:
        """Return the states of the clients that the backup has."""
        if self.folder is None or not config.has_client_state:
            return {}
        found = ((client, self.load(config, ledger, client)) for client in sorted(clients))
        return {client: state for client, state in found if state is not None}

    def save_round(
        self,
        config: RunConfig,
        counted: Mapping[int, Array],
        states: Mapping[int, Any],
        before: Ledger,
        after: Ledger,
    ) -> list[int]:
        """Compute and store the states of the clients whose updates a round counted, from their states before it.

        Returns the clients whose state before the round is not known, so that their new one is not either.
        """
        if self.folder is None or not config.has_client_state:
            return []
        folder_at(self.folder)
        known = sorted(set(counted) & set(states))
        vectors: dict[str, Array] = {}
        for rows in few_rows(len(known), config.dim):
            some = known[rows]
            sent = np.stack([counted[client] for client in some])[None]
            block = stack_states([states[client] for client in some])
            updated = config.method.update_clients(block, sent, before.server, after.server)
            for name, values in updated._asdict().items():
                vectors |= {f"{client}/{name}": values[0, k] for k, client in enumerate(some)}
        write_vectors(self._path(before.round), vectors, _owner(config, after.run, after.history, before.resets))
        self._open.pop(before.round, None)
        return sorted(set(counted) - set(known))

    def missing(self, config: RunConfig, ledger: Ledger, clients: Iterable[int]) -> set[int]:
        """Return the clients whose state should be in the backup and is not."""
        if self.folder is None or not config.has_client_state:
            return set()
        found = set()
        for client in clients:
            counted = int(ledger.last_counted[client])
            if counted != NEVER:
                file = self._file(config, ledger, counted)
                fields = config.client_kind._fields
                if file is None or any(f"{client}/{name}" not in file.names for name in fields):
                    found.add(client)
        return found

    def remove_except(self, rounds: set[int]) -> None:
        """Remove the files of all rounds but these."""
        if self.folder is None or not self.folder.is_dir():
            return
        needed = {self._path(round) for round in rounds}
        for path in self.folder.glob("round-*.states"):
            if path not in needed:
                path.unlink(missing_ok=True)
        self._open = {round: file for round, file in self._open.items() if round in rounds}

    def _file(self, config: RunConfig, ledger: Ledger, round: int) -> VectorFile | None:
        """Return the file of a round if it belongs to this history of the run."""
        if self.folder is not None and round not in self._open:
            self._open[round] = self._checked(config, ledger, round)
        return self._open.get(round)

    def _checked(self, config: RunConfig, ledger: Ledger, round: int) -> VectorFile | None:
        path = self._path(round)
        try:
            file = open_vectors(path)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            LOG.warning("a backup of client states cannot be used: %s", error)
            return None
        owner = _owner(config, ledger.run, ledger.histories[round], ledger.resets)
        if file.description != owner or file.dim != (config.dim if file.names else file.dim):
            LOG.warning("%s belongs to another run, or to another history of this one: it is not used", path)
            return None
        return file

    def _path(self, round: int) -> Path:
        assert self.folder is not None
        return self.folder / f"round-{round:06d}.states"


def _read(config: RunConfig, file: VectorFile, client: int) -> Any:
    kind = config.client_kind
    names = [f"{client}/{name}" for name in kind._fields]
    vectors = Fields(file.read(names), str(file.path))
    return kind(*(vectors.array(name, (config.dim,)).reshape(1, 1, -1) for name in names))


def _owner(config: RunConfig, run: str, history: str, resets: int) -> dict[str, Any]:
    return {"what": WHAT, "config": config.digest, "run": run, "history": history, "resets": resets}
