"""A figure of a predicted error curve, with its bound and a simulation on top."""

from pathlib import Path

import numpy as np

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array
from fedscaffold.planning.prediction import Prediction, draw_error_curve
from fedscaffold.reports.figures import COLOURS, saved_panels

BOUND = "#999999"


def draw(
    file: Path,
    *,
    title: str,
    method: str,
    prediction: Prediction,
    bound: Array | None = None,
    simulated: Array | None = None,
) -> None:
    """Save squared errors by round, on a logarithmic scale, to a PNG, SVG or PDF file.

    Parameters
    ----------
    file
        Where to write the figure.
    title
        Title of the figure.
    method
        "Scaffold" or "FedAvg", for the colour of the simulation.
    prediction
        From `fedscaffold.theory.predict` with rounds.
    bound
        A bound on the squared error, (rounds + 1,).
    simulated
        Squared errors of simulated runs, (runs, rounds + 1).
    """
    curve = prediction.curve
    if curve is None:
        raise InvalidInput("the prediction has no curve; predict with rounds=")
    rounds = np.arange(curve.size)
    with saved_panels([file], 1, 1, width=6.4, height=4.0) as (_, axes):
        axis = axes[0, 0]
        if simulated is not None:
            mean, spread = simulated.mean(axis=0), 2.0 * simulated.std(axis=0) / np.sqrt(len(simulated))
            colour = COLOURS[method]
            axis.fill_between(
                rounds, np.maximum(mean - spread, mean / 10), mean + spread, color=colour, alpha=0.25
            )
            axis.semilogy(rounds, mean, color=colour, lw=1.4, label=f"simulated, mean of {len(simulated)}")
        draw_error_curve(axis, curve, prediction.mse)
        if bound is not None:
            axis.semilogy(rounds, bound, color=BOUND, lw=1.2, label="bound (Theorem 4.9)")
        axis.set_title(title, fontsize=10)
        axis.legend(frameon=False, fontsize=9)
