"""All problems of a table, or of settings, in one error, so that users can fix them together."""

from collections.abc import Iterator
from contextlib import contextmanager

from fedscaffold.core.errors import InvalidInput


class Collector:
    """Problems found so far, raised together.

    Parameters
    ----------
    what
        The object that has the problems, as the message names it.

    Examples
    --------
    >>> from fedscaffold.core.collector import Collector
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
