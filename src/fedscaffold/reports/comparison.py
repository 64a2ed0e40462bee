"""Squared error against rounds, gradients per client and vectors sent."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedscaffold.core.errors import MissingDependency
from fedscaffold.core.files import replacing
from fedscaffold.core.types import Array
from fedscaffold.reports.curves import GRID, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")  # Okabe and Ito
STYLES = ("-", "--", "-.", ":")


@dataclass(frozen=True)
class Line:
    """Squared errors (runs, points) at costs (points,)."""

    cost: Array
    errors: Array


@dataclass(frozen=True)
class Panel:
    """Lines by name, over one cost."""

    title: str
    cost: str
    lines: Mapping[str, Line]
    targets: Sequence[float] = ()
    log: bool = True  # scale of the cost
    spread: bool = True  # whether to show the standard deviation over runs


def draw(rows: Sequence[Sequence[Panel]], files: Sequence[Path]) -> None:
    """Mean and standard deviation over runs, one row of panels for each problem; to PNG, SVG or PDF."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependency("figures need matplotlib; pip install 'fedscaffold[reproduce]'") from error

    names = list(dict.fromkeys(name for row in rows for panel in row for name in panel.lines))
    looks = {name: (PALETTE[i % len(PALETTE)], STYLES[i % len(STYLES)]) for i, name in enumerate(names)}
    columns = max(len(row) for row in rows)
    with mpl.rc_context({"font.size": 10, "svg.fonttype": "none"}):
        figure = Figure(figsize=(1.0 + 3.4 * columns, 0.9 + 2.7 * len(rows)), layout="constrained")
        axes = figure.subplots(len(rows), columns, sharey="row", squeeze=False)
        for line, row in zip(axes, rows, strict=True):
            for axis, panel in zip(line, row, strict=True):
                _panel(axis, panel, looks)
            line[0].set_ylabel("$\\|\\theta_t-\\theta^*\\|^2$")
        if all(list(panel.lines) == names for row in rows for panel in row):
            handles, labels = axes[0, 0].get_legend_handles_labels()
            figure.legend(handles, labels, loc="outside upper center", ncols=2 * columns, frameon=False)
        else:
            for axis in axes.flat:
                axis.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)
        for file in files:
            with replacing(file) as temporary:
                figure.savefig(temporary, format=file.suffix.removeprefix("."), dpi=160)


def _panel(axis: "Axes", panel: Panel, looks: Mapping[str, tuple[str, str]]) -> None:
    for name, line in panel.lines.items():
        colour, style = looks[name]
        first = 1 if panel.log else 0  # no cost yet: not on a logarithmic scale
        cost, errors = line.cost[first:], line.errors[:, first:]
        mean, spread = errors.mean(axis=0), errors.std(axis=0)
        if panel.spread and len(errors) > 1:
            axis.fill_between(
                cost, np.maximum(mean - spread, mean / 10), mean + spread, color=colour, alpha=0.15, lw=0
            )
        axis.semilogy(cost, mean, color=colour, ls=style, label=name, lw=1.6)
    for target in panel.targets:
        axis.axhline(target, color=INK, lw=0.7, ls=":")
    if panel.log:
        axis.set_xscale("log")
    axis.set_title(panel.title, fontsize=10, color=INK)
    axis.set_xlabel(panel.cost)
    plain_axis(axis)


def plain_axis(axis: "Axes") -> None:
    """Grid lines and numbers at powers of ten only, on logarithmic scales; no frame above and to the right."""
    from matplotlib.ticker import NullFormatter

    for each in (axis.xaxis, axis.yaxis):
        if each.get_scale() == "log":
            each.set_minor_formatter(NullFormatter())
    axis.grid(True, which="major", color=GRID, lw=0.6)
    axis.spines[["top", "right"]].set_visible(False)
