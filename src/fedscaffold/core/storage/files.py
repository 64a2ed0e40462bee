"""Files that are complete or missing: written under a temporary name, then renamed."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedscaffold.core.errors import InvalidInput


@contextmanager
def replacing(path: str | os.PathLike[str], *, private: bool = False) -> Iterator[Path]:
    """A temporary path in the same folder, which takes the name `path` when the block ends without error.

    A private file can be read by its owner alone.
    """
    target = Path(path)
    check_writable(target)
    try:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=target.suffix)
    except OSError as error:
        raise InvalidInput(f"cannot write {target}: {error.strerror}") from None
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with open(temporary, "rb") as written:
            os.fsync(written.fileno())
        if not private:
            umask = os.umask(0)
            os.umask(umask)
            temporary.chmod(0o666 & ~umask)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Replace a file by text in UTF-8, in one step."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def read_text(path: str | os.PathLike[str], what: str) -> str:
    """The text of a file in UTF-8; `what` names it in the error, as "the model" does."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"cannot read {what} {path}: {getattr(error, 'strerror', error)}") from None


def write_frame(path: Path, frame: Any) -> None:
    """Replace a file by a pandas DataFrame without its index, in one step, as CSV or Parquet after its suffix."""
    with replacing(path) as temporary:
        if path.suffix == ".csv":
            frame.to_csv(temporary, index=False)
        else:
            frame.to_parquet(temporary, index=False)


def check_writable(path: str | os.PathLike[str]) -> None:
    """Refuse a path that cannot be written, before any work is done for it."""
    target = Path(path)
    if target.is_dir():
        raise InvalidInput(f"cannot write {target}: it is a folder")
    if not target.parent.is_dir():
        raise InvalidInput(f"cannot write {target}: there is no folder {target.parent}")
    if not os.access(target.parent, os.W_OK) or (target.exists() and not os.access(target, os.W_OK)):
        raise InvalidInput(f"cannot write {target}: permission denied")


def folder_at(path: str | os.PathLike[str]) -> Path:
    """A folder that can be written in, made if it is missing."""
    target = Path(path)
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"cannot make a folder {target}: {error.strerror}") from None
    if not os.access(target, os.W_OK):
        raise InvalidInput(f"cannot write in {target}: permission denied")
    return target
