"""Squared error of runs in stages, over those of fixed step sizes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedscaffold.core.errors import MissingDependency
from fedscaffold.core.files import replacing
from fedscaffold.core.types import Array
from fedscaffold.reports.curves import GRID, INK

STAGED, FIXED, BEST = "#D55E00", "#BBBBBB", "#0072B2"


@dataclass(frozen=True)
class Panel:
    """Mean squared errors by round; the stages are those of one run."""

    title: str
    staged: Array
    stages: Sequence[tuple[int, float]]
    best: float
    fixed: Mapping[float, Array]


def draw(panels: Sequence[Panel], file: Path) -> None:
    """Two panels in a row, log scales; dotted lines where the first run's step size was halved."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependency("figures need matplotlib; pip install 'fedscaffold[reproduce]'") from error
    rows = (len(panels) + 1) // 2
    figure = Figure(figsize=(9.0, 0.6 + 2.9 * rows), layout="constrained")
    axes = figure.subplots(rows, 2, squeeze=False).ravel()
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
        axis.set_xlabel("round")
        axis.set_ylabel("$\\|\\theta_t-\\theta^*\\|^2$")
        axis.grid(True, which="major", color=GRID, lw=0.6)
        axis.spines[["top", "right"]].set_visible(False)
        axis.margins(x=0)
    for axis in axes[len(panels) :]:
        axis.remove()
    handles, labels = axes[0].get_legend_handles_labels()
    once = dict(zip(labels, handles, strict=True))
    figure.legend(once.values(), once.keys(), loc="outside upper center", ncols=len(once), frameon=False)
    with replacing(file) as temporary:
        figure.savefig(temporary, format=file.suffix.removeprefix("."), dpi=160)
