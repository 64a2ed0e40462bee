"""Arrays and a description in one file: NumPy's npz, read back without pickle."""

import hashlib
import json
import os
import signal
import threading
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedscaffold.core.files import json_value, replacing

DESCRIPTION, DIGEST = "description", "digest"
NAMES = "arrays"  # in the description, since a damaged table of contents may lose some without an error


def write(
    path: str | os.PathLike[str],
    arrays: Mapping[str, NDArray[Any]],
    description: dict[str, Any],
    *,
    private: bool = False,
) -> None:
    """Write or replace the file, for its owner alone if it is private. Ctrl-C waits until it is written."""
    text = np.frombuffer(_json({**description, NAMES: sorted(arrays)}).encode(), dtype=np.uint8)
    digest = np.frombuffer(_digest(text, arrays), dtype=np.uint8)
    with interrupts_delayed(), replacing(path, private=private) as temporary, open(temporary, "wb") as file:
        np.savez(file, allow_pickle=False, **{DESCRIPTION: text, DIGEST: digest}, **arrays)


def read(path: str | os.PathLike[str]) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Return (arrays, description) of a file; raise OSError if it cannot be read, ValueError if it is not one."""
    with open(path, "rb") as opened:
        try:
            with np.load(opened, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
            text, digest = arrays.pop(DESCRIPTION), arrays.pop(DIGEST)
            if digest.tobytes() != _digest(text, arrays):
                raise ValueError("its digest does not match; it was damaged, or an earlier version wrote it")
            description = json_value(text.tobytes())
            if not isinstance(description, dict) or description.pop(NAMES) != sorted(arrays):
                raise ValueError("some arrays are missing")
        except Exception as error:  # whatever NumPy, zipfile and json trip over in a file that may hold anything
            why = str(error) or type(error).__name__
            why = why if zipfile.is_zipfile(path) else "it is not an .npz file"  # NumPy advises to load pickles
            raise ValueError(f"{os.fspath(path)} was not written by fedscaffold: {why}") from None
    return arrays, description


def _digest(text: NDArray[Any], arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Return SHA-256 of the description and of every array with its name, type and shape."""
    found = hashlib.sha256(text.tobytes())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        found.update(f"{name} {array.dtype.str} {arrays[name].shape}".encode())
        found.update(array.reshape(-1).view(np.uint8).data)
    return found.digest()


def plain(description: dict[str, Any]) -> dict[str, Any]:
    """Return the description as it comes back from a file: lists for tuples, Python's numbers for NumPy's."""
    return json.loads(_json(description))


def _json(description: dict[str, Any]) -> str:
    def number(item: Any) -> Any:
        if isinstance(item, np.generic):
            return item.item()
        raise TypeError(f"cannot write {item!r} to a file: not a number, a text, or a list of those")

    return json.dumps(description, allow_nan=False, default=number)


@contextmanager
def interrupts_delayed() -> Iterator[None]:
    """Let Ctrl-C wait for the end of the block, on the main thread.

    An archive that is interrupted while it is being opened cannot be closed: Python then prints a traceback of its
    own beside ours. A block that ends by an error raises that error, and Ctrl-C is forgotten.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    caught: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: caught.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)
    if caught:
        os.kill(os.getpid(), signal.SIGINT)
