"""The one place that loads matplotlib: axes to draw on, the look of all figures, and saving to a file."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.optional import load_optional
from fedscaffold.core.storage.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GRID_COLOR = "#DDDDDD"
RC_SETTINGS: dict[Any, Any] = {"font.size": 10, "svg.fonttype": "none"}
FORMATS = ("pdf", "png", "svg")


def load_matplotlib() -> Any:
    """Return the module `matplotlib.pyplot`; raise `MissingDependency` if matplotlib is not installed."""
    return load_optional("matplotlib.pyplot", "figures need matplotlib", extra="reproduce")


def new_axes(ax: "Axes | None" = None, *, width: float = 6.4, height: float = 4.0) -> "Axes":
    """Return the given axes, or axes of a new figure that notebooks show by themselves.

    Parameters
    ----------
    ax
        Axes of the caller, returned as they are; None for a new figure.
    width, height
        Size of a new figure in inches.

    Examples
    --------
    >>> from fedscaffold.core.display.figures import new_axes
    >>> ax = new_axes(width=4, height=3)
    >>> ax.figure.get_size_inches().tolist()
    [4.0, 3.0]
    >>> new_axes(ax) is ax
    True
    """
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

    with mpl.rc_context(RC_SETTINGS):
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
