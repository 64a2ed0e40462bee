"""The result of comparing methods: costs to reach targets, the best curves of each method, files and figures."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedscaffold.benchmarking.costs import Cost, Growth, best, cheapest, growth
from fedscaffold.benchmarking.curves import Curve, curves_to_frame
from fedscaffold.core import provenance
from fedscaffold.core.checks import given
from fedscaffold.core.display.summaries import Summarised
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.storage.files import check_writable, folder_at, write_frame, write_text
from fedscaffold.core.types import Array
from fedscaffold.reports import comparison as curve_figure
from fedscaffold.reports import growth as cost_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COST_LABELS = {"rounds": "round", "gradients": "gradients per client", "vectors": "vectors per client"}
FILES = ("costs.csv", "costs.parquet", "curves.csv", "curves.parquet", "comparison.json")
NOT_REACHED = "nothing to draw: no method reached a target; give a larger budget or target"
GRID_FROM, GRID_POINTS = 4.0, 10


def default_step_sizes(smoothness: float) -> list[float]:
    """Ten step sizes 4/L, 2/L, 1/L, ..., to two digits.

    Examples
    --------
    >>> from fedscaffold.benchmarking.method_comparison import default_step_sizes
    >>> default_step_sizes(2.0)[:3]
    [2.0, 1.0, 0.5]
    """
    return [float(f"{GRID_FROM / 2**k / smoothness:.2g}") for k in range(GRID_POINTS)]


@dataclass(frozen=True, eq=False, repr=False)
class MethodComparison(Summarised):
    """Curves of every candidate of every method, and what it costs to reach targets.

    Attributes
    ----------
    targets
        Mean squared errors to reach; empty where every candidate uses up the budget.
    curves
        One for each candidate, from `compare`.
    costs
        The cheapest candidate of each method, number of clients and target.
    growth
        How costs grow with the number of clients and with 1/target.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> from fedscaffold.benchmarking import compare
    >>> from fedscaffold.benchmarking.method_comparison import MethodComparison
    >>> problem = fs.problems.paper("regression", n_clients=4)
    >>> methods = {"Scaffold": fs.Scaffold(step_size=0.05, local_steps=5)}
    >>> curves = compare(problem, methods, rounds=10, repetitions=2, batch_size=10)
    >>> MethodComparison.of(curves, targets=[]).shown()["rounds"][0].name
    'Scaffold'
    """

    targets: Sequence[float]
    curves: Sequence[Curve]
    costs: Sequence[Cost]
    growth: Sequence[Growth]

    @classmethod
    def of(cls, curves: Sequence[Curve], targets: Sequence[float]) -> "MethodComparison":
        """Compare curves by what they cost to reach the targets."""
        costs = cheapest(curves, targets)
        return cls(targets, curves, costs, growth(costs))

    def shown(self) -> dict[str, list[Curve]]:
        """The curves that stand for each method, by cost: "rounds", "gradients" or "vectors".

        With targets these are the cheapest to the smallest target that the method reached, else the best at the
        end of the budget.
        """
        if not self.targets:
            return dict.fromkeys(COST_LABELS, best(self.curves))
        shown = {}
        for measure in COST_LABELS:
            cheapest_in = "gradients" if measure == "gradients" else "rounds"
            rows = [cost for cost in self.costs if cost.cheapest_in == cheapest_in and cost.rounds is not None]
            last = {(row.name, row.n_clients): row.method for row in rows}  # targets fall
            shown[measure] = [
                curve
                for (name, n_clients), method in last.items()
                for curve in self.curves
                if (curve.name, curve.n_clients, curve.method) == (name, n_clients, method)
            ]
        return shown

    def plot(self, ax: "Axes | None" = None, *, cost: str = "rounds") -> "Axes":
        """Draw the squared error of each method against one cost, for the largest number of clients.

        Parameters
        ----------
        ax
            matplotlib axes to draw on; by default those of a new figure.
        cost
            "rounds", "gradients" or "vectors".
        """
        if cost not in COST_LABELS:
            raise InvalidInput(f"cost must be one of {', '.join(COST_LABELS)}, got {given(cost)}")
        return curve_figure.draw_panel(self._panels()[-1][list(COST_LABELS).index(cost)], ax)

    def draw(self, file: Path) -> None:
        """Draw a row of panels for each number of clients, a panel for each cost; to PNG, SVG or PDF."""
        curve_figure.draw(self._panels(), [file])

    def draw_costs(self, file: Path) -> None:
        """Draw fewest gradients against N, and fewest rounds against the target; to PNG, SVG or PDF."""
        cost_figure.draw(self._cost_panels(), [file])

    def save(self, out: Path, settings: dict[str, Any]) -> None:
        """Write costs and curves as CSV and Parquet, and everything but the curves as JSON with the settings."""
        import pandas as pd

        rows = [{**asdict(cost), "method": json.dumps(cost.method)} for cost in self.costs]
        different = {id(curve): curve for curves in self.shown().values() for curve in curves}
        frames = {"costs": pd.DataFrame(rows), "curves": curves_to_frame(list(different.values()))}
        for name, frame in frames.items():
            for suffix in ("csv", "parquet"):
                write_frame(out / f"{name}.{suffix}", frame)
        content = {
            "settings": {**settings, "targets": list(self.targets)},
            "costs": [asdict(cost) for cost in self.costs],
            "growth": [{**asdict(each), "fit": each.fit._asdict()} for each in self.growth],
            **provenance.origin(),
        }
        write_text(out / "comparison.json", json.dumps(content, indent=2) + "\n")

    def _panels(self) -> list[list[curve_figure.CostPanel]]:
        shown = self.shown()
        numbers = sorted({curve.n_clients for curves in shown.values() for curve in curves})
        if not numbers:
            raise InvalidInput(NOT_REACHED)

        def lines(measure: str, n: int) -> dict[str, tuple[Array, Array]]:
            curves = (curve for curve in shown[measure] if curve.n_clients == n)
            return {curve.name: (curve.cost(measure), curve.mse) for curve in curves}

        return [
            [
                curve_figure.CostPanel(f"N = {n:,}", label, lines(measure, n), self.targets)
                for measure, label in COST_LABELS.items()
            ]
            for n in numbers
        ]

    def _cost_panels(self) -> list[cost_figure.GrowthPanel]:
        """Gradients against N for the smallest target reached, rounds against targets for the largest N."""
        reached = [cost for cost in self.costs if cost.rounds]
        if not reached:
            raise InvalidInput(NOT_REACHED)
        target, n_clients = min(cost.target for cost in reached), max(cost.n_clients for cost in reached)
        panels = []
        if len({cost.n_clients for cost in self.costs}) > 1:
            rows = [cost for cost in reached if cost.target == target and cost.cheapest_in == "gradients"]
            series = _series(reached, rows, "n_clients", "gradients")
            title = f"squared error {target:g}"
            panels.append(cost_figure.GrowthPanel(title, "N", "gradients per client", series))
        if len({cost.target for cost in self.costs}) > 1:
            rows = [cost for cost in reached if cost.n_clients == n_clients and cost.cheapest_in == "rounds"]
            series = _series(reached, rows, "target", "rounds")
            title = f"N = {n_clients:,}"
            panels.append(cost_figure.GrowthPanel(title, "squared error", "rounds", series, power=False))
        return panels

    def _facts(self) -> dict[str, object]:
        return {
            "methods": ", ".join(dict.fromkeys(curve.name for curve in self.curves)),
            "candidates": len(self.curves),
            "targets": ", ".join(f"{target:g}" for target in self.targets) or "none",
        }


def check_folder(out: Path) -> Path:
    """Make the folder for a comparison where it is missing; the folder in it for finished candidates."""
    cells = folder_at(out / "cells")
    for name in FILES:
        check_writable(out / name)
    return cells


def _series(reached: Sequence[Cost], rows: Sequence[Cost], x: str, y: str) -> dict[str, tuple[Array, Array]]:
    found = {}
    for name in dict.fromkeys(cost.name for cost in reached):
        pairs = [(float(getattr(row, x)), float(getattr(row, y))) for row in rows if row.name == name]
        xs, ys = np.array(pairs, dtype=np.float64).reshape(-1, 2).T
        found[name] = xs, ys
    return found
