"""Progress bars with the time left, on a terminal and nowhere else."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fedscaffold.core.checks import given
from fedscaffold.core.errors import InvalidInput

Advance = Callable[[int, int], None]
Progress = bool | Advance | None


@contextmanager
def progress_bar(title: str, wanted: Progress) -> Iterator[Advance]:
    """A function (done, total) that shows how far a job is.

    None shows a bar when standard error is a terminal, True always, False never; a function is called
    instead of any bar.
    """
    if wanted is not None and not isinstance(wanted, bool) and not callable(wanted):
        raise InvalidInput(f"progress must be True, False, None or a function (done, total), got {given(wanted)}")
    if callable(wanted):
        yield wanted
        return
    if wanted is False or (wanted is None and not sys.stderr.isatty()):
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True, force_terminal=wanted), transient=True) as bars:
        task = bars.add_task(title, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)
