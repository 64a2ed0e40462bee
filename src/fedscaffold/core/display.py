"""Summaries of results, progress bars, and the one place that loads matplotlib."""

import math
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedscaffold.core.checks import given
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.files import replacing
from fedscaffold.core.imports import load_optional

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def text_summary(title: str, facts: Mapping[str, object]) -> str:
    """Return <title | name: value, name: value, ...>, in lines of at most 79 characters.

    Examples
    --------
    >>> from fedscaffold.core.display import text_summary
    >>> text_summary("Plateau", {"mean": 0.5, "from round": 12})
    '<Plateau | mean: 0.5, from round: 12>'
    """
    text = f"<{title} | " + ", ".join(f"{name}: {value}" for name, value in facts.items()) + ">"
    return "\n".join(textwrap.wrap(text, 79, subsequent_indent="  "))


def html_summary(title: str, facts: Mapping[str, object]) -> str:
    """Return the same facts as an HTML table with the title as its caption."""
    rows = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(str(value))}</td></tr>'
        for name, value in facts.items()
    )
    return f"<table><caption>{escape(title)}</caption><tbody>{rows}</tbody></table>"


def rounded_up(value: float) -> str:
    """Return a bound with two digits, never below its value.

    Examples
    --------
    >>> from fedscaffold.core.display import rounded_up
    >>> rounded_up(1.0409e-7), rounded_up(0.25), rounded_up(0.0)
    ('1.1e-07', '0.25', '0')
    """
    shown = f"{value:.2g}"
    if not float(shown) < value < math.inf:
        return shown
    return f"{value + 0.5 * 10.0 ** (math.floor(math.log10(value)) - 1):.2g}"


class Summarised:
    """A result that shows some facts about itself: a few lines of text as `repr`, a table in notebooks."""

    def _facts(self) -> Mapping[str, object]:
        raise NotImplementedError

    def _title(self) -> str:
        return type(self).__name__

    def __repr__(self) -> str:
        return text_summary(self._title(), self._facts())

    def _repr_html_(self) -> str:
        return html_summary(self._title(), self._facts())


Advance = Callable[[int, int], None]
Progress = bool | Advance | None


def part_of(advance: Advance, done: float, share: float, total: float) -> Advance:
    """Return the progress of one part of the work, `share` of a total of which `done` is done before."""
    return lambda now, of: advance(int(done + share * now / max(of, 1)), int(total))


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


GRID_COLOR = "#DDDDDD"
FORMATS = ("pdf", "png", "svg")


def load_matplotlib() -> Any:
    """Return the module `matplotlib.pyplot`; raise `MissingDependency` if matplotlib is not installed."""
    return load_optional("matplotlib.pyplot", "figures need matplotlib", extra="reproduce")


def new_axes(ax: "Axes | None" = None, *, width: float = 6.4, height: float = 4.0) -> "Axes":
    """Return the given axes, or axes of a new figure of this size in inches, which notebooks show."""
    if ax is not None:
        return ax
    plt = load_matplotlib()
    with style():
        _, made = plt.subplots(figsize=(width, height), layout="constrained")
    return made


@contextmanager
def style() -> Iterator[None]:
    """Context in which figures have the look of this package: font size 10, and text in SVG files kept as text."""
    load_matplotlib()
    import matplotlib as mpl

    with mpl.rc_context({"font.size": 10, "svg.fonttype": "none"}):
        yield


def plain_grid(ax: "Axes") -> None:
    """Remove the frame above and to the right, and draw light grid lines at the major ticks."""
    ax.grid(True, which="major", color=GRID_COLOR, lw=0.6)
    ax.spines[["top", "right"]].set_visible(False)


def save(figure: "Figure", path: str | Path) -> None:
    """Write a figure to a PNG, SVG or PDF file, which is replaced only once the new one is complete."""
    file = Path(path)
    kind = file.suffix.removeprefix(".").lower()
    if kind not in FORMATS:
        raise InvalidInput(f"figures are saved as one of {', '.join(FORMATS)}; {str(path)!r} does not end so")
    with style(), replacing(file) as temporary:
        figure.savefig(temporary, format=kind, dpi=160)
