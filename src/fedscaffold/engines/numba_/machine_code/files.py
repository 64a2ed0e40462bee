"""Where the machine code of kernels is kept for the next process, and how it is told whether it may be used.

A file's name is a digest of all that the code depends on: the kernel, the source of this engine, the versions of
Python, Numba and LLVM, the processor and its features, and Numba's settings. What it holds begins with a digest of
the rest: a damaged file is not used, and replaced.

The files hold code, so that nobody else may write them: they lie where Numba's own are, in the folder that
NUMBA_CACHE_DIR names, beside the source, or in the user's cache folder; where none of these can be written, in a
folder of this user alone in the system's temporary one; where there is none either, nothing is kept.
"""

import hashlib
import json
import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import llvmlite
from llvmlite import binding as llvm

from fedscaffold.core.errors import FedScaffoldError
from fedscaffold.core.files import exclusive, replace_bytes

LONGEST_COMPILATION = 120.0  # seconds that a process waits for another that compiles the same kernel
ENGINE = Path(__file__).parent.parent
CACHE_VARIABLE = "NUMBA_CACHE_DIR"
DIGEST_BYTES = 32


class MachineCode(NamedTuple):
    """A compiled kernel as bytes that can be written to a file, with what a call of it must know.

    Parameters
    ----------
    kernel
        The kernel, an object file.
    entry
        A function that takes the kernel's arguments from memory and calls it, an object file.
    arguments
        What each of the kernel's arguments must be: see `call.Kernel`.
    needs_numba
        Whether it calls functions of Numba's own, so that Numba must be there before it is loaded.
    """

    kernel: bytes
    entry: bytes
    arguments: tuple[str, ...]
    needs_numba: bool


def find(name: str) -> MachineCode | None:
    """The kept machine code of a kernel; None where there is none that is whole and made for this machine."""
    path = _path(name)
    if path is None:
        return None
    try:
        kept = path.read_bytes()
    except OSError:
        return None
    digest, content = kept[:DIGEST_BYTES], kept[DIGEST_BYTES:]
    if hashlib.sha256(content).digest() != digest:
        return None
    header, _, code = content.partition(b"\n")
    length, needs_numba, *arguments = json.loads(header)
    return MachineCode(code[:length], code[length:], tuple(arguments), needs_numba)


def keep(name: str, code: MachineCode) -> None:
    """Keep machine code for the next process, where there is a place for it."""
    path = _path(name)
    if path is None:
        return
    header = json.dumps([len(code.kernel), code.needs_numba, *code.arguments]).encode()
    content = header + b"\n" + code.kernel + code.entry
    with suppress(FedScaffoldError, OSError):  # a full disk only means that the next process compiles again
        replace_bytes(path, [hashlib.sha256(content).digest(), content])


@contextmanager
def alone(name: str) -> Iterator[None]:
    """Let other processes that want the same kernel wait, and then find its machine code instead of making it."""
    with ExitStack() as held:
        path = _path(name)
        if path is not None:
            with suppress(FedScaffoldError, OSError):  # where nobody can wait, compiling twice only takes longer
                held.enter_context(exclusive(path.with_suffix(".lock"), "a kernel", wait=LONGEST_COMPILATION))
        yield


def _path(name: str) -> Path | None:
    place = folder()
    if place is None:
        return None
    digest = hashlib.sha256(f"{name} {_surroundings()}".encode()).hexdigest()
    return place / f"{digest[:32]}.kernel"


@cache
def _surroundings() -> str:
    """All that machine code depends on besides the kernel's name."""
    source = hashlib.sha256()
    for path in sorted(ENGINE.rglob("*.py")):
        source.update(path.read_bytes())
    settings = Path(".numba_config.yaml")  # which Numba reads
    return repr(
        (
            source.hexdigest(),
            (sys.implementation.cache_tag, version("numba"), llvmlite.__version__),
            (llvm.get_process_triple(), llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()),
            sorted((k, v) for k, v in os.environ.items() if k.startswith("NUMBA_") and k != CACHE_VARIABLE),
            settings.read_text() if settings.is_file() else "",
        )
    )


@cache
def folder() -> Path | None:
    """The first folder of those named above that can be written; None where there is none."""
    named = os.environ.get(CACHE_VARIABLE)
    places = [Path(named) / "fedscaffold"] if named else [ENGINE / "__pycache__", _user_folder()]
    return next((place for place in places if place and _writable(place)), None) or own_folder()


def _user_folder() -> Path | None:
    """The folder for what the programs of this user keep from run to run; None for a user without a home."""
    named = os.environ.get("LOCALAPPDATA" if os.name == "nt" else "XDG_CACHE_HOME")
    try:
        return Path(named or Path.home() / ".cache") / "fedscaffold"
    except RuntimeError:
        return None


def _writable(place: Path) -> bool:
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(place, os.W_OK)


def own_folder() -> Path | None:
    """A folder in the temporary one that this user alone can read and write; None where there is none."""
    if not hasattr(os, "getuid"):
        return None
    try:
        place = Path(tempfile.gettempdir()) / f"fedscaffold-kernels-{os.getuid()}"
        place.mkdir(mode=0o700, exist_ok=True)
        found = place.lstat()
    except OSError:
        return None
    ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
    return place if ours else None
