"""The machine: memory that this process may use, arrays in files, and the threads of linear algebra."""

import ctypes
import mmap
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache, wraps
from itertools import pairwise
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedscaffold.core.errors import InvalidInput

P = ParamSpec("P")
R = TypeVar("R")
LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")  # of a container


def memory_limit(container_limits: Sequence[str] = LIMITS) -> int | None:
    """Return the bytes of memory that machine, container and process limit allow; None if no limit is known.

    The container's limit is the number in any of these files.
    """
    found = [limit for limit in (_machine(), _process(), *map(_container, container_limits)) if limit is not None]
    return min(found, default=None)


def check_memory(what: str, nbytes: int) -> None:
    """Raise if memory cannot hold a size, before allocating it; `what` needs it: "1,000 clients"."""
    if nbytes < 1 << 26:  # 64 MiB are always there
        return
    limit, huge = memory_limit(), 2**62  # bytes: no machine has more
    if nbytes > (huge if limit is None else limit):
        have = "" if limit is None else f", and there are {limit / 2**30:,.1f} GiB"
        size = f"{nbytes / 2**30:,.1f}" if nbytes < huge else "far too many"
        raise InvalidInput(f"{what} would take {size} GiB of memory{have}")


def _machine() -> int | None:
    names = getattr(os, "sysconf_names", {})
    if "SC_PHYS_PAGES" not in names or "SC_PAGE_SIZE" not in names:
        return None
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _process() -> int | None:
    try:
        import resource
    except ImportError:  # Windows
        return None
    given = [resource.getrlimit(which)[0] for which in (resource.RLIMIT_DATA, resource.RLIMIT_AS)]
    return min((limit for limit in given if limit != resource.RLIM_INFINITY), default=None)


def _container(path: str) -> int | None:
    try:
        text = Path(path).read_text().strip()
    except OSError:  # another system, or no container
        return None
    return int(text) if text.isdigit() else None


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
        ahead = groups[:2] if group == 0 else groups[group + 1 : group + 2]
        for array in there:
            for first, last, *_ in ahead:
                read_ahead(array, first, last)
        yield from pairwise(bounds[i : j + 1].tolist())
        for array in there:
            let_go(array, begin, end)


def one_blas_thread(function: Callable[P, R]) -> Callable[P, R]:
    """Return a function that keeps linear algebra to one thread while the function runs.

    If blocks of clients run on all cores, each with small matrices, a BLAS that starts threads for every product
    slows everything down several times. And its sums depend in the last bits on the number of threads.
    """

    @wraps(function)
    def limited(*args: P.args, **kwargs: P.kwargs) -> R:
        with _libraries("scipy.linalg" in sys.modules).limit(limits=1, user_api="blas"):
            return function(*args, **kwargs)

    return limited


@cache
def _libraries(with_scipy: bool) -> Any:
    """Return the libraries of NumPy and, once loaded, of SciPy, found once each, since that takes milliseconds."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
