"""A client's state and where it is kept: a site's folder, with a locked file for each run, or memory."""

import json
import os
import secrets
import shutil
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from tempfile import mkdtemp
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import Field, TypeAdapter

from fedscaffold.core import npz
from fedscaffold.core.errors import FedScaffoldError, InUse
from fedscaffold.core.files import Fields, exclusive, folder_at, json_value, replacing
from fedscaffold.federation.client.policy import SitePolicy
from fedscaffold.federation.log import LOG, AuditLog
from fedscaffold.federation.messages import (
    NEVER,
    RESTATED,
    Digest,
    Index,
    LossReason,
    TrainRequest,
    extend_history,
    message_of,
    named_arrays,
    shorten,
)  # fmt: skip
from fedscaffold.federation.refusals import Refusal, RefusalCode
from fedscaffold.federation.run_config import RunConfig

WHAT = "fedscaffold client state 5"
SENT = ("pending", "gradient")  # vectors that are kept, so that the same request gets the same answer
LOCK_WAIT = 10.0  # seconds to wait for an earlier request's process


class SentVector(NamedTuple):
    """A vector that was sent: a gradient, or an update of which the client does not know yet if it was counted."""

    round: Index
    history: Digest  # up to the beginning of that round
    mean_gradient: str  # digest of the request's, or "" if it had none
    vector: Any  # (1, 1, dim)
    server: Any  # the server state from which it was made

    def answers(self, request: TrainRequest, mean_gradient: str) -> bool:
        """Return whether the vector is the answer to a request."""
        same = (self.round, self.history, self.mean_gradient) == (request.round, request.history, mean_gradient)
        return same and all(np.array_equal(a, b) for a, b in zip(self.server, request.server, strict=True))


class StoredClientState(NamedTuple):
    """A client's memory between two requests."""

    resets: Index  # how often all client states of the run were reset before this one
    last_counted: Annotated[int, Field(ge=NEVER)]  # the last round that `client_state` includes, or NEVER
    history: Digest | None  # after that round
    client_state: Any  # the method's, a named tuple of arrays (1, 1, dim)
    pending: SentVector | None
    gradient: SentVector | None  # from which the correction of the same round is made
    answers: Index  # how many different requests of the run were answered
    data: str  # fingerprint of the data from which the first was answered


STORED = TypeAdapter(StoredClientState)


class LostState(Exception):
    """The client does not have the state that the server counts on."""

    def __init__(self, reason: LossReason) -> None:
        super().__init__(reason)
        self.reason: LossReason = reason


def initial_stored_state(config: RunConfig, resets: int, data: str) -> StoredClientState:
    """Return a client's memory before its first round, or after a reset of all client states."""
    return StoredClientState(resets, NEVER, None, config.initial_client_state, None, None, 0, data)


def reconcile(stored: StoredClientState, request: TrainRequest) -> StoredClientState:
    """Return the stored state as of the round that the server counted last, or raise `LostState`.

    If the server counted the pending update, the method's rule enters it into the client state, shortened as the
    server shortened it. If the server did not, the update stays pending, and is sent again only when the same
    round is requested again. A state of another history of the run, such as an older copy of the client's file, is
    lost, and so is one that the server has limited, in place of which the server sends another.
    """
    if not request.config.has_client_state:
        return stored._replace(resets=request.resets)
    if request.client_state is not None:
        return stored._replace(
            resets=request.resets, last_counted=request.last_counted, history=request.counted_history,
            client_state=request.client_state, pending=None,
        )  # fmt: skip
    if request.last_counted == NEVER:
        if (stored.resets, stored.last_counted) == (request.resets, NEVER):
            return stored
        initial = initial_stored_state(request.config, request.resets, stored.data)
        return initial._replace(answers=stored.answers)
    if stored.resets != request.resets:
        raise LostState("missing" if stored.answers == 0 else "other-history")
    if stored.last_counted == request.last_counted:
        if stored.history != request.counted_history:
            raise LostState("other-history")
        return stored
    pending = stored.pending
    if pending is None or pending.round != request.last_counted or request.counted_scale == RESTATED:
        raise LostState("missing" if stored.answers == 0 else "other-history")
    after = request.server if request.server_after is None else request.server_after
    if extend_history(pending.history, pending.round, after) != request.counted_history:
        raise LostState("other-history")
    message = message_of(request.config, pending.vector, pending.server.theta)
    counted = shorten(message, pending.server.theta, request.counted_scale)
    updated = request.config.method.update_clients(stored.client_state, counted, pending.server, after)
    return stored._replace(
        last_counted=request.last_counted, history=request.counted_history, client_state=updated, pending=None
    )


