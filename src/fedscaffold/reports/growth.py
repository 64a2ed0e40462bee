"""Costs that grow or fall, on logarithmic axes, with fitted lines."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedscaffold.core.errors import MissingDependency
from fedscaffold.core.files import replacing
from fedscaffold.core.types import Array
from fedscaffold.reports.comparison import PALETTE, plain_axis

MARKERS = ("o", "s", "^", "D", "v", "P", "X")


@dataclass(frozen=True)
class Series:
    """Points of one method."""

    x: Array
    y: Array


@dataclass(frozen=True)
class Panel:
    """Series by name. With `power`, a dashed power law is drawn through each."""

    title: str
    x: str
    y: str
    series: Mapping[str, Series]
    power: bool = True


def draw(panels: Sequence[Panel], files: Sequence[Path]) -> None:
    """One row of panels; to PNG, SVG or PDF."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependency("figures need matplotlib; pip install 'fedscaffold[reproduce]'") from error
    with mpl.rc_context({"font.size": 10, "svg.fonttype": "none"}):
        figure = Figure(figsize=(1.0 + 4.2 * len(panels), 3.8), layout="constrained")
        for axis, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            for i, (name, series) in enumerate(panel.series.items()):
                colour, marker = PALETTE[i % len(PALETTE)], MARKERS[i % len(MARKERS)]
                axis.loglog(series.x, series.y, marker, color=colour, ms=5, label=name, alpha=0.8)
                if panel.power and series.x.size > 1:
                    slope, level = np.polyfit(np.log(series.x), np.log(series.y), 1)
                    axis.loglog(series.x, np.exp(level) * series.x**slope, "--", color=colour, lw=1.0)
                elif not panel.power:
                    axis.loglog(series.x, series.y, "-", color=colour, lw=1.0)
            axis.set_title(panel.title, fontsize=10)
            axis.set_xlabel(panel.x)
            axis.set_ylabel(panel.y)
            plain_axis(axis)
            axis.legend(frameon=False, fontsize=9, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)
        for file in files:
            with replacing(file) as temporary:
                figure.savefig(temporary, format=file.suffix.removeprefix("."), dpi=160)
