"""A folder with a table's encoded records: x.npy, y.npy, and records.json, which says of which table they are.

The folder is written under another name and renamed when it is complete, so that it is complete or missing.
records.json holds a digest of itself and of each piece of some megabytes of the numbers. All are checked when the
folder is opened, on all cores and at about the speed of the disk, so that damage is refused and named.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.storage.files import json_value
from fedscaffold.core.storage.memmap import let_go
from fedscaffold.core.types import Array
from fedscaffold.data.build import encoded_problem
from fedscaffold.data.encode_rows import TableLayout
from fedscaffold.data.encoded import EncodedProblem
from fedscaffold.data.encoding import Encoding
from fedscaffold.data.options import TableOptions

FORMAT = "fedscaffold records 2"
X, Y, DESCRIPTION = "x.npy", "y.npy", "records.json"
AGAIN = "choose another folder, or remove this one to convert the table again"


class Pieces(NamedTuple):
    """Digests of the numbers of x.npy and y.npy, `rows` rows at a time."""

    rows: int
    x: list[str]
    y: list[str]


class CacheMismatch(InvalidInput):
    """A cache folder holds other records than those of the table and options that were given."""


def cache_identity(files: Sequence[Path], choices: TableOptions) -> dict[str, Any]:
    """What makes two folders the same: the files, by name, size and time of change, and the columns' options."""
    sources = []
    for file in files:
        known = file.stat()
        sources.append({"name": file.name, "size": known.st_size, "modified": known.st_mtime_ns})
    options = {
        "target": choices.target,
        "client": choices.client,
        "features": None if choices.features is None else list(choices.features),
        "drop": sorted(choices.drop),
        "categorical": list(choices.categorical),
        "reference": dict(choices.reference),
        "dates": list(choices.dates),
        "kind": choices.kind,
        "missing": choices.missing,
        "standardize": bool(choices.standardize),
        "intercept": bool(choices.intercept),
        "min_rows": int(choices.min_rows),
        "max_categories": int(choices.max_categories),
        **choices.record_columns,
    }
    return {"source": sources, "options": options}


def description(layout: TableLayout, identity: dict[str, Any], pieces: Pieces) -> str:
    """Content of records.json: the identity, the encoding, the clients' names and sizes, and digests."""
    content = {
        "format": FORMAT,
        **identity,
        "encoding": json.loads(layout.encoding.to_json()),
        "clients": layout.names,
        "sizes": layout.sizes.tolist(),
        "pieces": pieces._asdict(),
    }
    return json.dumps({**content, "digest": _digest_of(content)}, indent=1, allow_nan=False)


def digest(numbers: Any) -> str:
    """SHA-256 of the bytes of an array."""
    return hashlib.sha256(numbers).hexdigest()


def _digest_of(content: dict[str, Any]) -> str:
    return digest(json.dumps(content, allow_nan=False, sort_keys=True).encode())


def cache_exists(folder: Path) -> bool:
    """Whether there are records to open; False where they can be written, anything else is refused."""
    if folder.is_dir():
        if (folder / DESCRIPTION).is_file():
            return True
        if any(folder.iterdir()):
            raise InvalidInput(
                f"{folder} holds files, but no records that fedscaffold wrote; choose another folder for records"
            )
    elif folder.exists():
        raise InvalidInput(f"cannot write records to {folder}: it is a file, but must be a folder")
    return False


def open_cache(folder: Path, identity: dict[str, Any], choices: TableOptions) -> EncodedProblem:
    """The problem on a folder's numbers, memory-mapped; refused unless they are those of `identity`."""
    try:
        found = json_value((folder / DESCRIPTION).read_text(encoding="utf-8"))
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise CacheMismatch(f"{folder} holds records of another format than {FORMAT!r}; {AGAIN}")
        if found.pop("digest") != _digest_of(found):
            raise ValueError(f"{DESCRIPTION} does not match its digest")
        _check(folder, found, identity)
        encoding = Encoding.from_json(json.dumps(found["encoding"]))
        names = tuple(found["clients"])
        sizes = np.array(found["sizes"], dtype=np.int64)
        rows = int(sizes.sum())
        x, y = _mapped(folder / X, (rows, encoding.dim)), _mapped(folder / Y, encoding.record_shape(rows))
        pieces = Pieces(**found["pieces"])
        _check_numbers(X, x, pieces.rows, pieces.x)
        _check_numbers(Y, y, pieces.rows, pieces.y)
        return encoded_problem(x, y, encoding, names, sizes, choices)
    except (OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise CacheMismatch(f"{folder} holds records that are damaged ({error}); {AGAIN}") from None


def remove_cache(folder: Path) -> None:
    """Remove a folder's records, and nothing else."""
    if cache_exists(folder):
        for name in (DESCRIPTION, X, Y):
            (folder / name).unlink(missing_ok=True)
        if not any(folder.iterdir()):
            shutil.rmtree(folder)


def _mapped(file: Path, shape: tuple[int, ...]) -> Array:
    """A file's array as it lies there; a plain view, since operations on numpy.memmap take longer."""
    try:
        found = np.asarray(np.load(file, mmap_mode="r", allow_pickle=False))
    except Exception as error:  # whatever NumPy trips over in a header that may hold anything
        raise ValueError(f"{file.name}: {error}") from None
    if found.shape != shape or found.dtype != np.float64 or not found.flags.c_contiguous:
        raise ValueError(f"{file.name} should hold float64 numbers of shape {shape}")
    return found


def _check_numbers(name: str, numbers: Array, rows: int, digests: Sequence[str]) -> None:
    """Compare the digest of every piece; each is let go when it has been read."""
    begins = range(0, len(numbers), rows)

    def is_sound(begin: int) -> bool:
        end = min(begin + rows, len(numbers))
        sound = digest(numbers[begin:end]) == digests[begin // rows]
        let_go(numbers, begin, end)
        return sound

    with ThreadPoolExecutor(os.cpu_count()) as threads:  # hashing lets other threads run
        for begin, sound in zip(begins, threads.map(is_sound, begins), strict=True):
            if not sound:
                end = min(begin + rows, len(numbers))
                raise ValueError(f"rows {begin:,} to {end - 1:,} of {name} do not match their digest")


def _check(folder: Path, found: dict[str, Any], identity: dict[str, Any]) -> None:
    """Refuse what was made of another table, of this one before it changed, or with other options."""
    theirs, ours = found["source"], identity["source"]
    if [file["name"] for file in theirs] != [file["name"] for file in ours]:
        which = ", ".join(file["name"] for file in theirs[:3]) + (", ..." if len(theirs) > 3 else "")
        raise CacheMismatch(f"{folder} holds the records of another table, {which}; {AGAIN}")
    for old, new in zip(theirs, ours, strict=True):
        if old != new:
            raise CacheMismatch(f"{new['name']} has changed since its records were written to {folder}; {AGAIN}")
    mine, own = identity["options"], found["options"]
    differ = [name for name in {**mine, **own} if mine.get(name) != own.get(name)]
    if differ:
        name = differ[0]
        held = f"with {name}={own[name]!r}" if name in own else f"without {name}=..."
        raise CacheMismatch(f"{folder} holds this table's records {held}, not {mine.get(name)!r}; {AGAIN}")