class MemoryLog:
    """A log in memory, with the methods of `AuditLog`."""

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []

    def write(self, event: str, **facts: Any) -> None:
        """Add an entry with the name of the event, and facts that JSON can hold."""
        self.entries.append({"event": event, **facts})

    def read(self) -> Iterator[dict[str, Any]]:
        """Return the entries in their order."""
        yield from self.entries


class MemoryStore:
    """A store in memory for studies, which is gone with the process.

    Parameters
    ----------
    secret
        The site's secret; random by default.
    """

    def __init__(self, secret: bytes | None = None) -> None:
        self.secret = secrets.token_bytes(32) if secret is None else secret
        self.audit = MemoryLog()
        self._notes: dict[str, dict[str, Any]] = {}

    @cached_property
    def _folder(self) -> Path:
        folder = mkdtemp(prefix="fedscaffold-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        return Path(folder)

    @property
    def budget_file(self) -> Path:
        """The file of the privacy budget, in a folder that goes with the store."""
        return self._folder / "privacy-budget.json"

    def save_note(self, name: str, values: Mapping[str, Any]) -> None:
        """Keep values that JSON can hold under a name."""
        self._notes[name] = dict(values)

    def load_note(self, name: str) -> dict[str, Any] | None:
        """Return the values under a name; None if there are none."""
        return self._notes.get(name)


class SiteFolder:
    """A site's folder, on a disk that outlives the node; several runs may share it, and several clients.

    Parameters
    ----------
    state_dir
        The folder, which is made for its owner alone.
    budget_file
        The record of spending from the privacy budget; a file in the folder by default.
    """

    def __init__(self, state_dir: str | os.PathLike[str], *, budget_file: Path | None = None) -> None:
        self.path = Path(state_dir).expanduser()
        self.budget_file = self.path / "privacy-budget.json" if budget_file is None else budget_file
        if not self.path.is_dir():
            folder_at(self.path).chmod(0o700)
        self.audit = AuditLog(self.path / "audit.jsonl")

    @property
    def secret(self) -> bytes:
        """32 random bytes that never leave the site."""
        file = self.path / "site.key"
        if not file.exists():
            with exclusive(self.path / "site.lock", f"the site's folder {self.path}", wait=LOCK_WAIT):
                if not file.exists():
                    with replacing(file, private=True) as temporary:
                        temporary.write_bytes(secrets.token_bytes(32))
        found = file.read_bytes()
        if len(found) != 32:
            raise Refusal(
                RefusalCode.STATE_UNREADABLE, f"{file} is damaged; restore it from a backup or delete it"
            )
        return found

    def save_note(self, name: str, values: Mapping[str, Any]) -> None:
        """Keep values that JSON can hold in the file NAME.json."""
        try:
            with replacing(self.path / f"{name}.json", private=True) as temporary:
                temporary.write_text(json.dumps(values, indent=1, allow_nan=False), encoding="utf-8")
        except (OSError, FedScaffoldError) as error:
            raise Refusal(RefusalCode.CANNOT_WRITE, f"cannot write {self.path / name}.json: {error}") from None

    def load_note(self, name: str) -> dict[str, Any] | None:
        """Return the values in the file NAME.json; None if there is none."""
        file = self.path / f"{name}.json"
        if not file.exists():
            return None
        try:
            return Fields(json_value(file.read_bytes()), str(file)).as_dict()
        except (OSError, ValueError) as error:
            raise Refusal(RefusalCode.STATE_UNREADABLE, f"{file} cannot be read: {error}") from None

    @contextmanager
    def open_run(self, request: TrainRequest, policy: SitePolicy) -> Iterator["ClientStateFile"]:
        """Return the client's file of the request's run, which this process locks while the block runs."""
        folder = self.path / f"{request.config.name}-{request.run}"
        if not folder.is_dir():
            runs = sum(1 for path in self.path.iterdir() if path.is_dir())
            if runs >= policy.max_runs:
                raise Refusal(
                    RefusalCode.POLICY_RUNS,
                    f"this site has taken part in {runs} runs, and its policy allows {policy.max_runs}; delete "
                    f"folders in {self.path} of runs that are over",
                )
            try:
                folder.mkdir(mode=0o700, exist_ok=True)
            except OSError as error:
                raise Refusal(RefusalCode.CANNOT_WRITE, f"cannot make {folder}: {error.strerror}") from None
        file = folder / f"client-{request.client:05d}.state"
        try:
            with exclusive(file.with_suffix(".lock"), f"the client's file {file}", wait=LOCK_WAIT):
                yield ClientStateFile(file, request, self.audit)
        except InUse as error:
            raise Refusal(RefusalCode.BUSY, str(error)) from None


SiteStore = SiteFolder | MemoryStore  # a site's memory from one request to the next


class ClientStateFile:
    """The file of the client and the run of a request; a damaged one, or one of another run, is put aside."""

    def __init__(self, path: Path, request: TrainRequest, audit: AuditLog) -> None:
        self.path, self.request, self.audit = path, request, audit

    def load(self) -> StoredClientState | None:
        """Return the state that `save` stored last; None without a usable file."""
        try:
            return self._load()
        except FileNotFoundError:
            return None
        except (ValueError, KeyError) as error:  # validation errors included
            aside = self.path.with_suffix(".damaged")
            self.path.replace(aside)
            LOG.warning("%s; it is now %s, and the server is asked for the client's state", error, aside)
            self.audit.write("state-damaged", file=str(self.path), text=str(error))
            return None

    def _load(self) -> StoredClientState:
        config, owner = self.request.config, self._owner()
        vectors, about = npz.read(self.path)
        found = {name: about.pop(name, None) for name in owner}
        for name in ("what", "run", "client"):
            if found[name] != owner[name]:
                raise ValueError(f"{self.path} belongs to another {name}")
        if found["config"] != owner["config"]:  # answers are counted by run
            began = initial_stored_state(config, self.request.resets, str(about["data"]))
            return began._replace(answers=int(about["answers"]))

        def named(prefix: str, kind: Any, shape: tuple[int, ...]) -> Any:
            return kind(*(vectors[f"{prefix}/{name}"].reshape(shape) for name in kind._fields))

        for sent in SENT:
            if about[sent] is not None:
                server = named(f"{sent}/server", config.server_kind, (1, -1))
                about[sent] = {**about[sent], "vector": vectors[sent].reshape(1, 1, -1), "server": server}
        return STORED.validate_python({**about, "client_state": named("state", config.client_kind, (1, 1, -1))})

    def save(self, stored: StoredClientState) -> None:
        """Replace what is stored, in one step that a crash cannot leave half done."""
        about = {**self._owner(), **stored._asdict()}
        vectors = named_arrays("state", about.pop("client_state"))
        for name in SENT:
            sent = getattr(stored, name)
            if sent is not None:
                vectors |= {name: sent.vector, **named_arrays(f"{name}/server", sent.server)}
                about[name] = {key: getattr(sent, key) for key in ("round", "history", "mean_gradient")}
        try:
            npz.write(self.path, vectors, about, private=True)
        except (OSError, FedScaffoldError) as error:
            raise Refusal(RefusalCode.CANNOT_WRITE, f"cannot write {self.path}: {error}") from None

    def _owner(self) -> dict[str, Any]:
        request = self.request
        return {"what": WHAT, "run": request.run, "config": request.config.digest, "client": request.client}
