"""Stores of client states: a folder (`client.files.SiteFolder`), or memory in one process."""

import secrets
import shutil
import weakref
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Protocol

from fedscaffold.federation.client.policy import SitePolicy
from fedscaffold.federation.client.state import StoredClientState
from fedscaffold.federation.log import AuditLog
from fedscaffold.federation.messages import TrainRequest


class StateFile(Protocol):
    """The stored state of one client in one run."""

    def load(self) -> StoredClientState | None:
        """Return the state that `save` stored last; None without a usable one."""

    def save(self, stored: StoredClientState) -> None:
        """Replace what is stored."""


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


class SiteStore(Protocol):
    """A site's memory from one request to the next."""

    @property
    def audit(self) -> AuditLog | MemoryLog:
        """The log of the site's answers and rejections."""

    @property
    def secret(self) -> bytes:
        """32 random bytes that never leave the site."""

    @property
    def budget_file(self) -> Path:
        """The file with the record of spending from the site's privacy budget."""

    def open_run(self, request: TrainRequest, policy: SitePolicy) -> AbstractContextManager[StateFile]:
        """Return the client's state in the request's run, which this process locks while the block runs."""

    def save_note(self, name: str, values: Mapping[str, Any]) -> None:
        """Keep values that JSON can hold under a name."""

    def load_note(self, name: str) -> dict[str, Any] | None:
        """Return the values under a name; None if there are none."""


class MemoryStore:
    """A store in memory, which is gone with the process.

    Parameters
    ----------
    secret
        The site's secret; random by default.
    """

    def __init__(self, secret: bytes | None = None) -> None:
        self.secret = secrets.token_bytes(32) if secret is None else secret
        self.audit = MemoryLog()
        self._states: dict[tuple[str, int], StoredClientState] = {}
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

    @contextmanager
    def open_run(self, request: TrainRequest, policy: SitePolicy) -> Iterator[StateFile]:
        """Return the client's state in the request's run."""
        yield _StateInMemory(self._states, (request.run, request.client))

    def save_note(self, name: str, values: Mapping[str, Any]) -> None:
        """Keep values that JSON can hold under a name."""
        self._notes[name] = dict(values)

    def load_note(self, name: str) -> dict[str, Any] | None:
        """Return the values under a name; None if there are none."""
        return self._notes.get(name)


class _StateInMemory:
    def __init__(self, states: dict[tuple[str, int], StoredClientState], key: tuple[str, int]) -> None:
        self.states, self.key = states, key

    def load(self) -> StoredClientState | None:
        return self.states.get(self.key)

    def save(self, stored: StoredClientState) -> None:
        self.states[self.key] = stored
