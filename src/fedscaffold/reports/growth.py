"""Costs that grow or fall, on logarithmic axes, with fitted lines."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedscaffold.core.types import Array
from fedscaffold.reports.layout import MARKERS, PALETTE, powers_of_ten, saved_panels


@dataclass(frozen=True)
class GrowthPanel:
    """Points x and y of several methods, by name; with `power`, a dashed power law is drawn through each."""

    title: str
    x: str
    y: str
    series: Mapping[str, tuple[Array, Array]]
    power: bool = True


def draw(panels: Sequence[GrowthPanel], files: Sequence[Path]) -> None:
    """Draw one row of panels with logarithmic axes; to PNG, SVG or PDF."""
    with saved_panels(files, 1, len(panels), width=1.0 + 4.2 * len(panels), height=3.8) as (_, axes):
        for axis, panel in zip(axes[0], panels, strict=True):
            for i, (name, (x, y)) in enumerate(panel.series.items()):
                colour, marker = PALETTE[i % len(PALETTE)], MARKERS[i % len(MARKERS)]
                axis.loglog(x, y, marker, color=colour, ms=5, label=name, alpha=0.8)
                if panel.power and x.size > 1:
                    slope, level = np.polyfit(np.log(x), np.log(y), 1)
                    axis.loglog(x, np.exp(level) * x**slope, "--", color=colour, lw=1.0)
                elif not panel.power:
                    axis.loglog(x, y, "-", color=colour, lw=1.0)
            axis.set_title(panel.title, fontsize=10)
            axis.set(xlabel=panel.x, ylabel=panel.y)
            powers_of_ten(axis)
            axis.legend(frameon=False, fontsize=9, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)
