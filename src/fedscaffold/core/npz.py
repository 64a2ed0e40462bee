"""Arrays and a description in one file: NumPy's npz, read back without pickle.

The description has a digest, and holds one of each array, so that some are read and checked without the others.
"""

import hashlib
import json
import os
import signal
import threading
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedscaffold.core.files import json_value, replacing

DESCRIPTION, DIGEST = "description", "digest"
CHANGED = "its digest does not match; it was damaged, or an earlier version wrote it"
ARRAYS = "arrays"  # digests by name in the description: a damaged table of contents may lose some without an error


def write(
    path: str | os.PathLike[str],
    arrays: Mapping[str, NDArray[Any]],
    description: dict[str, Any],
    *,
    private: bool = False,
) -> None:
    """Write or replace the file, for its owner alone if it is private. Ctrl-C waits until it is written."""
    digests = {name: _digest(name, array) for name, array in arrays.items()}
    text = np.frombuffer(_json({**description, ARRAYS: digests}).encode(), dtype=np.uint8)
    digest = np.frombuffer(hashlib.sha256(text.data).digest(), dtype=np.uint8)
    with interrupts_delayed(), replacing(path, private=private) as temporary, open(temporary, "wb") as file:
        np.savez(file, allow_pickle=False, **{DESCRIPTION: text, DIGEST: digest}, **arrays)


def read(
    path: str | os.PathLike[str], names: Iterable[str] | None = None
) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Return (arrays, description) of a file; raise OSError if it cannot be read, ValueError if it is not one.

    With `names` only these arrays are read and checked, by default all.
    """
    with open(path, "rb") as opened:
        try:
            with np.load(opened, allow_pickle=False) as file:
                text, known = file[DESCRIPTION], {*file.files} - {DESCRIPTION, DIGEST}
                if hashlib.sha256(text.data).digest() != file[DIGEST].tobytes():
                    raise ValueError(CHANGED)
                description = json_value(text.tobytes())
                digests = description.pop(ARRAYS)
                if digests.keys() != known:
                    raise ValueError("some arrays are missing")
                arrays = {name: file[name] for name in (known if names is None else names)}
            if any(_digest(name, array) != digests[name] for name, array in arrays.items()):
                raise ValueError(CHANGED)
        except Exception as error:  # whatever NumPy, zipfile and json trip over in a file that may hold anything
            why = str(error) or type(error).__name__
            why = why if zipfile.is_zipfile(path) else "it is not an .npz file"  # NumPy advises to load pickles
            raise ValueError(f"{os.fspath(path)} was not written by fedscaffold: {why}") from None
    return arrays, description


def _digest(name: str, array: NDArray[Any]) -> str:
    """Return SHA-256 of an array with its name, type and shape."""
    found = hashlib.sha256(f"{name} {array.dtype.str} {array.shape}".encode())
    found.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return found.hexdigest()


def plain(description: dict[str, Any]) -> dict[str, Any]:
    """Return the description as it comes back from a file: lists for tuples, Python's numbers for NumPy's."""
    return json.loads(_json(description))


def _json(description: dict[str, Any]) -> str:
    return json.dumps(description, allow_nan=False, default=plain_number)


def plain_number(item: Any) -> Any:
    """Return a NumPy number as Python's, for JSON; raise TypeError for anything else."""
    if isinstance(item, np.generic):
        return item.item()
    raise TypeError(f"cannot write {item!r} to a file: not a number, a text, or a list of those")


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
