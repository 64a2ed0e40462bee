"""How kernels are compiled, and where their machine code is kept for the next process.

Numba keeps it beside the source, or in the user's cache folder. Where neither can be written, as in a container
without a home, it goes to a folder of this user in the system's temporary folder; where that is not ours alone
either, nothing is kept, and every process compiles anew: the files hold code, so that nobody else may write them.
"""

import os
import stat
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numba import types
from numba.core import caching

from fedscaffold.core.errors import FedScaffoldError
from fedscaffold.core.storage.lock import exclusive

LONGEST_COMPILATION = 120.0  # seconds that a process waits for another that compiles the same kernel


def _can_cache() -> bool:
    """Whether Numba finds a place for the machine code of this package; sets one where it does not."""
    if _has_place():
        return True
    folder = _own_folder()
    if folder is None:
        return False
    settings: Any = numba.config
    settings.CACHE_DIR = str(folder)
    return _has_place()


def _has_place() -> bool:
    """Whether one of Numba's own rules finds a folder that can be written."""
    try:
        caching.CompileResultCacheImpl(_has_place)
    except RuntimeError:  # no locator available
        return False
    return True


def _own_folder() -> Path | None:
    """A folder in the temporary one that this user alone can read and write; None where there is none."""
    if not hasattr(os, "getuid"):
        return None
    try:
        folder = Path(tempfile.gettempdir()) / f"fedscaffold-kernels-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return None
    ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
    return folder if ours else None


compiled: Any = numba.njit(nogil=True, cache=_can_cache())


def numbers(dtype: Any, ndim: int) -> Any:
    """The type of an array that a kernel reads: of any layout from two dimensions on, contiguous with one."""
    return types.Array(numba.from_dtype(np.dtype(dtype)), ndim, "C" if ndim == 1 else "A", readonly=True)


def compiled_for(function: Any, *arguments: Any) -> Any:
    """A function without result, compiled for these types of arguments alone.

    Without them Numba would compile again for each layout of an array, and for arrays that can or cannot be
    written; with them it takes all of these for the type that is given.
    """
    dispatcher, constants = compiled(function), [cell.cell_contents for cell in function.__closure__ or ()]
    with _alone(dispatcher.stats.cache_path, f"{function.__name__}{constants}{arguments}"):
        dispatcher.compile(types.void(*arguments))
    dispatcher.disable_compile()
    return dispatcher


@contextmanager
def _alone(folder: str | None, kernel: str) -> Iterator[None]:
    """Let other processes that want the same kernel wait, so that they find its machine code instead of making it.

    Parameters
    ----------
    folder
        Where the machine code is kept; None if it is not.
    kernel
        What the kernel is made from.
    """
    with ExitStack() as held:
        if folder is not None:
            lock = Path(folder) / f"compiling-{zlib.crc32(kernel.encode()):08x}.lock"
            with suppress(FedScaffoldError, OSError):  # where nobody can wait, compiling twice only takes longer
                held.enter_context(exclusive(lock, "a kernel", wait=LONGEST_COMPILATION))
        yield


INT, FLOAT, KEY, NONE = numba.int64, numba.float64, types.UniTuple(numba.int64, 2), types.none
ROUND_ARGUMENTS = (
    *(numbers("f8", 3), numbers("f8", 3), numbers("f8", 2), FLOAT, FLOAT, numbers("i8", 2), INT, numbers("i8", 2)),
    *(KEY, INT, INT, INT, INT, types.Array(FLOAT, 3, "C")),
)
"""Types of what every kernel takes: θ, ξ, anchor, γ, pull, H, first step, clients; key, round, first client,
begin, end, out."""
