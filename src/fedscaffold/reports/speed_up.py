"""Plateaus against the number of clients."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from fedscaffold.core.display.figures import plain_grid
from fedscaffold.core.types import Array
from fedscaffold.reports.layout import COLOURS, INK, PLATEAU_LABEL, legend_above, saved_panels


def draw(panels: Mapping[str, Mapping[str, Array]], files: Sequence[Path], *, falling: str) -> None:
    """Draw plateaus ± two standard errors on logarithmic axes, and 1/N through the first of method `falling`.

    `panels` has by title and method numbers of clients, plateaus and their standard errors, (3, points).
    """
    width = 1.4 + 3.2 * len(panels)
    with saved_panels(files, 1, len(panels), width=width, height=3.5, sharex=True, sharey=True) as (figure, grid):
        axes = grid[0]
        for axis, (title, lines) in zip(axes, panels.items(), strict=True):
            for name, (clients, mean, spread) in lines.items():
                colour = COLOURS["Scaffold" if name == falling else name]
                axis.errorbar(
                    clients, mean, yerr=2.0 * spread, color=colour, marker="o", ms=4, lw=1.6, capsize=2, label=name
                )
            clients, mean, _ = lines[falling]
            axis.plot(clients, mean[0] * clients[0] / clients, color=INK, lw=0.9, ls="--", label="1/N", zorder=0)
            axis.set(xscale="log", yscale="log", xlabel="number of clients N")
            axis.set_title(title, fontsize=10, color=INK)
            plain_grid(axis)
        axes[0].set_ylabel(PLATEAU_LABEL)
        legend_above(figure, axes[0])
