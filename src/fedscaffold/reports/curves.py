"""A grid of convergence curves, one panel per problem."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedscaffold.core.figures import plain_grid
from fedscaffold.core.types import Array
from fedscaffold.reports.layout import COLOURS, ERROR_LABEL, INK, legend_above, saved_panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class RoundsPanel:
    """Squared errors by round of several methods, (runs, rounds + 1) each."""

    title: str
    curves: Mapping[str, Array]


def draw(rows: Sequence[tuple[str, Sequence[RoundsPanel]]], files: Sequence[Path]) -> None:
    """Draw means and standard deviations over runs on a log scale, one per row; to PNG, SVG or PDF."""
    columns = max(len(panels) for _, panels in rows)
    width, height = 2.2 + 2.4 * columns, 0.8 + 2.3 * len(rows)
    with saved_panels(files, len(rows), columns, width=width, height=height, sharex=True, sharey="row") as (
        figure,
        axes,
    ):
        for line, (row_title, panels) in zip(axes, rows, strict=True):
            for axis, panel in zip(line, panels, strict=False):
                _panel(axis, panel)
            line[0].set_ylabel(f"{row_title}\n{ERROR_LABEL}")
        for axis in axes[-1]:
            axis.set_xlabel("round")
        legend_above(figure, axes[0, 0])


def _panel(axis: "Axes", panel: RoundsPanel) -> None:
    for name, errors in panel.curves.items():
        rounds = np.arange(errors.shape[1])
        mean, spread = errors.mean(axis=0), errors.std(axis=0)
        axis.fill_between(
            rounds, np.maximum(mean - spread, mean / 10), mean + spread, color=COLOURS[name], alpha=0.2, lw=0
        )
        axis.semilogy(rounds, mean, color=COLOURS[name], label=name, lw=1.6)
    axis.set_title(panel.title, fontsize=10, color=INK)
    plain_grid(axis)
    axis.margins(x=0)
