"""Squared error against rounds, gradients per client and vectors sent."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedscaffold.core.display.figures import new_axes
from fedscaffold.core.types import Array
from fedscaffold.reports.layout import ERROR_LABEL, INK, PALETTE, STYLES, legend_above, powers_of_ten, saved_panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class CostPanel:
    """Costs (points,) and squared errors (runs, points) of several methods, by name."""

    title: str
    cost: str
    lines: Mapping[str, tuple[Array, Array]]
    targets: Sequence[float] = ()
    log: bool = True  # scale of the cost
    spread: bool = True  # whether to show the standard deviation over runs


def draw(rows: Sequence[Sequence[CostPanel]], files: Sequence[Path]) -> None:
    """Draw means and standard deviations over runs, one row of panels for each problem; to PNG, SVG or PDF."""
    names = list(dict.fromkeys(name for row in rows for panel in row for name in panel.lines))
    looks = _looks(names)
    columns = max(len(row) for row in rows)
    width, height = 1.0 + 3.4 * columns, 0.9 + 2.7 * len(rows)
    with saved_panels(files, len(rows), columns, width=width, height=height, sharey="row") as (figure, axes):
        for line, row in zip(axes, rows, strict=True):
            for axis, panel in zip(line, row, strict=True):
                _draw_panel(axis, panel, looks)
            line[0].set_ylabel(ERROR_LABEL)
        if all(list(panel.lines) == names for row in rows for panel in row):
            legend_above(figure, axes[0, 0], columns=2 * columns)
        else:
            for axis in axes.flat:
                axis.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)


def draw_panel(panel: CostPanel, ax: "Axes | None" = None) -> "Axes":
    """Draw one panel with a legend on the given axes, or on those of a new figure; return the axes."""
    ax = new_axes(ax)
    _draw_panel(ax, panel, _looks(list(panel.lines)))
    ax.set_ylabel(ERROR_LABEL)
    ax.legend(frameon=False)
    return ax


def _looks(names: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Colour and line style of each method."""
    return {name: (PALETTE[i % len(PALETTE)], STYLES[i % len(STYLES)]) for i, name in enumerate(names)}


def _draw_panel(axis: "Axes", panel: CostPanel, looks: Mapping[str, tuple[str, str]]) -> None:
    first = 1 if panel.log else 0  # no cost yet: not on a logarithmic scale
    for name, (costs, each) in panel.lines.items():
        colour, style = looks[name]
        cost, errors = costs[first:], each[:, first:]
        mean, spread = errors.mean(axis=0), errors.std(axis=0)
        if panel.spread and len(errors) > 1:
            axis.fill_between(
                cost, np.maximum(mean - spread, mean / 10), mean + spread, color=colour, alpha=0.15, lw=0
            )
        axis.semilogy(cost, mean, color=colour, ls=style, label=name, lw=1.6)
    for target in panel.targets:
        axis.axhline(target, color=INK, lw=0.7, ls=":")
    if panel.log:
        axis.set_xscale("log")
    axis.set_title(panel.title, fontsize=10, color=INK)
    axis.set_xlabel(panel.cost)
    powers_of_ten(axis)
