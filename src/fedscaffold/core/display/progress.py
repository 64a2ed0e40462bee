"""Progress bars with the time left on a terminal, and a line every half minute elsewhere."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fedscaffold.core.checks import given
from fedscaffold.core.errors import InvalidInput

Advance = Callable[[int, int], None]
Progress = bool | Advance | None
SECONDS_BETWEEN_LINES = 30.0  # often enough to show life in a log, and few lines in one of a day


@contextmanager
def progress_bar(title: str, wanted: Progress) -> Iterator[Advance]:
    """Yield a function (done, total) that shows how far a job is.

    None shows a bar when standard error is a terminal, and otherwise writes a line there every half minute, so
    that a log shows life; True always shows a bar, False nothing; a function is called instead of any bar.
    """
    value: object = wanted
    if not (value is None or isinstance(value, bool) or (callable(value) and not isinstance(value, type))):
        raise InvalidInput(f"progress must be True, False, None or a function (done, total), got {given(wanted)}")
    if callable(wanted):
        yield wanted
        return
    if wanted is False:
        yield lambda done, total: None
        return
    if wanted is None and not sys.stderr.isatty():
        with _lines(title) as advance:
            yield advance
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True, force_terminal=wanted), transient=True) as bars:
        task = bars.add_task(title, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)


@contextmanager
def _lines(title: str) -> Iterator[Advance]:
    """Write a line to standard error every half minute, also while nothing advances."""
    so_far = (0, 0)
    ended, began = threading.Event(), time.monotonic()

    def write() -> None:
        while not ended.wait(SECONDS_BETWEEN_LINES):
            seconds = time.monotonic() - began
            done, total = so_far
            left = f", {done:,} of {total:,}, about {seconds * (total / done - 1.0):.0f} s left" if done else ""
            print(f"{title}: {seconds:.0f} s{left}", file=sys.stderr, flush=True)

    def advance(done: int, total: int) -> None:
        nonlocal so_far
        so_far = (done, total)

    writer = threading.Thread(target=write, name="progress", daemon=True)
    writer.start()
    try:
        yield advance
    finally:
        ended.set()
        writer.join()
