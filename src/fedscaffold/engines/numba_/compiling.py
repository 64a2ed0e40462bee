"""How kernels are compiled, and where their machine code is kept for the next process.

Numba keeps it beside the source, or in the user's cache folder. Where neither can be written, as in a container
without a home, it goes to a folder of this user in the system's temporary folder; where that is not ours alone
either, nothing is kept, and every process compiles anew: the files hold code, so that nobody else may write them.
"""

import os
import stat
import tempfile
from pathlib import Path
from typing import Any

import numba
from numba.core import caching


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
