"""A folder with a table's encoded records: x.npy, y.npy, and records.json, which names their table and settings.

Rows of a client may be scattered over the table. Put straight into their places they would touch the whole output
again and again, a few bytes in each page. So they are sorted by piece first: the output is cut into pieces of
some megabytes, and each piece has a section of a temporary file to which its rows are appended as they come. Then
piece after piece is put in order in memory and written once. Memory does not grow with the table.

The folder is written under another name and renamed when it is complete, so that it is complete or missing.
records.json holds a digest of itself and of each piece. All are checked when the folder is opened, on all cores
and at about the speed of the disk, so that damage is reported.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.files import exclusive, json_value
from fedscaffold.core.machine import AT_ONCE, let_go
from fedscaffold.core.types import Array
from fedscaffold.data.encoded import (
    EncodedProblem,
    TableLayout,
    encoded_features,
    encoded_problem,
    encoded_targets,
    next_places,
)
from fedscaffold.data.encoding import Encoding
from fedscaffold.data.settings import TableSettings

FORMAT = "fedscaffold records 2"
X, Y, DESCRIPTION = "x.npy", "y.npy", "records.json"
AGAIN = "choose another folder, or remove this one to convert the table again"
PIECE = 1 << 24  # bytes of x in order at once: large enough to be written at full speed, small beside any memory
NOT_IN_RECORDS = ("l2", "weights", "delimiter", "decimal", "encoding")  # settings that do not change the numbers


class CacheMismatch(InvalidInput):
    """A cache folder holds records of another table or of other settings."""


def cache_identity(files: Sequence[Path], settings: TableSettings) -> dict[str, Any]:
    """Return what makes two folders the same: the files' names, sizes and times of change, and the settings."""
    known = [(file.name, file.stat()) for file in files]
    sources = [{"name": name, "size": stat.st_size, "modified": stat.st_mtime_ns} for name, stat in known]
    options = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in vars(settings).items()
        if name not in NOT_IN_RECORDS and not (name in ("exposure", "offset", "weight") and value is None)
    }
    options |= {"drop": sorted(settings.drop), "reference": dict(settings.reference)}
    return {"source": sources, "options": options}


def cache_exists(folder: Path) -> bool:
    """Return whether there are records to open, False if they can be written; raise otherwise."""
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


def remove_cache(folder: Path) -> None:
    """Remove a folder's records, and nothing else."""
    if cache_exists(folder):
        for name in (DESCRIPTION, X, Y):
            (folder / name).unlink(missing_ok=True)
        if not any(folder.iterdir()):
            shutil.rmtree(folder)


# Reading


