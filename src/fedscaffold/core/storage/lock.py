"""Locks on folders and files, which the system releases when the process ends, however it ends."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from fedscaffold.core.errors import InUse
from fedscaffold.core.storage.files import folder_at

POLL_INTERVAL = 0.05  # seconds between two attempts


@contextmanager
def exclusive(path: str | os.PathLike[str], what: str, *, wait: float = 0.0) -> Iterator[None]:
    """Hold the lock file `path` while the block runs, alone among all processes and threads of this machine.

    Parameters
    ----------
    path
        The lock file, which is made and left there empty; its folder is made too.
    what
        What is locked, which begins the error's text: "the server's folder results/server".
    wait
        Seconds to wait for another process that holds the lock; `InUse` after that.
    """
    end = time.monotonic() + wait
    with _open(path) as file:
        while not _try_lock(file.fileno()):
            if time.monotonic() >= end:
                raise InUse(f"{what} is in use by another process; wait until it has ended, or choose another one")
            time.sleep(POLL_INTERVAL)
        yield  # closing the file releases the lock


def is_locked(path: str | os.PathLike[str]) -> bool:
    """Whether some process holds the lock file `path` now."""
    try:
        with open(path, "rb") as file:
            return not _try_lock(file.fileno())
    except OSError:
        return False


def _open(path: str | os.PathLike[str]) -> BinaryIO:
    """The lock file, in a folder that is made where it is missing or cannot be used."""
    try:
        return open(path, "ab")
    except OSError:
        folder_at(Path(path).parent)
        return open(path, "ab")


def _try_lock(handle: int) -> bool:
    if os.name == "nt":
        import msvcrt

        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined, unused-ignore]
        except OSError:
            return False
        return True
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
