"""A table's rows, client after client, into files, in memory that does not grow with the table.

Rows of a client may be scattered over the table. Put straight into their places they would touch the whole output
again and again, a few bytes in each page. So they are sorted by piece first: the output is cut into pieces of
some megabytes, and each piece has a section of a temporary file to which its rows are appended as they come. Then
piece after piece is put in order in memory and written once.
"""

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.storage.memmap import AT_ONCE, let_go
from fedscaffold.data.encode_rows import TableLayout, encoded_features, encoded_targets, next_places
from fedscaffold.data.on_disk.cache import DESCRIPTION, Pieces, X, Y, description, digest

PIECE = 1 << 24  # bytes of x in order at once


def write_cache(layout: TableLayout, folder: Path, identity: dict[str, Any]) -> None:
    """Write x.npy, y.npy and records.json into a folder, which appears when all is done."""
    with _making(folder, layout.nbytes) as temporary:
        spilled = _spill_by_piece(layout, temporary)
        pieces = _write_pieces(layout, spilled, temporary)
        for array in (spilled.to, spilled.goal, *(column for _, column in spilled.columns)):
            Path(str(array.filename)).unlink()
        (temporary / DESCRIPTION).write_text(description(layout, identity, pieces), encoding="utf-8")


@dataclass(frozen=True)
class SpilledRows:
    """Rows by piece of the output, in table order within each: where they belong, targets, features."""

    to: Any
    goal: Any
    columns: list[tuple[slice, Any]]


def _piece_rows(layout: TableLayout) -> int:
    return max(1, PIECE // (8 * layout.encoding.dim))


def _spill_by_piece(layout: TableLayout, folder: Path) -> SpilledRows:
    """Append each row to the section of its piece, which begins where the piece does."""
    each, n = _piece_rows(layout), layout.rows
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
    return SpilledRows(to, goal, columns)


def _write_pieces(layout: TableLayout, spilled: SpilledRows, folder: Path) -> Pieces:
    """Every piece's rows to their places in it, and the pieces one after another into the files."""
    each, n, dim = _piece_rows(layout), layout.rows, layout.encoding.dim
    pieces = Pieces(each, [], [])
    with open(folder / X, "wb") as x_file, open(folder / Y, "wb") as y_file:
        _header(x_file, (n, dim))
        _header(y_file, layout.encoding.record_shape(n))
        for begin in range(0, n, each):
            end = min(begin + each, n)
            at = spilled.to[begin:end] - begin
            x = np.ones((end - begin, dim))  # ones: an intercept has no column
            y = np.empty(layout.encoding.record_shape(end - begin))
            for place, values in spilled.columns:
                x[at, place] = values[begin:end]
                let_go(values, begin, end)
            y[at] = spilled.goal[begin:end]
            for array in (spilled.to, spilled.goal):
                let_go(array, begin, end)
            x_file.write(x.data)
            y_file.write(y.data)
            pieces.x.append(digest(x))
            pieces.y.append(digest(y))
        for file in (x_file, y_file):
            file.flush()
            os.fsync(file.fileno())
    return pieces


def _header(file: Any, shape: tuple[int, ...]) -> None:
    """Of a .npy file whose numbers follow."""
    descr = np.dtype(np.float64).str
    np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": shape})


def _spill(file: Path, shape: tuple[int, ...], dtype: Any = np.float64) -> Any:
    """An array in a temporary file; its room on the disk is taken now, since a full disk would end the process."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    with open(file, "wb") as made:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(made.fileno(), 0, size)
        else:
            made.truncate(size)
    return np.memmap(file, dtype=dtype, mode="r+", shape=shape)


def _released(blocks: Iterator[Any], arrays: list[Any]) -> Iterator[Any]:
    """The blocks; after every few megabytes of them the arrays' pages leave this process's memory."""
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
    """A folder beside it, ours alone, that takes its name when the block ends without error."""
    temporary = folder.parent / f".{folder.name}.converting"
    try:
        temporary.mkdir(parents=True, exist_ok=True)
        with _locked(temporary):
            for left in temporary.iterdir():  # of a conversion that was killed
                left.unlink()
            try:
                _check_room(temporary, nbytes)
                yield temporary
                if folder.is_dir():
                    folder.rmdir()
                temporary.rename(folder)
            finally:
                if temporary.exists():
                    shutil.rmtree(temporary)
    except OSError as error:
        raise InvalidInput(f"cannot write records to {folder}: {error.strerror or error}") from None


def _check_room(folder: Path, nbytes: int) -> None:
    """Refuse a disk without room for the records and the temporary files, which together are twice as large."""
    room = shutil.disk_usage(folder).free
    if room < 2 * nbytes:
        raise InvalidInput(
            f"records need {nbytes / 2**30:,.1f} GiB of disk, and twice that while they are written, but "
            f"{folder.parent} has {room / 2**30:,.1f} GiB; choose a folder elsewhere"
        )


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Refuse a folder that another process writes to; where the system has no such locks, nothing is checked."""
    if sys.platform == "win32":
        yield
        return
    import fcntl

    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InvalidInput(f"another process is writing records in {folder}; wait until it is done") from None
        yield
    finally:
        os.close(handle)
