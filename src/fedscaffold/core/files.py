"""Files that are complete or missing, locks, and checked fields of what files and messages hold."""

import json
import math
import os
import re
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fedscaffold.core.checks import given, shown
from fedscaffold.core.errors import FedScaffoldError, InUse, InvalidInput, NotWritten

RANDOM = r"[a-z0-9_]{8}"  # of the names that tempfile.mkstemp gives


def path_of(path: Any) -> Path:
    """Return a path; raise if no file can have it: not text, too long, or with a NUL character."""
    try:
        found = Path(path)
        found.lstat()
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return found
    except OSError as error:
        raise InvalidInput(f"cannot use the path {given(path)}: {error.strerror}") from None
    except (TypeError, ValueError):
        raise InvalidInput(f"a path must be text that can name a file, got {given(path)}") from None
    return found


@contextmanager
def replacing(path: str | os.PathLike[str], *, private: bool = False) -> Iterator[Path]:
    """Yield a temporary path in the same folder, which takes the name `path` when the block ends without error.

    If `path` is a symbolic link, the file that it points to is replaced and the link stays. When the disk is
    full the old file stays and `NotWritten` says so. A private file can be read by its owner alone.
    """
    target = _target(path)
    try:
        handle, temporary = _temporary(target)
    except OSError as error:
        check_writable(path)  # which has better words, if it finds the reason
        raise InvalidInput(f"cannot write {target}: {error.strerror}") from None
    try:
        yield temporary
        os.fsync(handle)
        if not private:
            umask = os.umask(0)
            os.umask(umask)
            temporary.chmod(0o666 & ~umask)
        if os.name == "nt":  # which does not rename open files
            os.close(handle)
            handle = -1
        temporary.replace(target)
    except OSError as error:
        old = "; what was there before is kept" if target.exists() else ""
        raise NotWritten(f"cannot write {path}: {error.strerror or error}{old}") from error
    finally:
        temporary.unlink(missing_ok=True)
        if handle >= 0:
            os.close(handle)  # and with it the lock


def remove_abandoned(path: str | os.PathLike[str]) -> None:
    """Remove temporary files of this path whose writers were killed, which no process holds locked."""
    target = Path(os.path.realpath(path))
    name = re.compile(rf"\.{re.escape(target.name)}\.{RANDOM}{re.escape(target.suffix)}")
    if os.name == "nt" or not target.parent.is_dir():  # where locks do not show it
        return
    for left in target.parent.iterdir():
        if name.fullmatch(left.name):
            with suppress(OSError), open(left, "rb") as file:
                if _lock(file.fileno()):
                    left.unlink()


def _temporary(target: Path) -> tuple[int, Path]:
    """Return a new file beside the target, open and locked, so that `remove_abandoned` leaves it alone."""
    while True:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=target.suffix)
        if _lock(handle) and Path(name).exists():
            return handle, Path(name)
        os.close(handle)  # taken for abandoned before it was locked


def _target(path: str | os.PathLike[str]) -> Path:
    """Return the file to replace, with links followed; `check_writable` raises for unusual ones."""
    try:
        target = os.path.realpath(path)
        found = Path(target).stat()
    except FileNotFoundError:
        return Path(target)
    except (OSError, TypeError, ValueError):
        check_writable(path)
        return Path(os.path.realpath(path))
    if not stat.S_ISREG(found.st_mode) or not os.access(target, os.W_OK):
        check_writable(path)
    return Path(target)


def _lock(handle: int) -> bool:
    """Lock an open temporary file, as `_try_lock` does; return True if locks are not supported."""
    try:
        return os.name == "nt" or _try_lock(handle)  # which there would keep others from writing to the file
    except OSError:
        return True


def _try_lock(handle: int) -> bool:
    """Lock an open file; return False if another process holds the lock."""
    try:
        if os.name == "nt":
            import msvcrt

            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined, unused-ignore]
        else:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # the latter on Windows
        return False
    return True


