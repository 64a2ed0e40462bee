"""The server's ledger on disk, a file per round, from which a server that was stopped continues."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedscaffold.core import npz
from fedscaffold.core.errors import CheckpointMismatch
from fedscaffold.core.files import Fields
from fedscaffold.core.types import Array, IntArray
from fedscaffold.federation.history import HISTORY_PATTERN, RUN_PATTERN, initial_history
from fedscaffold.federation.messages import NEVER
from fedscaffold.federation.run_config import RunConfig
from fedscaffold.federation.server.ledger import Ledger

LEDGER_FIELDS = ("run", "history", "round", "resets", "first_distance", "spread")
WHAT = "fedscaffold federation 4"


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
        arrays = {f"server/{name}": values for name, values in ledger.server._asdict().items()}
        arrays |= {name: getattr(ledger, name) for name in ("last_counted", "counted_scale")}
        arrays |= {"weights": checkpoint.weights, "n_rows": checkpoint.n_rows}
        description = {
            "what": WHAT,
            "config": config.to_json(),
            "start": initial_history(ledger.run, config, theta0),
            "histories": {str(round): digest for round, digest in ledger.histories.items()},
            "keys": {str(client): key for client, key in checkpoint.keys.items()},
            **{name: getattr(ledger, name) for name in LEDGER_FIELDS},
        }
        npz.write(self.path(ledger.round), arrays, description, private=True)
        return self._prune(ledger)

    def load(self, config: RunConfig, theta0: Array) -> ServerCheckpoint | None:
        """Return the newest checkpoint, None if there is none; raise if it is damaged or of another run."""
        found = self.rounds()
        if not found:
            return None
        newest = self._read(found[-1], config)
        fields = newest.fields
        if fields.text("start") != initial_history(fields.text("run", pattern=RUN_PATTERN), config, theta0):
            raise CheckpointMismatch(
                f"{newest.path} belongs to another run: its initial model is not the one given here; choose "
                "another name and folder"
            )
        last_counted = newest.last_counted(config)
        referred = set(last_counted.tolist()) - {NEVER}
        round = fields.integer("round", least=0)
        needed = referred - {round - 1} if config.has_client_state else set[int]()
        digests = fields.fields("histories")
        histories = {r: digests.text(str(r), pattern=HISTORY_PATTERN) for r in sorted(referred)}
        ledger = Ledger(
            run=fields.text("run", pattern=RUN_PATTERN), history=fields.text("history", pattern=HISTORY_PATTERN),
            round=round, resets=fields.integer("resets", least=0),
            server=newest.server(config), last_counted=last_counted,
            counted_scale=newest.arrays.array("counted_scale", (config.n_clients,)),
            earlier_states={r: self._state_after(r, config, histories[r]) for r in sorted(needed)},
            histories=histories, first_distance=fields.number("first_distance", least=0.0),
            spread=fields.number("spread", least=0.0),
        )  # fmt: skip
        keys = fields.fields("keys")
        for rounds in found[-self.keep :]:
            self._referred[rounds] = set(self._read(rounds, config).last_counted(config).tolist())
        return ServerCheckpoint(
            ledger,
            newest.arrays.array("weights", (config.n_clients,)),
            newest.arrays.array("n_rows", (config.n_clients,), dtype=np.int64),
            {int(client): keys.text(client, longest=10_000) for client in keys.names() if client.isdigit()},
        )

    def _state_after(self, round: int, config: RunConfig, history: str) -> Any:
        found = self._read(round + 1, config)
        if found.fields.text("history") != history:
            raise CheckpointMismatch(
                f"{found.path} belongs to another history of this run than the newest checkpoint; restore the "
                "server's folder from one backup as a whole"
            )
        return found.server(config)

    def _read(self, rounds: int, config: RunConfig) -> "_Read":
        path = self.path(rounds)
        try:
            arrays, description = npz.read(path)
        except (OSError, ValueError) as error:
            raise CheckpointMismatch(
                f"{path} cannot be read: {error}; restore it, or delete it to return to an earlier round"
            ) from None
        fields = Fields(description, str(path), error=CheckpointMismatch)
        if description.get("what") != WHAT:
            raise CheckpointMismatch(f"{path} is not a server's file of this version")
        if fields.text("config", longest=10**7) != config.to_json():
            raise CheckpointMismatch(
                f"{path} belongs to another run: its config is {fields.text('config', longest=10**7)} there and "
                f"{config.to_json()} here; choose another name and folder"
            )
        if fields.integer("round", least=0) != rounds:
            raise CheckpointMismatch(f"{path} holds the checkpoint of another round; restore it, or delete it")
        return _Read(path, fields, Fields(arrays, str(path), error=CheckpointMismatch))

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


class _Read(NamedTuple):
    """A file that was read and belongs to the run."""

    path: Path
    fields: Fields
    arrays: Fields

    def server(self, config: RunConfig) -> Any:
        kind = config.server_kind
        return kind(*(self.arrays.array(f"server/{name}", (1, config.dim)) for name in kind._fields))

    def last_counted(self, config: RunConfig) -> IntArray:
        found = self.arrays.array("last_counted", (config.n_clients,), dtype=np.int64)
        if found.size and (found.min() < NEVER or found.max() >= self.fields.integer("round", least=0)):
            raise CheckpointMismatch(f"{self.path}: last_counted holds rounds that are not complete")
        return found
