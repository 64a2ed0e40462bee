"""Squared error of runs in stages, over those of fixed step sizes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedscaffold.core.display.figures import plain_grid
from fedscaffold.core.types import Array
from fedscaffold.reports.layout import ERROR_LABEL, INK, legend_above, saved_panels

STAGED, FIXED, BEST = "#D55E00", "#BBBBBB", "#0072B2"


@dataclass(frozen=True)
class StagesPanel:
    """Mean squared errors by round of one staged run, its stages, and errors by fixed step size."""

    title: str
    staged: Array
    stages: Sequence[tuple[int, float]]
    best: float
    fixed: Mapping[float, Array]


def draw(panels: Sequence[StagesPanel], file: Path) -> None:
    """Draw two panels in a row with log scales, and dotted lines where the step size was halved; to one file."""
    rows = (len(panels) + 1) // 2
    with saved_panels([file], rows, 2, width=9.0, height=0.6 + 2.9 * rows) as (figure, grid):
        axes = grid.ravel()
        for axis, panel in zip(axes, panels, strict=False):
            for after, _ in panel.stages[1:]:
                axis.axvline(after, color=INK, lw=0.6, ls=":")
            rounds = np.arange(1, panel.staged.size)
            for gamma, errors in panel.fixed.items():
                if gamma != panel.best:
                    axis.loglog(rounds, errors[1:], color=FIXED, lw=0.9, label="other fixed step sizes")
            best = panel.fixed[panel.best]
            axis.loglog(rounds, best[1:], color=BEST, lw=1.5, label="best fixed step size, by hindsight")
            axis.loglog(rounds, panel.staged[1:], color=STAGED, lw=1.8, label="in stages")
            axis.set_title(f"{panel.title}; best fixed γ = {panel.best:.2g}", fontsize=10)
            axis.set(xlabel="round", ylabel=ERROR_LABEL)
            plain_grid(axis)
            axis.margins(x=0)
        for axis in axes[len(panels) :]:
            axis.remove()
        legend_above(figure, axes[0])
