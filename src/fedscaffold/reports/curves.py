"""A grid of convergence curves, one panel per problem."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedscaffold.core.display.figures import plain_grid
from fedscaffold.core.types import Array
from fedscaffold.reports.layout import COLOURS, ERROR_LABEL, INK, legend_above, saved_panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw(rows: Mapping[str, Mapping[str, Mapping[str, Array]]], files: Sequence[Path]) -> None:
    """Draw means and standard deviations over runs on a log scale; to PNG, SVG or PDF.

    `rows` has by row and panel the squared errors (runs, rounds + 1) of each method.
    """
    columns = max(map(len, rows.values()))
    width, height = 2.2 + 2.4 * columns, 0.8 + 2.3 * len(rows)
    with saved_panels(files, len(rows), columns, width=width, height=height, sharex=True, sharey="row") as (
        figure,
        axes,
    ):
        for line, (row_title, panels) in zip(axes, rows.items(), strict=True):
            for axis, (title, curves) in zip(line, panels.items(), strict=False):
                _panel(axis, title, curves)
            line[0].set_ylabel(f"{row_title}\n{ERROR_LABEL}")
        for axis in axes[-1]:
            axis.set_xlabel("round")
        legend_above(figure, axes[0, 0])


def _panel(axis: "Axes", title: str, curves: Mapping[str, Array]) -> None:
    for name, errors in curves.items():
        rounds = np.arange(errors.shape[1])
        mean, spread = errors.mean(axis=0), errors.std(axis=0)
        axis.fill_between(
            rounds, np.maximum(mean - spread, mean / 10), mean + spread, color=COLOURS[name], alpha=0.2, lw=0
        )
        axis.semilogy(rounds, mean, color=COLOURS[name], label=name, lw=1.6)
    axis.set_title(title, fontsize=10, color=INK)
    plain_grid(axis)
    axis.margins(x=0)
