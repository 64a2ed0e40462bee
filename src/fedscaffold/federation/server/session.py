"""A server's run over any transport: its folder, locked and private, round after round, and its status."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from fedscaffold.core.errors import CheckpointMismatch, InvalidInput, NotWritten
from fedscaffold.core.files import exclusive, folder_at, is_locked, write_text
from fedscaffold.core.types import Array, IntArray
from fedscaffold.federation.log import LOG, AuditLog
from fedscaffold.federation.run_config import RunConfig
from fedscaffold.federation.server.files import CheckpointFolder, ServerCheckpoint, StateBackup
from fedscaffold.federation.server.ledger import Ledger, initial_ledger
from fedscaffold.federation.server.round import RoundResult, RoundRules, SendRequests, run_round
from fedscaffold.simulation.setup import divergence_limit

METRICS, LOCK, AUDIT = "metrics.prom", "lock", "audit.jsonl"
STATES = {"run-started": "running", "run-continued": "running", "round-closed": "running",
          "run-stopped": "stopped", "run-finished": "finished"}  # fmt: skip
CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
Begin = Callable[[], tuple[Array, IntArray]]


class ServerSession:
    """A run in a server's folder, which no other process uses meanwhile; made by `open_session`."""

    def __init__(
        self, folder: Path, config: RunConfig, theta0: Array, *, rules: RoundRules, backup: bool,
        keep_checkpoints: int,
    ) -> None:  # fmt: skip
        self.folder, self.config, self.theta0, self.rules = folder, config, theta0, rules
        self.audit = AuditLog(folder / AUDIT)
        self.checkpoints = CheckpointFolder(folder / "checkpoints", keep=keep_checkpoints)
        self.backup = StateBackup(folder / "clients" if backup else None)
        self.limit = divergence_limit(theta0)
        self.saved = self.checkpoints.load(config, theta0)
        self.keys: dict[int, str] = {} if self.saved is None else dict(self.saved.keys)

    @property
    def ledger(self) -> Ledger:
        """The server's state after the newest round."""
        if self.saved is None:
            raise AssertionError("begin comes first")
        return self.saved.ledger

    def begin(self, clients: Begin) -> None:
        """Start a run with the weights and numbers of rows of `clients()`, or continue the one on disk."""
        if self.saved is None:
            weights, n_rows = clients()
            self.saved = ServerCheckpoint(initial_ledger(self.config, self.theta0), weights, n_rows, self.keys)
            self.checkpoints.save(self.config, self.theta0, self.saved)
            self._note("run-started", config=self.config.to_json())
        else:
            LOG.info("continuing after round %d", self.ledger.round)
            self._note("run-continued")

    def run_round(self, send: SendRequests) -> RoundResult:
        """Close one round and write it to disk."""
        assert self.saved is not None
        before = self.saved
        result = run_round(
            self.config, before.ledger, before.weights, send, backup=self.backup, rules=self.rules,
            limit=self.limit, n_rows=before.n_rows,
        )  # fmt: skip
        self.saved = before._replace(ledger=result.ledger, keys=dict(self.keys))
        referred = self.checkpoints.save(self.config, self.theta0, self.saved)
        self.backup.remove_except(referred)
        self._note(
            "round-closed",
            counted=list(result.counted),
            refused={str(client): reason for client, reason in result.refused.items()},
            shortened={str(client): scale for client, scale in result.shortened.items()},
            limited={str(client): share for client, share in result.limited.items()},
            theta_norm=float(np.linalg.norm(result.ledger.server.theta)),
        )
        write_metrics(self.folder, self.config, result)
        return result

    def _note(self, event: str, **facts: object) -> None:
        ledger = self.ledger
        self.audit.write(
            event, name=self.config.name, run=ledger.run, round=ledger.round, resets=ledger.resets,
            history=ledger.history, **facts,
        )  # fmt: skip


@contextmanager
def open_session(
    folder: str | os.PathLike[str],
    config: RunConfig,
    theta0: Array,
    *,
    rules: RoundRules,
    rounds: int,
    backup: bool = True,
    keep_checkpoints: int = 5,
) -> Iterator[ServerSession]:
    """Lock the server's folder, load the run in it if there is one, and log how the run ends.

    Parameters
    ----------
    folder
        The server's folder, which is made for its owner alone.
    config
        The run's configuration.
    theta0
        The initial model, shape (dim,).
    rules
        The conditions for closing a round.
    rounds
        T, counted from the run's beginning; an error if the run is past it.
    backup
        Whether the server keeps a backup of the client states.
    keep_checkpoints
        Number of the newest checkpoints that are kept, to return to one of them.
    """
    path = Path(folder).expanduser()
    if not path.is_dir():
        folder_at(path).chmod(0o700)
    with exclusive(path / LOCK, f"the server's folder {path}"):
        session = ServerSession(
            path, config, theta0, rules=rules, backup=backup, keep_checkpoints=keep_checkpoints
        )
        if session.saved is not None and session.ledger.round > rounds:
            raise CheckpointMismatch(f"{path} is at round {session.ledger.round}, past the {rounds} asked for")
        try:
            yield session
        except BaseException as error:
            stopped = _in_words(error, path)
            try:
                session.audit.write("run-stopped", name=config.name, error=type(error).__name__, text=str(stopped))
            except InvalidInput as failed:  # the disk is full
                LOG.error("%s", failed)
            raise stopped from (None if stopped is not error else error.__cause__)
        if session.saved is not None:
            session.audit.write("run-finished", name=config.name, round=session.ledger.round)


