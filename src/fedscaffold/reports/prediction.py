"""A figure of a predicted error curve, with its bound and a simulation on top."""

from pathlib import Path

import numpy as np

from fedscaffold.core.figures import load_matplotlib, save
from fedscaffold.core.types import Array
from fedscaffold.reports.curves import COLOURS
from fedscaffold.theory.error_curves import draw_error_curve

BOUND, TARGET = "#999999", "#009E73"


def draw(
    file: Path,
    *,
    title: str,
    method: str,
    curve: Array,
    plateau: float,
    bound: Array | None = None,
    simulated: Array | None = None,
    target: float | None = None,
) -> None:
    """Save squared errors by round, on a logarithmic scale, to a PNG, SVG or PDF file.

    Parameters
    ----------
    file
        Where to save the figure.
    title
        Text above the figure.
    method
        Kind of the method, for example "scaffold"; it chooses the colour of the simulation.
    curve
        Predicted squared errors of rounds 0, 1, ..., shape (rounds + 1,).
    plateau
        The squared error that the prediction settles at.
    bound
        Proved upper bounds by round, shape (rounds + 1,).
    simulated
        Squared errors of simulated runs, shape (runs, rounds + 1): drawn as their mean and two standard errors.
    target
        A squared error to reach.
    """
    load_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axis = figure.subplots()
    rounds = np.arange(curve.size)
    if simulated is not None:
        mean, spread = simulated.mean(axis=0), 2.0 * simulated.std(axis=0) / np.sqrt(len(simulated))
        colour = COLOURS[method]
        axis.fill_between(rounds, np.maximum(mean - spread, mean / 10), mean + spread, color=colour, alpha=0.25)
        axis.semilogy(rounds, mean, color=colour, lw=1.4, label=f"simulated, mean of {len(simulated)}")
    draw_error_curve(axis, curve, plateau)
    if target is not None:
        axis.axhline(target, color=TARGET, lw=1.0, label="target")
    if bound is not None:
        axis.semilogy(rounds, bound, color=BOUND, lw=1.2, label="bound (Theorem 4.9)")
    axis.set_title(title, fontsize=10)
    axis.legend(frameon=False, fontsize=9)
    save(figure, file)
