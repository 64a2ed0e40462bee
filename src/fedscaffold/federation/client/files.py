"""A site's folder: its secret, its log, and for each run a locked folder with the client's state."""

import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedscaffold.core.errors import FedScaffoldError, InUse
from fedscaffold.core.files import Fields, exclusive, folder_at, json_value, replacing
from fedscaffold.federation.client.policy import SitePolicy
from fedscaffold.federation.client.state import (
    PendingUpdate,
    SentGradient,
    StoredClientState,
    initial_stored_state,
)  # fmt: skip
from fedscaffold.federation.history import HISTORY_PATTERN
from fedscaffold.federation.log import LOG, AuditLog
from fedscaffold.federation.messages import NEVER, TrainRequest
from fedscaffold.federation.refusals import Refusal, RefusalCode
from fedscaffold.federation.vectors import open_vectors, write_vectors

WHAT = "fedscaffold client state 3"
KNOWN = "remembered"  # a vector that is only there if it differs from the sent one
LOCK_WAIT = 10.0  # seconds to wait for an earlier request's process


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
        except ValueError as error:  # InvalidInput included
            aside = self.path.with_suffix(".damaged")
            self.path.replace(aside)
            LOG.warning("%s; it is now %s, and the server is asked for the client's state", error, aside)
            self.audit.write("state-damaged", file=str(self.path), text=str(error))
            return None

    def _load(self) -> StoredClientState:
        config = self.request.config
        file = open_vectors(self.path)
        fields = Fields(file.description, str(self.path))
        owner = self._owner()
        for name in ("what", "run", "client"):
            if fields.value(name) != owner[name]:
                raise ValueError(f"{self.path} belongs to another {name}")
        if fields.value("config") != owner["config"]:  # answers are counted by run
            began = initial_stored_state(config, self.request.resets, fields.text("data"))
            return began._replace(answers=fields.integer("answers", least=0))
        if file.dim != config.dim:
            raise ValueError(f"{self.path} holds vectors of {file.dim} numbers, not {config.dim}")
        vectors = Fields(file.read(), str(self.path))

        def named(prefix: str, kind: Any, shape: tuple[int, ...]) -> Any:
            return kind(
                *(vectors.array(f"{prefix}/{name}", (config.dim,)).reshape(shape) for name in kind._fields)
            )

        pending, gradient = None, None
        if fields.value("pending") is not None:
            about = fields.fields("pending")
            sent = vectors.array("sent", (config.dim,)).reshape(1, 1, -1)
            known = vectors.array(KNOWN, (config.dim,)).reshape(1, 1, -1) if KNOWN in vectors else sent
            pending = PendingUpdate(
                about.integer("round", least=0), about.text("history", pattern=HISTORY_PATTERN),
                about.text("mean_gradient"), sent, known, named("server", config.server_kind, (1, -1)),
            )  # fmt: skip
        if fields.value("gradient") is not None:
            about = fields.fields("gradient")
            gradient = SentGradient(
                about.integer("round", least=0), about.text("history", pattern=HISTORY_PATTERN),
                vectors.array("gradient/theta", (config.dim,)),
                vectors.array("gradient", (config.dim,)).reshape(1, 1, -1),
            )  # fmt: skip
        last_counted = fields.integer("last_counted", least=NEVER)
        return StoredClientState(
            resets=fields.integer("resets", least=0),
            last_counted=last_counted,
            history=None if last_counted == NEVER else fields.text("history", pattern=HISTORY_PATTERN),
            client_state=named("state", config.client_kind, (1, 1, -1)),
            pending=pending,
            gradient=gradient,
            answers=fields.integer("answers", least=0),
            data=fields.text("data"),
        )

    def save(self, stored: StoredClientState) -> None:
        """Replace what is stored, in one step that a crash cannot leave half done."""
        vectors = {f"state/{name}": values for name, values in stored.client_state._asdict().items()}
        pending, gradient = None, None
        if stored.pending is not None:
            vectors |= {f"server/{name}": values for name, values in stored.pending.server._asdict().items()}
            vectors["sent"] = stored.pending.sent
            if stored.pending.remembered is not stored.pending.sent:
                vectors[KNOWN] = stored.pending.remembered
            pending = {name: getattr(stored.pending, name) for name in ("round", "history", "mean_gradient")}
        if stored.gradient is not None:
            vectors |= {"gradient": stored.gradient.gradient, "gradient/theta": stored.gradient.theta}
            gradient = {name: getattr(stored.gradient, name) for name in ("round", "history")}
        about = {name: getattr(stored, name) for name in ("resets", "last_counted", "history", "answers", "data")}
        description = {**self._owner(), **about, "pending": pending, "gradient": gradient}
        try:
            write_vectors(self.path, vectors, description)
        except (OSError, FedScaffoldError) as error:
            raise Refusal(RefusalCode.CANNOT_WRITE, f"cannot write {self.path}: {error}") from None

    def _owner(self) -> dict[str, Any]:
        request = self.request
        return {"what": WHAT, "run": request.run, "config": request.config.digest, "client": request.client}