def open_cache(folder: Path, identity: dict[str, Any], settings: TableSettings) -> EncodedProblem:
    """Return the problem on a folder's numbers, memory-mapped; raise unless they belong to `identity`."""
    try:
        found = json_value((folder / DESCRIPTION).read_text(encoding="utf-8"))
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise CacheMismatch(f"{folder} holds records of another format than {FORMAT!r}; {AGAIN}")
        if found.pop("digest") != _digest(found):
            raise ValueError(f"{DESCRIPTION} does not match its digest")
        _check_identity(folder, found, identity)
        encoding = Encoding.from_json(json.dumps(found["encoding"]))
        names = tuple(found["clients"])
        sizes = np.array(found["sizes"], dtype=np.int64)
        rows, pieces = int(sizes.sum()), found["pieces"]
        x, y = _mapped(folder / X, (rows, encoding.dim)), _mapped(folder / Y, encoding.record_shape(rows))
        _check_numbers(X, x, pieces["rows"], pieces["x"])
        _check_numbers(Y, y, pieces["rows"], pieces["y"])
        return encoded_problem(x, y, encoding, names, sizes, settings)
    except InvalidInput:
        raise
    except (OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        raise CacheMismatch(f"{folder} holds records that are damaged ({error}); {AGAIN}") from None


def _digest(content: Any) -> str:
    """Return the SHA-256 digest of numbers, or of a description."""
    if isinstance(content, dict):
        content = json.dumps(content, allow_nan=False, sort_keys=True).encode()
    return hashlib.sha256(content).hexdigest()


def _check_identity(folder: Path, found: dict[str, Any], identity: dict[str, Any]) -> None:
    """Raise if records are of another table, of this one before it changed, or of other settings."""
    theirs, ours = found["source"], identity["source"]
    if [file["name"] for file in theirs] != [file["name"] for file in ours]:
        which = ", ".join(file["name"] for file in theirs[:3]) + (", ..." if len(theirs) > 3 else "")
        raise CacheMismatch(f"{folder} holds the records of another table, {which}; {AGAIN}")
    for old, new in zip(theirs, ours, strict=True):
        if old != new:
            raise CacheMismatch(f"{new['name']} has changed since its records were written to {folder}; {AGAIN}")
    mine, own = identity["options"], found["options"]
    for name in {**mine, **own}:
        if mine.get(name) != own.get(name):
            held = f"with {name}={own[name]!r}" if name in own else f"without {name}=..."
            raise CacheMismatch(f"{folder} holds this table's records {held}, not {mine.get(name)!r}; {AGAIN}")


def _mapped(file: Path, shape: tuple[int, ...]) -> Array:
    """Return a file's array as it lies there; a plain view, since operations on numpy.memmap take longer."""
    try:
        found = np.asarray(np.load(file, mmap_mode="r", allow_pickle=False))
    except Exception as error:  # whatever NumPy trips over in a header that may hold anything
        raise ValueError(f"{file.name}: {error}") from None
    if found.shape != shape or found.dtype != np.float64 or not found.flags.c_contiguous:
        raise ValueError(f"{file.name} should hold float64 numbers of shape {shape}")
    return found


def _check_numbers(name: str, numbers: Array, rows: int, digests: Sequence[str]) -> None:
    """Raise if a piece does not match its digest; each is let go when it has been read."""

    def check(begin: int) -> None:
        end = min(begin + rows, len(numbers))
        if _digest(numbers[begin:end]) != digests[begin // rows]:
            raise ValueError(f"rows {begin:,} to {end - 1:,} of {name} do not match their digest")
        let_go(numbers, begin, end)

    with ThreadPoolExecutor(os.cpu_count()) as threads:  # hashing lets other threads run
        list(threads.map(check, range(0, len(numbers), rows)))


# Writing


def write_cache(layout: TableLayout, folder: Path, identity: dict[str, Any]) -> None:
    """Write x.npy, y.npy and records.json into a folder, which appears when all is done."""
    with _making(folder, layout.nbytes) as temporary:
        content = {
            "format": FORMAT,
            **identity,
            "encoding": json.loads(layout.encoding.to_json()),
            "clients": layout.names,
            "sizes": layout.sizes.tolist(),
            "pieces": _write_numbers(layout, temporary),
        }
        text = json.dumps({**content, "digest": _digest(content)}, indent=1, allow_nan=False)
        (temporary / DESCRIPTION).write_text(text, encoding="utf-8")


def _write_numbers(layout: TableLayout, folder: Path) -> dict[str, Any]:
    """Write x.npy and y.npy; return the number of rows of a piece, and the pieces' digests."""
    each, n, dim = max(1, PIECE // (8 * layout.encoding.dim)), layout.rows, layout.encoding.dim
    to, goal, columns = _spill_by_piece(layout, each, folder)
    pieces: dict[str, Any] = {"rows": each, "x": [], "y": []}
    with open(folder / X, "wb") as x_file, open(folder / Y, "wb") as y_file:
        for file, shape in ((x_file, (n, dim)), (y_file, layout.encoding.record_shape(n))):
            header = {"descr": np.dtype(np.float64).str, "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)
        for begin in range(0, n, each):
            end = min(begin + each, n)
            at = to[begin:end] - begin
            x = np.ones((end - begin, dim))  # ones: an intercept has no column
            y = np.empty(layout.encoding.record_shape(end - begin))
            for place, values in columns:
                x[at, place] = values[begin:end]
            y[at] = goal[begin:end]
            for array in (to, goal, *(values for _, values in columns)):
                let_go(array, begin, end)
            x_file.write(x.data)
            y_file.write(y.data)
            pieces["x"].append(_digest(x))
            pieces["y"].append(_digest(y))
        for file in (x_file, y_file):
            file.flush()
            os.fsync(file.fileno())
    for array in (to, goal, *(values for _, values in columns)):
        Path(str(array.filename)).unlink()
    return pieces


def _spill_by_piece(layout: TableLayout, each: int, folder: Path) -> tuple[Any, Any, list[tuple[slice, Any]]]:
    """Append each row to the section of its piece, in table order; return rows' places, targets and features."""
    n = layout.rows
    to, goal = _spill(folder / "to", (n,), np.int64), _spill(folder / "goal", layout.encoding.record_shape(n))
    slots = _spill(folder / "slots", (n,), np.int64)
    free = np.arange(0, n, each)
    first = 0
    for rows, values in _released(encoded_targets(layout), [to, goal, slots]):
        slot = next_places(rows // each, free)
        to[slot], goal[slot] = rows, values
        slots[first : first + rows.size] = slot
        first += rows.size
    columns: list[tuple[slice, Any]] = []
    used = [slots]
    for first, place, part in _released(encoded_features(layout), used):
        if first == 0:
            columns.append((place, _spill(folder / f"columns {len(columns)}", (n, part.shape[1]))))
            used.append(columns[-1][1])
        used[-1][slots[first : first + len(part)]] = part
    Path(str(slots.filename)).unlink()
    return to, goal, columns


def _spill(file: Path, shape: tuple[int, ...], dtype: Any = np.float64) -> Any:
    """Return an array in a temporary file; its disk space is reserved, since a full disk would end the process."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    with open(file, "wb") as made:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(made.fileno(), 0, size)
        else:
            made.truncate(size)
    return np.memmap(file, dtype=dtype, mode="r+", shape=shape)


def _released(blocks: Iterator[Any], arrays: list[Any]) -> Iterator[Any]:
    """Return the blocks; after every few megabytes of them the arrays' pages leave this process's memory."""
    written = 0
    for block in blocks:
        yield block
        written += sum(part.nbytes for part in block if isinstance(part, np.ndarray))
        if written >= AT_ONCE:
            written = 0
            for array in arrays:
                let_go(array, 0, len(array))


@contextmanager
def _making(folder: Path, nbytes: int) -> Iterator[Path]:
    """Make a folder beside it, for this process alone, that takes its name when the block ends without error."""
    temporary = folder.parent / f".{folder.name}.converting"
    lock = temporary / "lock"
    try:
        with exclusive(lock, f"the folder {folder} for records"):
            for left in temporary.iterdir():  # of a conversion that was killed
                if left != lock:
                    left.unlink()
            try:
                room = shutil.disk_usage(temporary).free
                if room < 2 * nbytes:
                    raise InvalidInput(
                        f"records need {nbytes / 2**30:,.1f} GiB of disk, and twice that while they are written, "
                        f"but {folder.parent} has {room / 2**30:,.1f} GiB; choose a folder elsewhere"
                    )
                yield temporary
                lock.unlink()
                if folder.is_dir():
                    folder.rmdir()
                temporary.rename(folder)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        raise InvalidInput(f"cannot write records to {folder}: {error.strerror or error}") from None
