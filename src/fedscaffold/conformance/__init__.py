"""Checks that anybody's Scaffold can be put through: `check(start)` runs them, and its report says what to mend.

NumPy only: the simulator is not imported, so the library's own methods are judged like any other.
"""

import traceback

from fedscaffold.conformance.checks import CHECKS, Check
from fedscaffold.conformance.recording import Bench
from fedscaffold.conformance.report import Entry, Report
from fedscaffold.conformance.task import Federation, NotSupported, Start, Task
from fedscaffold.core.checks import positive, whole_number
from fedscaffold.core.errors import InvalidInput

__all__ = ["Entry", "Federation", "NotSupported", "Report", "Task", "check"]

LARGEST_TOLERANCE = 1e-3


def check(start: Start, *, tolerance: float = 1e-8, seed: int = 0) -> Report:
    """Put an implementation of Scaffold through all checks.

    Parameters
    ----------
    start
        Takes a `Task` and returns a new `Federation` at its beginning; a class whose constructor takes the task
        will do. What the implementation cannot do it refuses with `NotSupported`.
    tolerance
        What counts as zero, at most 0.001. The default suits float64; for float32 take 1e-4.
    seed
        Chooses the problems and who takes part in which round.
    """
    if not callable(start):
        raise InvalidInput(f"start must be a function or class that takes a Task, got {start!r}")
    if positive("tolerance", tolerance) > LARGEST_TOLERANCE:
        raise InvalidInput(f"tolerance must be at most {LARGEST_TOLERANCE}, got {tolerance}")
    bench = Bench(start, whole_number("seed", seed, least=0))
    return Report(entries=tuple(_entry(name, function, bench, tolerance) for name, function in CHECKS.items()))


def _entry(name: str, function: Check, bench: Bench, tolerance: float) -> Entry:
    try:
        found = function(bench, tolerance)
    except NotSupported as reason:
        return Entry(name=name, verdict="not supported", measured=None, expected="", hint=str(reason))
    except Exception as error:
        return Entry(
            name=name,
            verdict="failed",
            measured=None,
            expected="no exception",
            hint="the implementation, or the adapter around it, raised an exception",
            error="".join(traceback.format_exception(error)),
        )
    return Entry(
        name=name,
        verdict="passed" if found.ok else "failed",
        measured=found.measured,
        expected=found.expected,
        hint="" if found.ok else found.hint,
    )
