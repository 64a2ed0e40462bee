"""The compiled library: where it is, how it is loaded, and the job that it is handed."""

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from fedscaffold.core.errors import EngineFailed

FOLDER = Path(__file__).parent
NAMES = (
    "kernel.native.so",
    "kernel.native.dylib",
    "kernel.native.dll",
)  # the dot keeps it from being a module
MOST_LEVEL = 2  # AVX-512; tests choose less, to compare instruction sets

INTEGER, WORD, REAL, POINTER = ctypes.c_int64, ctypes.c_uint64, ctypes.c_double, ctypes.c_void_p


class Job(ctypes.Structure):
    """A round of local steps: `Job` of job.h, which says what the fields mean."""

    _fields_ = (
        *((name, INTEGER) for name in ("loss", "single_precision", "features", "classes", "columns", "batch")),
        *((name, INTEGER) for name in ("sampling", "unpenalised")),
        *((name, POINTER) for name in ("x", "m", "y", "offsets")),
        ("l2", REAL),
        *((name, POINTER) for name in ("ends", "chain_ends", "guide", "follows")),
        ("branching", INTEGER),
        ("limits", POINTER),
        ("noise", REAL),
        ("noise_seed", WORD),
        ("ids", POINTER),
        ("law_seed", WORD),
        *((name, REAL) for name in ("scale_spread", "heterogeneity", "target_noise")),
        *((name, POINTER) for name in ("roots", "centre", "tilt")),
        *((name, INTEGER) for name in ("repetitions", "count")),
        *(("theta", POINTER), ("theta_repetition", INTEGER), ("theta_client", INTEGER)),
        *(("correction", POINTER), ("correction_repetition", INTEGER), ("correction_client", INTEGER)),
        ("anchor", POINTER),
        *(("steps", POINTER), ("steps_repetition", INTEGER), ("steps_client", INTEGER)),
        *(("clients", POINTER), ("clients_repetition", INTEGER)),
        *(("step_size", REAL), ("pull", REAL), ("first_step", INTEGER), ("seed", WORD)),
        *(("round", INTEGER), ("first_client", INTEGER), ("out", POINTER)),
    )


@cache
def load() -> ctypes.CDLL:
    """Load the library.

    Raises
    ------
    EngineFailed
        If it was not built for this machine, or cannot be loaded.
    """
    path = next((FOLDER / name for name in NAMES if (FOLDER / name).exists()), None)
    if path is None:
        raise EngineFailed(
            "the compiled library of the native engine is missing; install the package again "
            "(from a checkout: pip install -e .)"
        )
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise EngineFailed(f"the compiled library of the native engine cannot be loaded: {error}") from None
    library.fs_job_bytes.restype = INTEGER
    if library.fs_job_bytes() != ctypes.sizeof(Job):
        raise EngineFailed("the compiled library of the native engine is of another version; install it again")
    library.fs_round.argtypes = [ctypes.POINTER(Job), INTEGER, INTEGER, INTEGER, ctypes.c_int, ctypes.c_int]
    return library


def run_clients(job: Job, first: int, last: int, *, blocks: int, threads: int) -> None:
    """Run the local steps of clients first, ..., last − 1 of a job, in blocks on several threads."""
    if load().fs_round(job, first, last, blocks, threads, MOST_LEVEL):
        raise MemoryError("not enough memory for the local steps of a block of clients")


def address(array: np.ndarray[Any, Any] | None) -> int | None:
    """Return where the numbers of a C-contiguous array begin in memory; the caller keeps the array alive."""
    if array is None:
        return None
    try:
        return ctypes.addressof(ctypes.c_char.from_buffer(array))  # a tenth of the time of the way below
    except (TypeError, ValueError):  # read-only or empty
        if not array.flags.c_contiguous:
            raise ValueError("only contiguous arrays can be handed to the kernel") from None
        return int(array.ctypes.data)
