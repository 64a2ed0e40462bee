"""Figures in one style: curves by cost, and plateaus by number of clients."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedscaffold.core.display import new_axes, plain_grid, save, style
from fedscaffold.core.types import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which readers with any colour vision can tell apart, with wine red for the light yellow
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#882255")
COLOURS = {"Scaffold": PALETTE[0], "FedAvg": PALETTE[1]}
STYLES = ("-", "--", "-.", ":")
MARKERS = "os^DvPX"  # one fewer than colours: no pair of both repeats before 56 lines
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
    """Yield a figure of this size in inches and its axes (rows, columns), saved to the files when the block ends.

    Files end in .png, .svg or .pdf.
    """
    with style():
        from matplotlib.figure import Figure

        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure, figure.subplots(rows, columns, sharex=sharex, sharey=sharey, squeeze=False)
        for file in files:
            save(figure, file)


def legend_above(figure: "Figure", ax: "Axes", *, columns: int | None = None) -> None:
    """Draw one legend for all panels, above them, with each label of these axes once."""
    handles, labels = ax.get_legend_handles_labels()
    once = dict(zip(labels, handles, strict=True))
    figure.legend(
        once.values(), once.keys(), loc="outside upper center", ncols=columns or len(once), frameon=False
    )


def powers_of_ten(ax: "Axes") -> None:
    """Draw light grid lines and, on logarithmic scales, numbers at powers of ten only."""
    from matplotlib.ticker import NullFormatter

    for axis in (ax.xaxis, ax.yaxis):
        if axis.get_scale() == "log":
            axis.set_minor_formatter(NullFormatter())
    plain_grid(ax)


@dataclass(frozen=True, kw_only=True)
class CurvePanel:
    """Values of several methods against a cost."""

    title: str
    lines: Mapping[str, tuple[Array, Array]]  # by name, costs (points,) and values (runs, points)
    x: str = "round"  # label of the cost
    y: str = "mse"  # label of the values; "mse" for squared errors
    levels: Sequence[float] = ()  # values to mark with horizontal lines, such as targets
    log_x: bool = False  # whether the cost has a logarithmic scale; the values have one if all are positive
    spread: bool = True  # whether to show the standard deviation over runs


def draw_curves(rows: Sequence[Sequence[CurvePanel]], files: Sequence[Path]) -> None:
    """Draw means and standard deviations over runs, row by row of panels, to .png, .svg or .pdf files."""
    names = list(dict.fromkeys(name for row in rows for panel in row for name in panel.lines))
    columns = max(map(len, rows))
    width, height = 1.0 + 3.0 * columns, 0.9 + 2.6 * len(rows)
    with saved_panels(files, len(rows), columns, width=width, height=height, sharey="row") as (figure, axes):
        for line, row in zip(axes, rows, strict=True):
            for axis, panel in zip(line, row, strict=False):
                _draw_lines(axis, panel, names)
            line[0].set_ylabel(_label(row[0]))
        if all(list(panel.lines) == names for row in rows for panel in row):
            legend_above(figure, axes[0, 0], columns=2 * columns)
        else:
            for axis in axes.flat:
                axis.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)


def draw_panel(panel: CurvePanel, ax: "Axes | None" = None) -> "Axes":
    """Draw one panel with a legend on the given axes, or on a new figure; return the axes."""
    ax = new_axes(ax)
    _draw_lines(ax, panel, list(panel.lines))
    ax.set_ylabel(_label(panel))
    ax.legend(frameon=False)
    return ax


def _label(panel: CurvePanel) -> str:
    return ERROR_LABEL if panel.y == "mse" else panel.y


def _draw_lines(axis: "Axes", panel: CurvePanel, names: Sequence[str]) -> None:
    """Draw the lines of a panel; a name has the same colour and line style in all panels of a figure."""
    positive = all((values > 0).all() for _, values in panel.lines.values())
    for name, (costs, each) in panel.lines.items():
        k = names.index(name)
        colour = PALETTE[k % len(PALETTE)]
        shown = costs > 0 if panel.log_x else slice(None)  # round 0 has no cost, which a log scale cannot show
        cost, values = costs[shown], each[:, shown]
        mean, spread = values.mean(axis=0), values.std(axis=0)
        if panel.spread and len(values) > 1:
            low = np.maximum(mean - spread, mean / 10) if positive else mean - spread
            axis.fill_between(cost, low, mean + spread, color=colour, alpha=0.15, lw=0)
        axis.plot(cost, mean, color=colour, ls=STYLES[k % len(STYLES)], label=name, lw=1.6)
    for level in panel.levels:
        axis.axhline(level, color=INK, lw=0.7, ls=":")
    axis.set(xscale="log" if panel.log_x else "linear", yscale="log" if positive else "linear")
    axis.set_title(panel.title, fontsize=10, color=INK)
    axis.set_xlabel(panel.x)
    if not panel.log_x:
        axis.margins(x=0)
    powers_of_ten(axis)


@dataclass(frozen=True, kw_only=True)
class PlateauSeries:
    """Plateaus of one setting against a number that varies, usually the number of clients."""

    x: Array  # the number that varies, (points,)
    plateau: Array  # mean squared error, (points,)
    error: Array  # its standard error, (points,)
    stationary: NDArray[np.bool_]  # whether each run was, (points,); the other points are drawn hollow
    predicted: Array  # plateaus, (points,); NaN if there is no prediction
    saturation: tuple[float | None, float | None] = (None, None)  # N where a/N is the floor: measured, predicted


def draw_plateaus(
    panels: Mapping[str, Mapping[str, PlateauSeries]], files: Sequence[Path], *, x: str = "number of clients N"
) -> None:
    """Draw plateaus ± two standard errors on logarithmic axes, a panel for each title, with legends beside them.

    `x` is the label of the numbers that vary; files end in .png, .svg or .pdf.
    """
    most = max(map(len, panels.values()))
    width, height = 7.6 * len(panels), max(4.0, 1.0 + 0.3 * most)
    with saved_panels(files, 1, len(panels), width=width, height=height) as (_, axes):
        for axis, (title, lines) in zip(axes[0], panels.items(), strict=True):
            draw_plateau_lines(axis, lines, x=x)
            axis.set_title(title, fontsize=10, color=INK)


def draw_plateau_lines(axis: "Axes", lines: Mapping[str, PlateauSeries], *, x: str) -> None:
    """Draw the series of one panel, and a legend to its right."""
    from matplotlib.lines import Line2D

    for k, (name, series) in enumerate(lines.items()):
        colour, marker = PALETTE[k % len(PALETTE)], MARKERS[k % len(MARKERS)]
        low = np.minimum(2.0 * series.error, 0.9 * series.plateau)  # a logarithmic axis ends before 0
        axis.errorbar(
            series.x, series.plateau, yerr=[low, 2.0 * series.error], color=colour, ls="-", lw=0.9, capsize=2
        )
        for chosen, face in ((series.stationary, colour), (~series.stationary, "white")):
            axis.plot(series.x[chosen], series.plateau[chosen], marker, color=colour, mfc=face, ms=6, ls="none")
        axis.plot(series.x, series.predicted, color=colour, lw=1.6, ls="--", alpha=0.7)
        axis.plot([], [], marker=marker, color=colour, ms=6, lw=0.9, label=f"{name}{_saturation(series)}")
    handles, _ = axis.get_legend_handles_labels()
    if any(np.isfinite(series.predicted).any() for series in lines.values()):
        handles.append(Line2D([], [], color="0.5", lw=1.6, ls="--", label="predicted"))
    if not all(series.stationary.all() for series in lines.values()):
        handles.append(Line2D([], [], color="0.5", marker="o", mfc="white", ls="none", label="still moving"))
    axis.set(xscale="log", yscale="log", xlabel=x, ylabel=PLATEAU_LABEL)
    numbers = np.unique(np.concatenate([series.x for series in lines.values()]))
    if numbers.size <= 6:  # more labels would overlap
        axis.set_xticks(numbers, [f"{number:,g}" for number in numbers])
        axis.set_xticks([], minor=True)
    axis.legend(handles=handles, frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    plain_grid(axis)


def _saturation(series: PlateauSeries) -> str:
    """Return the saturations that were reached, for the legend."""
    measured, predicted = series.saturation
    found = [] if measured is None else [f"N = {measured:,.0f} measured"]
    found += [] if predicted is None else [f"{predicted:,.0f} predicted"]
    return f"\nsaturation: {', '.join(found)}" if found else ""
