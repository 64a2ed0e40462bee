"""Drawing of predicted squared errors by round."""

from typing import TYPE_CHECKING

import numpy as np

from fedscaffold.core.display.figures import plain_grid
from fedscaffold.core.types import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PREDICTED = "#222222"


def draw_error_curve(ax: "Axes", curve: Array, plateau: float | None = None) -> None:
    """Draw E‖θ_t − θ*‖² for t = 0, 1, ... on a logarithmic scale, and the plateau as a dotted line."""
    ax.semilogy(np.arange(curve.size), curve, color=PREDICTED, lw=1.4, ls="--", label="predicted")
    if plateau is not None:
        ax.axhline(plateau, color=PREDICTED, lw=0.8, ls=":", label="predicted plateau")
    ax.set_xlabel("round")
    ax.set_ylabel("$\\|\\theta_t-\\theta^*\\|^2$")
    ax.margins(x=0)
    plain_grid(ax)
