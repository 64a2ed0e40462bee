"""The server's files: its ledger, a file per round, and a backup of the clients' states."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedscaffold.core import npz
from fedscaffold.core.errors import CheckpointMismatch
from fedscaffold.core.files import folder_at
from fedscaffold.core.types import Array, IntArray
from fedscaffold.federation.log import LOG
from fedscaffold.federation.messages import NEVER, initial_history, named_arrays
from fedscaffold.federation.run_config import RunConfig
from fedscaffold.federation.server.checks import few_rows
from fedscaffold.federation.server.ledger import Ledger, earlier_rounds, stack_states

CHECKPOINT, BACKUP = "fedscaffold federation 5", "fedscaffold backup of client states 4"
LEDGER_FIELDS = ("run", "history", "round", "resets", "first_distance", "spread")


class ServerCheckpoint(NamedTuple):
    """The ledger, with weights, numbers of rows and keys of the clients."""

    ledger: Ledger
    weights: Array  # (n_clients,), summing to one
    n_rows: IntArray  # (n_clients,): as each client reported when the run began, 0 if it did not
    keys: Mapping[int, str]  # public keys of the clients' nodes in hexadecimal, by client


class CheckpointFolder:
    """Checkpoints of one run, such as round-000012.npz after twelve rounds.

    The newest few are kept, and older ones as long as a client needs the server state in them. To return to an
    earlier round, delete the files of all later ones while the server is stopped.

    Parameters
    ----------
    folder
        The folder.
    keep
        Number of the newest checkpoints that are kept, at least 1.
    """

    def __init__(self, folder: str | os.PathLike[str], *, keep: int = 5) -> None:
        self.folder, self.keep = Path(folder), keep
        self._referred: dict[int, set[int]] = {}  # rounds whose states a kept checkpoint refers to

    def rounds(self) -> list[int]:
        """Return the numbers of complete rounds that have a checkpoint, in ascending order."""
        names = (path.stem.removeprefix("round-") for path in self.folder.glob("round-*.npz"))
        return sorted(int(name) for name in names if name.isdigit())

    def path(self, rounds: int) -> Path:
        """Return the file of the checkpoint after `rounds` rounds."""
        return self.folder / f"round-{rounds:06d}.npz"

    def save(self, config: RunConfig, theta0: Array, checkpoint: ServerCheckpoint) -> set[int]:
        """Write a checkpoint, remove ones that are not needed, and return the rounds that the others refer to."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        ledger = checkpoint.ledger
        arrays = {"last_counted": ledger.last_counted, "counted_scale": ledger.counted_scale}
        arrays |= {"weights": checkpoint.weights, "n_rows": checkpoint.n_rows}
        arrays |= named_arrays("server", ledger.server)
        description = {
            "what": CHECKPOINT,
            "config": config.to_json(),
            "start": initial_history(ledger.run, config, theta0),
            "histories": dict(ledger.histories),
            "keys": dict(checkpoint.keys),
            **{name: getattr(ledger, name) for name in LEDGER_FIELDS},
        }
        npz.write(self.path(ledger.round), arrays, description, private=True)
        return self._prune(ledger)

    def load(self, config: RunConfig, theta0: Array) -> ServerCheckpoint | None:
        """Return the newest checkpoint, None if there is none; raise if it is damaged or of another run."""
        found = self.rounds()
        if not found:
            return None
        about, arrays = self._read(found[-1], config)
        if about["start"] != initial_history(about["run"], config, theta0):
            raise CheckpointMismatch(
                f"{self.path(found[-1])} belongs to another run: its initial model is not the one given here; "
                "choose another name and folder"
            )
        histories = {int(round): digest for round, digest in about["histories"].items()}
        needed = earlier_rounds(config, arrays["last_counted"], about["round"] - 1)
        known: dict[str, Any] = {name: about[name] for name in LEDGER_FIELDS}
        ledger = Ledger(
            **known,
            last_counted=arrays["last_counted"],
            counted_scale=arrays["counted_scale"],
            server=_server_of(config, arrays),
            earlier_states={round: self._state_after(round, config, histories[round]) for round in needed},
            histories=histories,
        )
        for rounds in found[-self.keep :]:
            self._referred[rounds] = set(self._read(rounds, config)[1]["last_counted"].tolist())
        keys = {int(client): key for client, key in about["keys"].items()}
        return ServerCheckpoint(ledger, arrays["weights"], arrays["n_rows"], keys)

    def _state_after(self, round: int, config: RunConfig, history: str) -> Any:
        about, arrays = self._read(round + 1, config)
        if about["history"] != history:
            raise CheckpointMismatch(
                f"{self.path(round + 1)} belongs to another history of this run than the newest checkpoint; "
                "restore the server's folder from one backup as a whole"
            )
        return _server_of(config, arrays)

    def _read(self, rounds: int, config: RunConfig) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return description and arrays of a checkpoint of this run; its digest says that they are as written."""
        path = self.path(rounds)
        try:
            arrays, about = npz.read(path)
        except (OSError, ValueError) as error:
            raise CheckpointMismatch(
                f"{path} cannot be read: {error}; restore it, or delete it to return to an earlier round"
            ) from None
        if about.get("what") != CHECKPOINT:
            raise CheckpointMismatch(f"{path} is not a server's file of this version")
        if about["config"] != config.to_json():
            raise CheckpointMismatch(
                f"{path} belongs to another run: its config is {about['config']} there and {config.to_json()} "
                "here; choose another name and folder"
            )
        if about["round"] != rounds:
            raise CheckpointMismatch(f"{path} holds the checkpoint of another round; restore it, or delete it")
        return about, arrays

    def _prune(self, ledger: Ledger) -> set[int]:
        """Remove files that no kept checkpoint refers to; return the rounds that they refer to."""
        self._referred[ledger.round] = set(ledger.last_counted.tolist())
        self._referred = {r: found for r, found in self._referred.items() if r <= ledger.round}
        kept = sorted(self._referred)[-self.keep :]
        self._referred = {rounds: self._referred[rounds] for rounds in kept}
        referred = set().union(*self._referred.values()) - {NEVER}
        needed = set(kept) | {round + 1 for round in referred}
        for rounds in self.rounds():
            if rounds not in needed and rounds <= ledger.round:
                self.path(rounds).unlink(missing_ok=True)
        return referred


def _server_of(config: RunConfig, arrays: Mapping[str, NDArray[Any]]) -> Any:
    return config.server_kind(*(arrays[f"server/{name}"] for name in config.server_kind._fields))


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
        self._clients: dict[int, frozenset[int]] = {}  # in the file of each round that was looked at

    def load(self, config: RunConfig, ledger: Ledger, client: int) -> Any:
        """Return the client's state after its last counted round, arrays (1, 1, dim); None without a backup."""
        return self._states(config, ledger, [client]).get(client)

    def load_all(self, config: RunConfig, ledger: Ledger, clients: Iterable[int]) -> dict[int, Any]:
        """Return the states of the clients that the backup has."""
        return {} if self.folder is None or not config.has_client_state else self._states(config, ledger, clients)

    def _states(self, config: RunConfig, ledger: Ledger, clients: Iterable[int]) -> dict[int, Any]:
        """Return the known states after the last counted rounds, whose files are each opened once."""
        found, by_round = dict[int, Any](), dict[int, list[int]]()
        for client in sorted(clients):
            counted = int(ledger.last_counted[client])
            if counted == NEVER or not config.has_client_state:
                found[client] = config.initial_client_state
            elif client in self._clients_of(config, ledger, counted):
                by_round.setdefault(counted, []).append(client)
        for counted, some in by_round.items():
            try:
                found |= self._read(config, counted, some)
            except (OSError, ValueError):  # find the ones whose vectors are as they were written
                for client in some:
                    try:
                        found |= self._read(config, counted, [client])
                    except (OSError, ValueError) as error:
                        LOG.warning("the backup of client %d's state cannot be used: %s", client, error)
        return found

    def _read(self, config: RunConfig, round: int, clients: list[int]) -> dict[int, Any]:
        vectors, _ = npz.read(self._path(round), [name for client in clients for name in _names(config, client)])
        return {
            client: config.client_kind(*(vectors[name].reshape(1, 1, -1) for name in _names(config, client)))
            for client in clients
        }

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
            for k, client in enumerate(some):
                vectors |= dict(zip(_names(config, client), (values[0, k] for values in updated), strict=True))
        description = {**_owner(config, after.run, after.history, before.resets), "clients": known}
        npz.write(self._path(before.round), vectors, description, private=True)
        self._clients.pop(before.round, None)
        return sorted(set(counted) - set(known))

    def missing(self, config: RunConfig, ledger: Ledger, clients: Iterable[int]) -> set[int]:
        """Return the clients whose state should be in the backup and is not."""
        if self.folder is None or not config.has_client_state:
            return set()
        counted = ((client, int(ledger.last_counted[client])) for client in clients)
        return {
            client
            for client, round in counted
            if round != NEVER and client not in self._clients_of(config, ledger, round)
        }

    def remove_except(self, rounds: set[int]) -> None:
        """Remove the files of all rounds but these."""
        if self.folder is None or not self.folder.is_dir():
            return
        needed = {self._path(round) for round in rounds}
        for path in self.folder.glob("round-*.states"):
            if path not in needed:
                path.unlink(missing_ok=True)
        self._clients = {round: known for round, known in self._clients.items() if round in rounds}

    def _clients_of(self, config: RunConfig, ledger: Ledger, round: int) -> frozenset[int]:
        """Return the clients in the file of a round, none if it is not of this history of the run."""
        if self.folder is not None and round not in self._clients:
            self._clients[round] = self._checked(config, ledger, round)
        return self._clients.get(round, frozenset())

    def _checked(self, config: RunConfig, ledger: Ledger, round: int) -> frozenset[int]:
        path = self._path(round)
        try:
            _, description = npz.read(path, ())
        except FileNotFoundError:
            return frozenset()
        except (OSError, ValueError) as error:
            LOG.warning("a backup of client states cannot be used: %s", error)
            return frozenset()
        clients = description.pop("clients", ())
        if description != _owner(config, ledger.run, ledger.histories[round], ledger.resets):
            LOG.warning("%s belongs to another run, or to another history of this one: it is not used", path)
            return frozenset()
        return frozenset(clients)

    def _path(self, round: int) -> Path:
        assert self.folder is not None
        return self.folder / f"round-{round:06d}.states"


def _names(config: RunConfig, client: int) -> list[str]:
    return [f"{client}/{name}" for name in config.client_kind._fields]


def _owner(config: RunConfig, run: str, history: str, resets: int) -> dict[str, Any]:
    return {"what": BACKUP, "config": config.digest, "run": run, "history": history, "resets": resets}
