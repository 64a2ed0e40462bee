"""Arrays in files: pages are read ahead of their use and released after it, so that resident memory stays flat."""

import ctypes
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

SHARED = ("r", "r+", "w+")  # modes of numpy.memmap in which the file has all that the memory has
AT_ONCE = 1 << 23  # bytes read ahead, or let go, in one piece


def new_array_file(path: str | os.PathLike[str], shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Return an array of zeros in a new .npy file; raise OSError if the disk has no room for it.

    The room is taken now, since a disk that is full when a page is written back ends the process.
    """
    found = np.lib.format.open_memmap(path, mode="w+", dtype=np.float64, shape=shape)
    if hasattr(os, "posix_fallocate"):
        with open(path, "r+b") as file:
            os.posix_fallocate(file.fileno(), 0, os.fstat(file.fileno()).st_size)
    return found


def in_file(array: Any) -> bool:
    """Return whether an array lies in a memory-mapped file, from which its pages can be read again at any time."""
    base = array
    while base is not None and not isinstance(base, np.memmap):
        base = getattr(base, "base", None)
    return base is not None and base.mode in SHARED


def read_ahead(array: NDArray[Any], begin: int, end: int) -> None:
    """Start reading rows begin to end − 1 of an array that is `in_file`; returns before they are there."""
    _advise(array, begin, end, "MADV_WILLNEED")


def let_go(array: NDArray[Any], begin: int, end: int) -> None:
    """Take rows begin to end − 1 of an array that is `in_file` out of this process's memory.

    The system may keep them in its cache as long as no other process needs the memory.
    """
    _advise(array, begin, end, "MADV_DONTNEED")


def _advise(array: NDArray[Any], begin: int, end: int, advice: str) -> None:
    """Give the system advice about whole pages, which it is free to ignore: its answer is not checked."""
    madvise = _madvise()
    if madvise is None or end <= begin:
        return
    first = array.ctypes.data + begin * array.strides[0]
    start = first // mmap.PAGESIZE * mmap.PAGESIZE
    madvise(start, first + (end - begin) * array.strides[0] - start, getattr(mmap, advice))


@cache
def _madvise() -> Callable[[int, int, int], int] | None:
    """Return the C library's madvise, or None; unlike `mmap.madvise` it lets other threads run meanwhile."""
    if not hasattr(mmap, "MADV_WILLNEED") or not hasattr(mmap, "MADV_DONTNEED"):
        return None
    found: Any = ctypes.CDLL(None).madvise
    found.argtypes, found.restype = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int), ctypes.c_int
    return found


def grouped(sizes: Sequence[int] | NDArray[np.int64], most: int) -> list[tuple[int, int]]:
    """Return (begin, end) of successive groups whose sizes sum to `most` at most; one that is larger is alone."""
    ends = np.cumsum(sizes)
    found, begin = [], 0
    while begin < ends.size:
        before = int(ends[begin - 1]) if begin else 0
        end = max(begin + 1, int(np.searchsorted(ends, before + most, side="right")))
        found.append((begin, end))
        begin = end
    return found


def spans(bounds: NDArray[np.int64], *arrays: NDArray[Any]) -> Iterator[tuple[int, int]]:
    """Return (bounds[i], bounds[i + 1]) in order, for a pass over these rows of arrays.

    Of arrays that lie in files, some megabytes are read ahead, and let go when the pass has left them.
    """
    there = [array for array in arrays if in_file(array)]
    return _read_spans(bounds, there) if there else pairwise(bounds.tolist())


def _read_spans(bounds: NDArray[np.int64], there: Sequence[NDArray[Any]]) -> Iterator[tuple[int, int]]:
    width = sum(array.strides[0] for array in there)
    groups = [(int(bounds[i]), int(bounds[j]), i, j) for i, j in grouped(np.diff(bounds) * width, AT_ONCE)]
    for group, (begin, end, i, j) in enumerate(groups):
        if group == 0:
            _all(read_ahead, there, begin, end)
        if group + 1 < len(groups):
            _all(read_ahead, there, *groups[group + 1][:2])
        yield from pairwise(bounds[i : j + 1].tolist())
        _all(let_go, there, begin, end)


def _all(advise: Callable[..., None], arrays: Sequence[NDArray[Any]], begin: int, end: int) -> None:
    for array in arrays:
        advise(array, begin, end)
