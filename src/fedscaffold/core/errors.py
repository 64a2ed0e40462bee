"""Errors that fedscaffold raises, each with a message that says what was wrong and what to do about it.

Messages name parameters in Python's spelling: at their beginning ("min_rows must be ..."), as `name=value` or
`name=...` ("pass min_rows=1", "requires l2=..."), or by names with an underscore. The command line
(`cli/errors.py`) replaces these by its options, and estimators (`sklearn/base.py`) by their parameters.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class DataWarning(UserWarning):
    """Something in a table that is probably a mistake, though the table can be used."""


class FedScaffoldError(Exception):
    """Any error that fedscaffold raises on purpose."""


class InvalidInput(FedScaffoldError, ValueError):
    """An argument that cannot be used; raised before any work starts."""


class NoPlateau(InvalidInput):
    """A method that has no plateau, as far as theory sees: it does not contract, or its noise feeds on itself."""


class OutOfReach(InvalidInput):
    """A target that no setting within the limits of a plan reaches."""


class MissingDependency(FedScaffoldError, ImportError):
    """An optional package is needed and not installed."""


class CheckpointMismatch(FedScaffoldError):
    """The checkpoint belongs to another run, or is not a checkpoint."""


class InUse(FedScaffoldError):
    """A file or folder that another process is using."""


class NotWritten(FedScaffoldError):
    """A file that could not be written, for example since the disk is full; its earlier version is kept."""


class EngineFailed(FedScaffoldError):
    """An engine that could not start, such as Ray if no cluster answers."""


class NotStationary(FedScaffoldError):
    """A run was too short: it has not reached its stationary regime, so its limit cannot be estimated."""


class Diverged(FedScaffoldError, ArithmeticError):
    """A run whose model grew beyond all bounds, or became NaN, and was stopped.

    Attributes
    ----------
    round
        Number of the round in which it was noticed.
    client
        The client whose local model was largest.
    safe_step_size
        A step size with which the method does not diverge; 0 if none is known.
    trace
        The `Trace` of the rounds before, up to the last one within bounds; None if the run kept none.
    """

    trace: Any = None

    def __init__(self, message: str, *, round: int = 0, client: int = 0, safe_step_size: float = 0.0) -> None:
        super().__init__(message)
        self.round = round
        self.client = client
        self.safe_step_size = safe_step_size


class Collector:
    """Problems found so far, raised in one error so that users can fix them together.

    Parameters
    ----------
    what
        The object that has the problems, as the message names it.

    Examples
    --------
    >>> from fedscaffold.core.errors import Collector
    >>> found = Collector()
    >>> found.add("column 'a' is empty")
    >>> found.add("column 'b' is constant; leave it out")
    >>> found.raise_any()
    Traceback (most recent call last):
        ...
    fedscaffold.core.errors.InvalidInput: the table has 2 problems:
    - column 'a' is empty
    - column 'b' is constant; leave it out
    """

    def __init__(self, what: str = "the table") -> None:
        self.what = what
        self.problems: list[InvalidInput] = []

    def add(self, problem: str) -> None:
        """Add a problem."""
        self.problems.append(InvalidInput(problem))

    @contextmanager
    def catching(self) -> Iterator[None]:
        """Add the InvalidInput that is raised inside the block, if any, and continue after the block."""
        try:
            yield
        except InvalidInput as problem:
            self.problems.append(problem)

    def raise_any(self) -> None:
        """Raise the problem, or all of them as one error; return if there are none."""
        if len(self.problems) == 1:
            raise self.problems[0]
        if self.problems:
            listed = "".join(f"\n- {problem}" for problem in self.problems)
            raise InvalidInput(f"{self.what} has {len(self.problems)} problems:{listed}")
