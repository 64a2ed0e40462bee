"""Plateaus against the number of clients."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedscaffold.core.errors import MissingDependency
from fedscaffold.core.files import replacing
from fedscaffold.core.types import Array
from fedscaffold.reports.curves import COLOURS, GRID, INK


@dataclass(frozen=True)
class Panel:
    """By method: numbers of clients, plateaus and their standard errors, (3, points)."""

    title: str
    lines: Mapping[str, Array]


def draw(panels: Sequence[Panel], files: Sequence[Path], *, falling: str) -> None:
    """Plateaus with two standard errors on logarithmic axes, and 1/N through the first of method `falling`."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependency("figures need matplotlib; pip install 'fedscaffold[reproduce]'") from error

    with mpl.rc_context({"font.size": 10, "svg.fonttype": "none"}):
        figure = Figure(figsize=(1.4 + 3.2 * len(panels), 3.5), layout="constrained")
        axes = figure.subplots(1, len(panels), sharex=True, sharey=True, squeeze=False)[0]
        for axis, panel in zip(axes, panels, strict=True):
            for name, (clients, mean, spread) in panel.lines.items():
                colour = COLOURS["Scaffold" if name == falling else name]
                axis.errorbar(
                    clients, mean, yerr=2.0 * spread, color=colour, marker="o", ms=4, lw=1.6, capsize=2, label=name
                )
            clients, mean, _ = panel.lines[falling]
            axis.plot(clients, mean[0] * clients[0] / clients, color=INK, lw=0.9, ls="--", label="1/N", zorder=0)
            axis.set_xscale("log")
            axis.set_yscale("log")
            axis.set_title(panel.title, fontsize=10, color=INK)
            axis.set_xlabel("number of clients N")
            axis.grid(True, which="major", color=GRID, lw=0.6)
            axis.spines[["top", "right"]].set_visible(False)
        axes[0].set_ylabel("plateau of $\\|\\theta_t-\\theta^*\\|^2$")
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False)
        for file in files:
            with replacing(file) as temporary:
                figure.savefig(temporary, format=file.suffix.removeprefix("."), dpi=160)
