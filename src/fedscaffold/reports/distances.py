"""Relative distance to the pooled model by round."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from fedscaffold.core.display.figures import new_axes, plain_grid
from fedscaffold.core.types import Array
from fedscaffold.reports.layout import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TOLERANCE = "#009E73"


def draw_distances(distances: Mapping[str, Array], *, tolerance: float, ax: "Axes | None" = None) -> "Axes":
    """Draw ‖β_t − β*‖ / ‖β*‖ (rounds + 1,) of each method on a log scale, and the tolerance; return the axes."""
    ax = new_axes(ax)
    for name, values in distances.items():
        ax.semilogy(np.arange(values.size), values, color=COLOURS[name], lw=1.6, label=name)
    ax.axhline(tolerance, color=TOLERANCE, lw=1.0, ls="--", label="tolerance")
    ax.locator_params(axis="x", integer=True)
    ax.set(xlabel="round", ylabel="$\\|\\beta_t-\\beta^*\\| / \\|\\beta^*\\|$")
    ax.margins(x=0)
    plain_grid(ax)
    ax.legend(frameon=False)
    return ax