def _in_words(error: BaseException, folder: Path) -> BaseException:
    """Return the error, or a sentence in place of the system's error if a file cannot be written."""
    cause = error.__cause__ if isinstance(error, NotWritten) else error
    if not isinstance(cause, OSError) or cause.errno not in CANNOT_WRITE:
        return error
    return InvalidInput(
        f"the server's folder {folder} cannot be written: {cause.strerror}; make room and start the server again: "
        "it continues after the last round that is complete"
    )


class RunStatus(BaseModel):
    """The status of a run, from its server's folder.

    Parameters
    ----------
    name
        Name of the run.
    run
        Its random identity.
    state
        "running", "finished", "stopped" by an error or a signal, or "killed" if the server's process is gone and
        left no reason.
    round
        Number of rounds that are complete.
    resets
        How often all client states were reset.
    counted
        Clients whose updates the newest round counted.
    refused
        Reasons by client that the newest round rejected, or that rejected its request.
    shortened
        Share of the length that is left, by client whose update the newest round shortened.
    limited
        Share of the length that is left, by client whose control variate the newest round shortened.
    since
        When the newest line was written, in UTC.
    error
        Why the run stopped; "" if it did not.

    Examples
    --------
    >>> from fedscaffold.federation import RunStatus
    >>> RunStatus(name="pilot", run="0" * 32, state="finished", round=40).round
    40
    """

    model_config = ConfigDict(frozen=True)

    name: str
    run: str
    state: Literal["running", "finished", "stopped", "killed"]
    round: int
    resets: int = 0
    counted: tuple[int, ...] = ()
    refused: dict[str, str] = {}
    shortened: dict[str, float] = {}
    limited: dict[str, float] = {}
    since: str = ""
    error: str = ""


def run_status(folder: str | os.PathLike[str]) -> RunStatus:
    """Return the status of the run in a server's folder, from its audit log.

    Parameters
    ----------
    folder
        The server's folder.

    Examples
    --------
    >>> import tempfile
    >>> from fedscaffold.federation import AuditLog, run_status
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     AuditLog(f"{folder}/audit.jsonl").write("run-started", name="pilot", run="0" * 32, round=0)
    ...     run_status(folder).state
    'killed'
    """
    path = Path(folder).expanduser()
    facts: dict[str, Any] = {}
    for entry in AuditLog(path / AUDIT).read():
        if entry.get("event") in STATES:
            facts |= {"text": "", **entry}
    try:
        state = STATES[facts["event"]]
        killed = state == "running" and not is_locked(path / LOCK)
        facts |= {"state": "killed" if killed else state, "since": facts.get("time", ""), "error": facts["text"]}
        return RunStatus(**facts)
    except (KeyError, ValidationError):
        raise InvalidInput(f"{os.fspath(folder)} is not the folder of a server that has begun a run") from None


def write_metrics(folder: Path, config: RunConfig, result: RoundResult) -> None:
    """Write the newest round's numbers in Prometheus' text format, for its node exporter's textfile collector."""
    label = f'{{name="{config.name}",run="{result.ledger.run}"}}'
    numbers = {
        "rounds_total": ("counter", "Rounds that are complete.", result.ledger.round),
        "resets_total": ("counter", "How often all client states were reset.", result.ledger.resets),
        "clients": ("gauge", "Number of clients of the run.", config.n_clients),
        "clients_counted": ("gauge", "Clients whose updates the newest round counted.", len(result.counted)),
        "clients_refused": ("gauge", "Clients rejected in the newest round.", len(result.refused)),
        "clients_shortened": ("gauge", "Updates shortened in the newest round.", len(result.shortened)),
        "clients_limited": ("gauge", "Control variates shortened in the newest round.", len(result.limited)),
    }
    lines = [
        line
        for name, (kind, text, value) in numbers.items()
        for line in (
            f"# HELP fedscaffold_{name} {text}",
            f"# TYPE fedscaffold_{name} {kind}",
            f"fedscaffold_{name}{label} {value}",
        )
    ]
    write_text(folder / METRICS, "\n".join(lines) + "\n")
