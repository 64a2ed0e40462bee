"""Quantities by step size on logarithmic scales: predicted lines, measured points."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedscaffold.core.errors import MissingDependency
from fedscaffold.core.files import replacing
from fedscaffold.core.types import Array
from fedscaffold.reports.curves import GRID

COLOURS = ("#0072B2", "#009E73", "#999999", "#D55E00")
MARKERS = ("o", "s", "^", "D")


@dataclass(frozen=True)
class Line:
    """One quantity by step size."""

    name: str
    predicted: Array
    measured: Array
    error: Array


@dataclass(frozen=True)
class Panel:
    """Lines over the same step sizes."""

    title: str
    x: Array
    lines: Sequence[Line]


def draw(panels: Sequence[Panel], file: Path) -> None:
    """A panel beside the other, with bars of two standard errors; to PNG, SVG or PDF.

    A measurement below two of its standard errors is drawn as an upper limit: an arrow down from there.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependency("figures need matplotlib; pip install 'fedscaffold[reproduce]'") from error
    figure = Figure(figsize=(1.0 + 3.4 * len(panels), 4.0), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    for axis, panel in zip(axes, panels, strict=True):
        for line, colour, marker in zip(panel.lines, COLOURS, MARKERS, strict=False):
            axis.loglog(panel.x, line.predicted, color=colour, lw=1.4)
            clear = line.measured > 2.0 * line.error
            axis.errorbar(
                panel.x[clear], line.measured[clear], yerr=2.0 * line.error[clear], color=colour, fmt=marker, ms=5,
                capsize=2, label=line.name,
            )  # fmt: skip
            highest = np.maximum(line.measured, 0.0) + 2.0 * line.error
            axis.errorbar(
                panel.x[~clear], highest[~clear], yerr=0.6 * highest[~clear], uplims=True, color=colour, fmt="_",
            )  # fmt: skip
        axis.set_title(panel.title, fontsize=10)
        axis.set_xlabel("step size γ")
        axis.set_xticks(panel.x, [f"{x:.3g}" for x in panel.x])
        axis.set_xticks([], minor=True)
        axis.grid(True, which="major", color=GRID, lw=0.6)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("squared bias of the average")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False)
    with replacing(file) as temporary:
        figure.savefig(temporary, format=file.suffix.removeprefix("."), dpi=160)
