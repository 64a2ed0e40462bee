"""Quantities by step size on logarithmic scales: predicted lines, measured points."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedscaffold.core.display.figures import plain_grid
from fedscaffold.core.types import Array
from fedscaffold.reports.layout import MARKERS, legend_above, saved_panels

COLOURS = ("#0072B2", "#009E73", "#999999", "#D55E00")


@dataclass(frozen=True)
class OrderLine:
    """One quantity by step size: predicted, measured, and the standard error of the measurement."""

    name: str
    predicted: Array
    measured: Array
    error: Array


@dataclass(frozen=True)
class OrderPanel:
    """Several quantities over the same step sizes x."""

    title: str
    x: Array
    lines: Sequence[OrderLine]


def draw(panels: Sequence[OrderPanel], file: Path) -> None:
    """Draw panels side by side, with bars of two standard errors; to PNG, SVG or PDF.

    A measurement below two of its standard errors is drawn as an upper limit: an arrow down from there.
    """
    width = 1.0 + 3.4 * len(panels)
    with saved_panels([file], 1, len(panels), width=width, height=4.0, sharey=True) as (figure, grid):
        axes = grid[0]
        for axis, panel in zip(axes, panels, strict=True):
            for line, colour, marker in zip(panel.lines, COLOURS, MARKERS, strict=False):
                axis.loglog(panel.x, line.predicted, color=colour, lw=1.4)
                clear = line.measured > 2.0 * line.error
                axis.errorbar(
                    panel.x[clear], line.measured[clear], yerr=2.0 * line.error[clear], color=colour, fmt=marker,
                    ms=5, capsize=2, label=line.name,
                )  # fmt: skip
                highest = np.maximum(line.measured, 0.0) + 2.0 * line.error
                axis.errorbar(
                    panel.x[~clear], highest[~clear], yerr=0.6 * highest[~clear], uplims=True, color=colour,
                    fmt="_",
                )  # fmt: skip
            axis.set_title(panel.title, fontsize=10)
            axis.set_xlabel("step size γ")
            axis.set_xticks(panel.x, [f"{x:.3g}" for x in panel.x])
            axis.set_xticks([], minor=True)
            plain_grid(axis)
        axes[0].set_ylabel("squared bias of the average")
        legend_above(figure, axes[0])
