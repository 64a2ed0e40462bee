"""Figures of a run's recorded series, of its stages, and of an extrapolation."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedscaffold.core.display import new_axes, plain_grid
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LABELS = {"mse": "$\\|\\theta_t-\\theta^*\\|^2$", "loss": "$f(\\theta_t)$"}
BLUE, ORANGE, INK = "#0072B2", "#D55E00", "#222222"


def draw_series(
    series: Array, name: str, *, at: tuple[str, Array], label: str, ax: "Axes | None" = None
) -> "Axes":
    """Draw the mean of (repetitions, rounds + 1) series, shaded from smallest to largest.

    `at` names the horizontal axis and has its values, (rounds + 1,). The vertical scale is logarithmic if all
    values are positive, except for accuracies.
    """
    if series.ndim != 2:
        raise InvalidInput(f"{name} is not a number per round; plot a series such as 'mse' or 'loss'")
    ax = new_axes(ax)
    horizontal, x = at
    (line,) = ax.plot(x, series.mean(axis=0), lw=1.6, label=label)
    if len(series) > 1:
        colour = line.get_color()
        ax.fill_between(x, series.min(axis=0), series.max(axis=0), color=colour, alpha=0.2, lw=0)
    if name != "accuracy" and (series > 0).all():
        ax.set_yscale("log")
    ax.locator_params(axis="x", integer=True)
    ax.set_xlabel(horizontal)
    ax.set_ylabel(LABELS.get(name, name))
    ax.margins(x=0)
    plain_grid(ax)
    ax.legend(frameon=False)
    return ax


def draw_stages(changes: Sequence[int], ax: "Axes") -> "Axes":
    """Add dotted lines after the rounds in which the step size was halved."""
    for k, after in enumerate(changes):
        ax.axvline(after, color=INK, lw=0.7, ls=":", label="step size halved" if k == 0 else None)
    ax.legend(frameon=False)
    return ax


def draw_extrapolation(
    theta: Array, fine: Array, coarse: Array, standard_error: Array, ax: "Axes | None" = None
) -> "Axes":
    """Draw both averages minus the extrapolated model, by coordinate, over ± two standard errors of the latter.

    All are (repetitions, dim); means over the repetitions are drawn.
    """
    ax = new_axes(ax)
    at = np.arange(theta.shape[1])
    error = 2.0 * np.sqrt(np.square(standard_error).mean(axis=0) / len(theta))
    ax.fill_between(
        at, -error, error, color=INK, alpha=0.15, lw=0, label="± 2 standard errors of the extrapolation"
    )
    for values, marker, colour, label in (
        (fine, "o", BLUE, "average with step size γ"),
        (coarse, "s", ORANGE, "average with step size 2γ"),
    ):
        ax.plot(at, (values - theta).mean(axis=0), marker, color=colour, ms=4.5, label=label)
    ax.axhline(0.0, color=INK, lw=0.7)
    ax.locator_params(axis="x", integer=True)
    ax.set_xlabel("coordinate")
    ax.set_ylabel("difference to the extrapolated model")
    plain_grid(ax)
    ax.legend(frameon=False, fontsize=9)
    return ax
