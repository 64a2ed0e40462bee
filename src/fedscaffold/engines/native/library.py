"""The compiled library: where it is, how it is loaded, and the job that it is handed."""

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from fedscaffold.core.errors import EngineFailed

FOLDER = Path(__file__).parent
NAMES = tuple(f"kernel.native.{ending}" for ending in ("so", "dylib", "dll"))  # no module, by the second dot
MOST_LEVEL = 2  # AVX-512; tests choose less, to compare instruction sets

INTEGER, WORD, REAL, POINTER = ctypes.c_int64, ctypes.c_uint64, ctypes.c_double, ctypes.c_void_p


class Job(ctypes.Structure):
    """A round of local steps: `Job` of job.h, which says what the fields mean."""

    _fields_ = tuple(
        (name, kind)
        for kind, names in (
            (INTEGER, "loss single_precision features classes columns batch sampling unpenalised"),
            (POINTER, "x m y offsets"), (REAL, "l2"),
            (POINTER, "ends chain_ends guide follows"), (INTEGER, "branching"),
            (POINTER, "limits"), (REAL, "noise"), (WORD, "noise_seed"),
            (POINTER, "ids"), (WORD, "law_seed"), (REAL, "scale_spread heterogeneity target_noise"),
            (POINTER, "roots centre tilt"), (INTEGER, "repetitions count"),
            (POINTER, "theta"), (INTEGER, "theta_repetition theta_client"),
            (POINTER, "correction"), (INTEGER, "correction_repetition correction_client"), (POINTER, "anchor"),
            (POINTER, "steps"), (INTEGER, "steps_repetition steps_client"),
            (POINTER, "clients"), (INTEGER, "clients_repetition"), (REAL, "step_size pull"),
            (INTEGER, "first_step"), (WORD, "seed"), (INTEGER, "round first_client"), (POINTER, "out"),
        )
        for name in names.split()
    )  # fmt: skip


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
    library.fs_round.argtypes = [ctypes.POINTER(Job), INTEGER, INTEGER, INTEGER, ctypes.c_int]
    return library


def run_clients(job: Job, first: int, last: int, *, threads: int) -> None:
    """Run the local steps of clients first, ..., last − 1 of a job on several threads."""
    if load().fs_round(job, first, last, threads, MOST_LEVEL):
        raise MemoryError("not enough memory for the local steps of a block of clients")


def address(array: np.ndarray[Any, Any] | None) -> int | None:
    """Return where the numbers of a C-contiguous array begin in memory; the caller keeps the array alive."""
    if array is None:
        return None
    buffer: Any = array  # as NumPy's types call it from Python 3.12 on
    try:
        return ctypes.addressof(ctypes.c_char.from_buffer(buffer))  # less than half the time of `array.ctypes`
    except (TypeError, ValueError):  # read-only or empty
        if not array.flags.c_contiguous:
            raise ValueError("only contiguous arrays can be handed to the kernel") from None
        return int(array.ctypes.data)
