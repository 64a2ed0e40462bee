"""A predicted curve, with its bound and a simulation on top."""

from pathlib import Path

import numpy as np

from fedscaffold.core.errors import MissingDependency
from fedscaffold.core.files import replacing
from fedscaffold.core.types import Array
from fedscaffold.reports.curves import COLOURS, GRID

PREDICTED, BOUND = "#222222", "#999999"


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
    """Squared error by round, log scale, to PNG, SVG or PDF; simulated is (runs, rounds + 1)."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependency("figures need matplotlib; pip install 'fedscaffold[reproduce]'") from error
    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axis = figure.subplots()
    rounds = np.arange(curve.size)
    if simulated is not None:
        mean, spread = simulated.mean(axis=0), 2.0 * simulated.std(axis=0) / np.sqrt(len(simulated))
        colour = COLOURS[method]
        axis.fill_between(rounds, np.maximum(mean - spread, mean / 10), mean + spread, color=colour, alpha=0.25)
        axis.semilogy(rounds, mean, color=colour, lw=1.4, label=f"simulated, mean of {len(simulated)}")
    axis.semilogy(rounds, curve, color=PREDICTED, lw=1.4, ls="--", label="predicted")
    axis.axhline(plateau, color=PREDICTED, lw=0.8, ls=":", label="predicted plateau")
    if target is not None:
        axis.axhline(target, color="#009E73", lw=1.0, label="target")
    if bound is not None:
        axis.semilogy(rounds, bound, color=BOUND, lw=1.2, label="bound (Theorem 4.9)")
    axis.set_title(title, fontsize=10)
    axis.set_xlabel("round")
    axis.set_ylabel("$\\|\\theta_t-\\theta^*\\|^2$")
    axis.grid(True, which="major", color=GRID, lw=0.6)
    axis.spines[["top", "right"]].set_visible(False)
    axis.margins(x=0)
    axis.legend(frameon=False, fontsize=9)
    with replacing(file) as temporary:
        figure.savefig(temporary, format=file.suffix.removeprefix("."), dpi=160)