@contextmanager
def exclusive(path: str | os.PathLike[str], what: str, *, wait: float = 0.0) -> Iterator[BinaryIO]:
    """Open a file to read and write, and hold its lock, alone among all processes and threads of this machine.

    The file is made, with its folder, if it is missing, and stays; the lock is the same for all its names and
    links. The system releases it when the process ends, however it ends. If another process still holds it after
    `wait` seconds, raise InUse, which names `what`, as "the server's folder results/server".
    """
    end = time.monotonic() + wait
    if not os.access(path, os.W_OK):
        folder_at(Path(path).parent)
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b") as file:
        while not _try_lock(file.fileno()):
            if time.monotonic() >= end:
                raise InUse(f"{what} is in use by another process; wait until it has ended, or choose another one")
            time.sleep(0.05)
        yield file  # closing the file releases the lock


def is_locked(path: str | os.PathLike[str]) -> bool:
    """Return whether some process holds the lock file `path` now."""
    try:
        with open(path, "rb") as file:
            return not _try_lock(file.fileno())
    except OSError:
        return False


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Replace a file by text in UTF-8, in one step."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def read_text(path: str | os.PathLike[str], what: str) -> str:
    """Return the text of a file in UTF-8; `what` names it in the error, as "the model" does."""
    try:
        return path_of(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"cannot read {what} {path}: {getattr(error, 'strerror', error)}") from None


