"""What the figures of this package share: colours, markers, figures of several panels, and axes."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from numpy.typing import NDArray

from fedscaffold.core.display.figures import plain_grid, save, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {"Scaffold": "#0072B2", "FedAvg": "#D55E00"}
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")  # Okabe and Ito
STYLES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
INK = "#222222"
ERROR_LABEL = "$\\|\\theta_t-\\theta^*\\|^2$"
PLATEAU_LABEL = f"plateau of {ERROR_LABEL}"


@contextmanager
def saved_panels(
    files: Iterable[Path],
    rows: int,
    columns: int,
    *,
    width: float,
    height: float,
    sharex: bool = False,
    sharey: bool | Literal["row"] = False,
) -> Iterator[tuple["Figure", NDArray[Any]]]:
    """A figure of this size in inches and its axes (rows, columns), saved to the files when the block ends.

    Files end in .png, .svg or .pdf.
    """
    with style():
        from matplotlib.figure import Figure

        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure, figure.subplots(rows, columns, sharex=sharex, sharey=sharey, squeeze=False)
        for file in files:
            save(figure, file)


def legend_above(figure: "Figure", ax: "Axes", *, columns: int | None = None) -> None:
    """One legend for all panels, above them, with each label of these axes once."""
    handles, labels = ax.get_legend_handles_labels()
    once = dict(zip(labels, handles, strict=True))
    figure.legend(
        once.values(), once.keys(), loc="outside upper center", ncols=columns or len(once), frameon=False
    )


def powers_of_ten(ax: "Axes") -> None:
    """Light grid lines and, on logarithmic scales, numbers at powers of ten only."""
    from matplotlib.ticker import NullFormatter

    for axis in (ax.xaxis, ax.yaxis):
        if axis.get_scale() == "log":
            axis.set_minor_formatter(NullFormatter())
    plain_grid(ax)
