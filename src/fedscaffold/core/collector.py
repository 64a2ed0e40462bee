"""All problems of a table, or of settings, in one error, so that nobody mends them one message at a time."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from fedscaffold.core.errors import InvalidInput, Part, Remedy


class Collector:
    """Problems found so far, raised together.

    Parameters
    ----------
    what
        What has the problems.

    Examples
    --------
    >>> from fedscaffold.core.collector import Collector
    >>> found = Collector()
    >>> found.add("column 'a' is empty")
    >>> found.add("column 'b' is constant", remedies=["leave it out"])
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

    def add(self, *parts: Part, remedies: Sequence[Remedy] = ()) -> None:
        """Take note of a problem, described as for `InvalidInput`."""
        self.problems.append(InvalidInput(*parts, remedies=remedies))

    @contextmanager
    def catching(self) -> Iterator[None]:
        """Take note of a refusal that is raised inside the block, and go on after it."""
        try:
            yield
        except InvalidInput as problem:
            self.problems.append(problem)

    def raise_any(self) -> None:
        """Raise the problem, or all of them as one, where there are any."""
        if len(self.problems) == 1:
            raise self.problems[0]
        if self.problems:
            listed = [part for problem in self.problems for part in ("\n- ", problem)]
            raise InvalidInput(f"{self.what} has {len(self.problems)} problems:", *listed)
