"""Plateaus against the number of clients, measured and predicted, and where more clients stop helping."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedscaffold.core.display.figures import plain_grid
from fedscaffold.core.types import Array
from fedscaffold.reports.layout import INK, MARKERS, PALETTE, PLATEAU_LABEL, saved_panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, kw_only=True)
class PlateauSeries:
    """Plateaus of one method with one setting.

    Attributes
    ----------
    clients, plateau, error
        N, the mean squared error on the plateau and its standard error.
    predicted
        Predicted plateaus; NaN where there is no prediction.
    saturation
        (measured, predicted) N at which the part that falls as 1/N equals the floor; None where there is no floor.
    """

    clients: Array
    plateau: Array
    error: Array
    predicted: Array
    saturation: tuple[float | None, float | None] = (None, None)


def draw(panels: Mapping[str, Mapping[str, PlateauSeries]], files: Sequence[Path]) -> None:
    """Draw plateaus ± two standard errors on logarithmic axes, a panel for each title; to PNG, SVG or PDF."""
    width, height = 1.0 + 4.4 * len(panels), 4.2 + 0.25 * max(map(len, panels.values()))
    with saved_panels(files, 1, len(panels), width=width, height=height) as (_, axes):
        for axis, (title, lines) in zip(axes[0], panels.items(), strict=True):
            for i, (name, series) in enumerate(lines.items()):
                _series(axis, name, series, PALETTE[i % len(PALETTE)], MARKERS[i % len(MARKERS)])
            axis.set(xscale="log", yscale="log", xlabel="number of clients N", ylabel=PLATEAU_LABEL)
            axis.set_title(title, fontsize=10, color=INK)
            plain_grid(axis)
            axis.legend(frameon=False, fontsize=9, loc="upper center", bbox_to_anchor=(0.5, -0.15))


def _series(axis: "Axes", name: str, series: PlateauSeries, colour: str, marker: str) -> None:
    finite = np.isfinite(series.predicted)
    if finite.any():
        axis.plot(series.clients[finite], series.predicted[finite], color=INK, lw=1.1, label=f"{name}, predicted")
    low = np.minimum(2.0 * series.error, 0.9 * series.plateau)  # a logarithmic axis ends before 0
    axis.errorbar(
        series.clients, series.plateau, yerr=[low, 2.0 * series.error], color=colour, marker=marker, ms=4.5,
        ls="none", capsize=2, label=f"{name}, measured",
    )  # fmt: skip
    measured, predicted = series.saturation
    for at, style, word, shade in ((predicted, "--", "predicted", INK), (measured, ":", "measured", colour)):
        if at is not None:
            axis.axvline(at, color=shade, lw=1.2, ls=style, label=f"saturation {word}: N = {at:,.0f}")
