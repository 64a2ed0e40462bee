"""Logs of federated runs: a logger, which transports may show, and append-only files of events."""

import json
import logging
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedscaffold.core.checks import shown
from fedscaffold.core.errors import InvalidInput

LOG = logging.getLogger("fedscaffold.federation")


class AuditLog:
    """A file to which lines are only ever added, each in one write, so that a crash cannot mix two lines.

    Parameters
    ----------
    path
        The file, which is made for its owner alone when the first line is written.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from fedscaffold.federation import AuditLog
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     log = AuditLog(Path(folder) / "audit.jsonl")
    ...     log.write("round-closed", round=3)
    ...     [(entry["event"], entry["round"]) for entry in log.read()]
    [('round-closed', 3)]
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def write(self, event: str, **facts: Any) -> None:
        """Add a line with the time, the name of the event, and facts that JSON can hold."""
        entry = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": event, **facts}
        line = json.dumps(entry, ensure_ascii=True, allow_nan=False, default=shown) + "\n"
        try:
            handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                os.write(handle, line.encode())
            finally:
                os.close(handle)
        except OSError as error:
            raise InvalidInput(f"cannot write {self.path}: {error.strerror}") from None

    def read(self) -> Iterator[dict[str, Any]]:
        """Return the entries in their order, without a line that a crash cut off."""
        if not self.path.exists():
            return
        with open(self.path, encoding="utf-8", errors="replace") as file:
            for line in file:
                try:
                    entry = json.loads(line)
                except ValueError:
                    continue
                if isinstance(entry, dict):
                    yield entry
