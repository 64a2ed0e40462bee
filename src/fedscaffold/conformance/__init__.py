"""Checks for any implementation of Scaffold: `check(start)` runs them, and its report names likely causes.

They need NumPy only and do not import the simulator, so the library's own methods are judged like any other.
"""

import traceback
from collections.abc import Sequence

from fedscaffold.conformance.checks import CHECKS, Check, chosen_checks
from fedscaffold.conformance.recording import Bench
from fedscaffold.conformance.report import Entry, Report, Verdict
from fedscaffold.conformance.task import Federation, NotSupported, Start, Task
from fedscaffold.core.errors import InvalidInput

__all__ = ["Entry", "Federation", "NotSupported", "Report", "Task", "check"]


def __dir__() -> list[str]:
    return __all__


RAISED = "the implementation, or the adapter around it, raised an exception"


def check(start: Start, *, tolerance: float = 1e-8, seed: int = 0, only: Sequence[str] | None = None) -> Report:
    """Run all checks, or some, on an implementation of Scaffold.

    Parameters
    ----------
    start
        Takes a `Task` and returns a new `Federation` at its beginning; a class whose constructor takes the task
        will do. It raises `NotSupported` for settings that the implementation cannot handle.
    tolerance
        Distances up to this count as zero; at most 0.001. The default suits float64; use 1e-4 for float32.
    seed
        Chooses the problems, and the clients that take part in each round.
    only
        Names of the checks to run, for example ``["reaches the optimum", "lost replies"]``; None for all.

    Returns
    -------
    Report
        One entry per check, with the likely cause of each failure.

    Raises
    ------
    InvalidInput
        If an option cannot be used.

    Examples
    --------
    An implementation that forgot the corrections, which makes it FedAvg:

    >>> import numpy as np
    >>> from fedscaffold.conformance import NotSupported, check
    >>> class WithoutCorrections:
    ...     def __init__(self, task):
    ...         if not (task.has_equal_weights and task.has_equal_local_steps):
    ...             raise NotSupported("clients of equal weight with equal local steps only")
    ...         self.task, self.theta = task, task.theta0
    ...     def round(self, cohort):
    ...         if len(cohort) < self.task.n_clients:
    ...             raise NotSupported("rounds with all clients only")
    ...         local = []
    ...         for c in cohort:
    ...             theta = self.theta
    ...             for _ in range(self.task.local_steps[c]):
    ...                 theta = theta - self.task.step_size * self.task.gradient(c, theta)
    ...             local.append(theta)
    ...         self.theta = np.mean(local, axis=0)
    ...     def model(self):
    ...         return self.theta
    ...     def correction(self, client):
    ...         return np.zeros(self.task.dim)
    >>> report = check(WithoutCorrections)
    >>> report
    Report(1 passed, 5 failed, 8 not supported)
    >>> report.failures[0]
    'reaches the optimum'
    >>> report.entries[0].hint
    "the model sits at FedAvg's fixed point: is the correction applied at all?"
    """
    if not callable(start):
        raise InvalidInput(f"start must be a function or class that takes a Task, got {start!r}")
    chosen = chosen_checks(tolerance=tolerance, seed=seed, only=only)
    bench = Bench(start, seed)
    return Report(entries=tuple(_entry(name, CHECKS[name], bench, tolerance) for name in chosen))


def _entry(name: str, function: Check, bench: Bench, tolerance: float) -> Entry:
    try:
        found = function(bench, tolerance)
    except NotSupported as reason:
        return Entry(name=name, verdict="not supported", measured=None, expected="", hint=str(reason))
    except Exception as error:
        hint, text = RAISED, "".join(traceback.format_exception(error))
        return Entry(name=name, verdict="failed", measured=None, expected="no exception", hint=hint, error=text)
    verdict: Verdict = "passed" if found.ok else "failed"
    hint = "" if found.ok else found.hint
    return Entry(name=name, verdict=verdict, measured=found.measured, expected=found.expected, hint=hint)
