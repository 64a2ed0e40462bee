"""Hand-written C for the shape of a workload, as a contender: limit.c, and limit_avx512.c where it applies.

Several forms are compiled: widths of vectors, one, two or four clients side by side, one or two classes at once,
and on machines with AVX-512 the form that copies short rows. They draw the same records as ours and compute the
same models up to rounding.
"""

import ctypes
import itertools
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.contenders import CLASSES, L2, LOCAL_STEPS, RECORDS, SEED, Round, Workload
from fedscaffold.core.types import Array

SOURCES = Path(__file__).parent
LOSSES = {"ridge": 0, "logistic": 1, "multinomial": 2}
SMALL_STEP = 400  # numbers read by a step, below which two clients side by side may be faster
VECTOR_BYTES = 64  # the largest


def compiler() -> str | None:
    """The machine's C compiler, if it has one."""
    return shutil.which("cc")


def features() -> set[str]:
    """Vector instructions of this machine's processor, as Linux calls them."""
    listed = Path("/proc/cpuinfo")
    return set(listed.read_text().split()) if listed.exists() else set()


def widths_here() -> tuple[int, ...]:
    """Bytes of the two widest vectors that this machine's processor has, of those that limit.c is written for."""
    here = features()
    return (*(16,), *(32,) * ("avx2" in here), *(64,) * ("avx512dq" in here))[-2:]


def forms(work: Workload, widths: tuple[int, ...]) -> dict[str, list[str]]:
    """What to compile for a workload: the name of each form, and the compiler's arguments."""
    dim = work.dim // (CLASSES if work.problem.kind == "multinomial" else 1)
    shape = [f"-DDIM={dim}", f"-DBATCH={work.batch or 0}", f"-DRECORDS={RECORDS}"]
    shape += [f"-DLOSS={LOSSES[work.problem.kind]}"]
    if work.problem.kind == "multinomial":
        shape += [f"-DCLASSES={CLASSES}"]
    if work.dtype == "float32":
        shape += ["-DSINGLE"]
    found = {}
    clients: tuple[int, ...] = (1, 2) if (work.batch or RECORDS) * dim <= SMALL_STEP else (1,)
    if work.batch == 1 and work.problem.kind != "multinomial":
        clients = (1, 2, 4)
    classes = (1, 2) if work.problem.kind == "multinomial" else (1,)
    for width, together, at_once in itertools.product(widths, clients, classes):
        options = [f"-DVECTOR={width}", f"-DTOGETHER={together}", f"-DAT_ONCE={at_once}", "limit.c"]
        name = f"{width}_bytes_{together}_together" + f"_{at_once}_classes" * (len(classes) > 1)
        found[name] = [*shape, *options]
    copied = work.batch is not None and work.batch <= 16 and work.dtype == "float64"
    if 64 in widths and copied and work.problem.kind != "multinomial":
        found["avx512"] = [*shape[:2], "limit_avx512.c"]
    return found


def library(arguments: list[str], folder: Path, name: str, flags: tuple[str, ...] = ("-march=native",)) -> Any:
    """The function `local_sgd` of a compiled form."""
    path = folder / f"{name}.so"
    fast = "-ffast-math" if arguments[-1] == "limit_avx512.c" else "-fno-math-errno"
    command = [compiler() or "cc", "-O3", *flags, fast, "-shared", "-fPIC", *arguments[:-1]]
    subprocess.run([*command, str(SOURCES / arguments[-1]), "-o", str(path)], check=True)
    return ctypes.CDLL(str(path))


@contextmanager
def c_limit(
    work: Workload, flags: tuple[str, ...] = ("-march=native",), widths: tuple[int, ...] | None = None
) -> Iterator[dict[str, Round]]:
    """One round in every form of the C code, by name."""
    with tempfile.TemporaryDirectory() as folder:
        found = {}
        for name, arguments in forms(work, widths or widths_here()).items():
            loaded = library(arguments, Path(folder), name, flags)
            entry = f"local_sgd_{work.problem.kind}" if arguments[-1] == "limit_avx512.c" else "local_sgd"
            found[name] = _round(getattr(loaded, entry), work)
        yield found


def _round(function: Any, work: Workload) -> Round:
    pointer, integer, real = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double
    function.restype = None
    function.argtypes = [pointer, pointer, integer, integer, pointer, pointer, pointer]
    function.argtypes += [real, integer, real, ctypes.c_uint64, ctypes.c_uint32]
    theta, xi = np.zeros(work.dim), np.zeros((work.clients, work.dim))
    out = np.empty_like(xi)
    x, y = _with_room(work.problem.x, work.dtype), _with_room(work.problem.y, work.dtype)

    def one_round() -> Array:
        function(
            x.ctypes.data, y.ctypes.data, work.clients, RECORDS, theta.ctypes.data, xi.ctypes.data,
            out.ctypes.data, work.step_size, LOCAL_STEPS, L2, SEED, 0,
        )  # fmt: skip
        return out

    return one_round


def _with_room(values: Any, dtype: str) -> Any:
    """A copy that begins on a cache line, followed by room for a vector, since limit.c reads whole vectors."""
    size = np.dtype(dtype).itemsize
    room = np.zeros(values.size + 2 * VECTOR_BYTES // size, dtype)
    start = -room.ctypes.data % VECTOR_BYTES // size
    copy = room[start : start + values.size]
    copy[:] = values.reshape(-1)
    return copy