def json_value(text: str | bytes) -> Any:
    """Return the value of JSON text; raise ValueError also if it is nested too deep, or has numbers too long."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def write_frame(path: Path, frame: Any) -> None:
    """Replace a file by a pandas DataFrame without its index, in one step, as CSV or Parquet after its suffix."""
    with replacing(path) as temporary:
        if path.suffix == ".csv":
            frame.to_csv(temporary, index=False)
        else:
            frame.to_parquet(temporary, index=False)


def check_writable(path: str | os.PathLike[str]) -> None:
    """Raise if a path cannot be written, before any work is done for it."""
    target = path_of(path)
    if target.is_dir():
        raise InvalidInput(f"cannot write {target}: it is a folder")
    if not target.parent.is_dir():
        raise InvalidInput(f"cannot write {target}: there is no folder {target.parent}")
    target = Path(os.path.realpath(target))
    if not target.parent.is_dir():
        raise InvalidInput(f"cannot write {path}: it is a link into {target.parent}, which is not a folder")
    if not os.access(target.parent, os.W_OK) or (target.exists() and not os.access(target, os.W_OK)):
        raise InvalidInput(f"cannot write {path}: permission denied")


def folder_at(path: str | os.PathLike[str]) -> Path:
    """Return a folder that can be written in, made if it is missing."""
    target = path_of(path)
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = "it is a file" if target.is_file() else error.strerror
        raise InvalidInput(f"cannot make a folder {target}: {why}") from None
    if not os.access(target, os.W_OK):
        raise InvalidInput(f"cannot write in {target}: permission denied")
    return target


class Fields:
    """Named values from outside this process, such as a file's description or a message.

    Parameters
    ----------
    values
        A mapping with text as keys; anything else raises.
    source
        Origin of the values, which begins every error: "results/run.npz", "its reply".
    error
        Class of the errors.

    Examples
    --------
    >>> fields = Fields({"round": 3, "name": "pilot"}, "server.npz")
    >>> fields.integer("round", least=0), fields.text("name")
    (3, 'pilot')
    >>> fields.integer("round", least=5)
    Traceback (most recent call last):
    ...
    fedscaffold.core.errors.InvalidInput: server.npz: round must be a whole number of at least 5, got 3
    """

    def __init__(self, values: Any, source: str, *, error: type[FedScaffoldError] = InvalidInput) -> None:
        self.source, self.error = source, error
        if not isinstance(values, Mapping) or not all(isinstance(name, str) for name in values):
            raise error(f"{source} must have named fields, got {shown(values)}")
        self._values = values

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def names(self) -> list[str]:
        """Return the names of all fields, in their order."""
        return list(self._values)

    def as_dict(self) -> dict[str, Any]:
        """Return all fields as they are."""
        return dict(self._values)

    def only(self, *names: str) -> None:
        """Raise if there are fields with other names."""
        unknown = [shown(name) for name in self._values if name not in names]
        if unknown:
            raise self.error(f"{self.source} has unknown fields: {', '.join(unknown[:5])}")

    def value(self, name: str) -> Any:
        """Return a field as it is; raise if it is missing."""
        if name not in self._values:
            raise self.error(f"{self.source} has no {name}")
        return self._values[name]

    def integer(self, name: str, *, least: int, most: int = 2**63 - 1) -> int:
        """Return a whole number from `least` to `most`."""
        value = self.value(name)
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or not least <= value <= most:
            up_to = "" if most == 2**63 - 1 else f" and at most {most}"
            raise self._refused(name, f"a whole number of at least {least}{up_to}")
        return int(value)

    def number(self, name: str, *, least: float = -math.inf, most: float = math.inf) -> float:
        """Return a finite number from `least` to `most`."""
        value = self.value(name)
        numeric = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
        try:
            found = float(value) if numeric else math.nan
        except OverflowError:
            found = math.inf
        if not math.isfinite(found) or not least <= found <= most:
            bounds = [f"at least {least:g}"] * (least > -math.inf) + [f"at most {most:g}"] * (most < math.inf)
            raise self._refused(
                name, " ".join(["a finite number", *(["of", " and ".join(bounds)] if bounds else [])])
            )
        return found

    def text(self, name: str, *, longest: int = 1000, pattern: str | None = None) -> str:
        """Return text of at most `longest` characters, all of which match the regular expression `pattern`."""
        value = self.value(name)
        if not isinstance(value, str) or len(value) > longest:
            raise self._refused(name, f"text of at most {longest} characters")
        if pattern is not None and not re.fullmatch(pattern, value):
            raise self._refused(name, f"text like {pattern}")
        return value

    def choice(self, name: str, *choices: str) -> str:
        """Return one of these words."""
        value = self.value(name)
        if not isinstance(value, str) or value not in choices:
            raise self._refused(name, "one of " + ", ".join(choices))
        return value

    def flag(self, name: str) -> bool:
        """Return a field that is true or false."""
        value = self.value(name)
        if not isinstance(value, bool):
            raise self._refused(name, "true or false")
        return value

    def integers(self, name: str, *, least: int, most: int = 2**63 - 1, count: int | None = None) -> list[int]:
        """Return a list of whole numbers, of `count` of them if that is given."""
        items = self.items(name, count=count)
        each = Fields({str(k): item for k, item in enumerate(items)}, f"{self.source}: {name}", error=self.error)
        return [each.integer(k, least=least, most=most) for k in each.names()]

    def items(self, name: str, *, count: int | None = None) -> Sequence[Any]:
        """Return a list, of `count` items if that is given."""
        value = self.value(name)
        if not isinstance(value, list | tuple) or (count is not None and len(value) != count):
            raise self._refused(name, "a list" if count is None else f"a list of {count}")
        return value

    def fields(self, name: str) -> "Fields":
        """Return a field that has fields itself."""
        return Fields(self.value(name), f"{self.source}: {name}", error=self.error)

    def array(
        self, name: str, shape: tuple[int | None, ...], *, dtype: DTypeLike = np.float64, finite: bool = True
    ) -> NDArray[Any]:
        """Return an array of this type and shape (None for any length); raise for NaN or infinity if `finite`."""
        value = self.value(name)
        fits = (
            isinstance(value, np.ndarray)
            and value.dtype == np.dtype(dtype)
            and value.ndim == len(shape)
            and all(wanted in (None, there) for wanted, there in zip(shape, value.shape, strict=True))
        )
        if not fits:
            wanted = ", ".join("any" if size is None else str(size) for size in shape)
            raise self._refused(name, f"an array of {np.dtype(dtype)} with shape ({wanted})")
        if finite and value.dtype.kind == "f" and not np.isfinite(value).all():
            wrong = np.count_nonzero(~np.isfinite(value))
            raise self.error(f"{self.source}: {wrong} of the {value.size} numbers of {name} are NaN or infinite")
        return value

    def _refused(self, name: str, wanted: str) -> FedScaffoldError:
        return self.error(f"{self.source}: {name} must be {wanted}, got {shown(self._values[name])}")
