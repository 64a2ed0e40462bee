"""A grid of convergence curves, one panel per problem."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedscaffold.core.errors import MissingDependency
from fedscaffold.core.files import replacing
from fedscaffold.core.types import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = {"Scaffold": "#0072B2", "FedAvg": "#D55E00"}
INK, GRID = "#222222", "#DDDDDD"


@dataclass(frozen=True)
class Panel:
    """Squared errors (runs, rounds + 1) by method."""

    title: str
    curves: Mapping[str, Array]


def draw(rows: Sequence[tuple[str, Sequence[Panel]]], files: Sequence[Path]) -> None:
    """Mean and standard deviation over runs, log scale, one scale per row; to PNG, SVG or PDF."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependency("figures need matplotlib; pip install 'fedscaffold[reproduce]'") from error

    columns = max(len(panels) for _, panels in rows)
    with mpl.rc_context({"font.size": 10, "svg.fonttype": "none"}):
        figure = Figure(figsize=(2.2 + 2.4 * columns, 0.8 + 2.3 * len(rows)), layout="constrained")
        axes = figure.subplots(len(rows), columns, sharex=True, sharey="row", squeeze=False)
        for line, (row_title, panels) in zip(axes, rows, strict=True):
            for axis, panel in zip(line, panels, strict=False):
                _panel(axis, panel)
            line[0].set_ylabel(f"{row_title}\n$\\|\\theta_t-\\theta^*\\|^2$")
        for axis in axes[-1]:
            axis.set_xlabel("round")
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False)
        for file in files:
            with replacing(file) as temporary:
                figure.savefig(temporary, format=file.suffix.removeprefix("."), dpi=160)


def _panel(axis: "Axes", panel: Panel) -> None:
    for name, errors in panel.curves.items():
        rounds = np.arange(errors.shape[1])
        mean, spread = errors.mean(axis=0), errors.std(axis=0)
        axis.fill_between(
            rounds, np.maximum(mean - spread, mean / 10), mean + spread, color=COLOURS[name], alpha=0.2, lw=0
        )
        axis.semilogy(rounds, mean, color=COLOURS[name], label=name, lw=1.6)
    axis.set_title(panel.title, fontsize=10, color=INK)
    axis.grid(True, which="major", color=GRID, lw=0.6)
    axis.spines[["top", "right"]].set_visible(False)
    axis.margins(x=0)
