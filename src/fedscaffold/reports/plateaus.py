"""Plateaus against the number of clients, measured and predicted, and where more clients stop helping."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedscaffold.core.errors import MissingDependency
from fedscaffold.core.files import replacing
from fedscaffold.core.types import Array
from fedscaffold.reports.comparison import PALETTE
from fedscaffold.reports.curves import GRID, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARKERS = ("o", "s", "^", "D", "v", "P", "X")
FLOOR = "#777777"


@dataclass(frozen=True, kw_only=True)
class Series:
    """Plateaus of one method with one setting.

    Attributes
    ----------
    clients, plateau, error
        N, the mean squared error on the plateau and its standard error.
    predicted
        What theory says of each; NaN where it says nothing.
    saturation
        (measured, predicted) N at which the part that falls as 1/N equals the floor; None where there is no floor.
    """

    clients: Array
    plateau: Array
    error: Array
    predicted: Array
    saturation: tuple[float | None, float | None] = (None, None)


@dataclass(frozen=True)
class Panel:
    """Series by name."""

    title: str
    series: Mapping[str, Series]


def draw(panels: Sequence[Panel], files: Sequence[Path]) -> None:
    """Two standard errors about each plateau, logarithmic axes, one row of panels; to PNG, SVG or PDF."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependency("figures need matplotlib; pip install 'fedscaffold[reproduce]'") from error
    lines = max(len(panel.series) for panel in panels)
    with mpl.rc_context({"font.size": 10, "svg.fonttype": "none"}):
        figure = Figure(figsize=(1.0 + 4.4 * len(panels), 4.2 + 0.25 * lines), layout="constrained")
        for axis, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            for i, (name, series) in enumerate(panel.series.items()):
                _series(axis, name, series, PALETTE[i % len(PALETTE)], MARKERS[i % len(MARKERS)])
            axis.set_xscale("log")
            axis.set_yscale("log")
            axis.set_title(panel.title, fontsize=10, color=INK)
            axis.set_xlabel("number of clients N")
            axis.set_ylabel("plateau of $\\|\\theta_t-\\theta^*\\|^2$")
            axis.grid(True, which="major", color=GRID, lw=0.6)
            axis.spines[["top", "right"]].set_visible(False)
            axis.legend(frameon=False, fontsize=9, loc="upper center", bbox_to_anchor=(0.5, -0.15))
        for file in files:
            with replacing(file) as temporary:
                figure.savefig(temporary, format=file.suffix.removeprefix("."), dpi=160)


def _series(axis: "Axes", name: str, series: Series, colour: str, marker: str) -> None:
    known = np.isfinite(series.predicted)
    if known.any():
        axis.plot(series.clients[known], series.predicted[known], color=INK, lw=1.1, label=f"{name}, predicted")
    low = np.minimum(2.0 * series.error, 0.9 * series.plateau)  # a logarithmic axis ends before 0
    axis.errorbar(
        series.clients, series.plateau, yerr=[low, 2.0 * series.error], color=colour, marker=marker, ms=4.5,
        ls="none", capsize=2, label=f"{name}, measured",
    )  # fmt: skip
    measured, predicted = series.saturation
    for at, style, word, shade in ((predicted, "--", "predicted", INK), (measured, ":", "measured", colour)):
        if at is not None:
            axis.axvline(at, color=shade, lw=1.2, ls=style, label=f"saturation {word}: N = {at:,.0f}")
