"""The figure of the study: rounds by κ and by γHL, and gradients per client by N, for two kinds of losses."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedscaffold.core.types import Array
from fedscaffold.paper.acceleration.cells import FEDLIN, LONG, RECIPES, SHORT, SKIP, AccelerationSettings, Part
from fedscaffold.paper.acceleration.measure import Point, line
from fedscaffold.reports.layout import INK, MARKERS, PALETTE, legend_above, powers_of_ten, saved_panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LOOKS = dict(zip((LONG, SHORT, SKIP, FEDLIN), zip(PALETTE, MARKERS, strict=False), strict=False))
FREE = {LONG: "Scaffold", SKIP: "ProxSkip", FEDLIN: "FedLin"}  # where γHL varies


def draw(points: Sequence[Point], settings: AccelerationSettings, proved: Array, files: Sequence[Path]) -> None:
    """Draw measured points ± two standard errors and predicted lines in four panels; to PNG, SVG or PDF."""
    with saved_panels(files, 2, 2, width=10.0, height=8.4) as (figure, axes):
        first, second, third, fourth = axes.ravel()
        _lines(first, points, "condition", RECIPES)
        x = line(points, "condition", LONG).x
        first.plot(x, proved, color=INK, lw=1.0, ls=":", label="proved for γHL = √κ, quadratic losses")
        first.set(xlabel="condition number κ", ylabel="rounds to ε", title="rounds: √κ or κ")
        _by_length(second, points, settings)
        _lines(third, points, "clients", RECIPES)
        _one_over_n(third, points, "clients")
        kappa = settings.condition_for_clients
        third.set(title=f"quadratic losses, κ = {kappa:,.0f}: linear speed-up")
        _lines(fourth, points, "logistic", (SHORT, LONG, SKIP))
        _one_over_n(fourth, points, "logistic")
        condition = next(p.cell.condition for p in points if p.cell.part == "logistic")
        fourth.set(title=f"logistic regression, κ = {condition:,.0f}: bias ends it")
        for axis in (third, fourth):
            axis.set(xlabel="number of clients N", ylabel="gradients per client to ε")
        for axis in axes.ravel():
            axis.set(xscale="log", yscale="log")
            axis.title.set_fontsize(10)
            powers_of_ten(axis)
        third.legend(*_only(third, "1/N"), frameon=False, fontsize=9)
        legend_above(figure, first, columns=3)


def _lines(axis: "Axes", points: Sequence[Point], part: Part, recipes: Sequence[str]) -> None:
    for recipe in recipes:
        found = line(points, part, recipe)
        colour, marker = LOOKS[recipe]
        error = np.minimum(2.0 * np.nan_to_num(found.error), 0.9 * np.nan_to_num(found.measured, nan=1.0))
        axis.errorbar(
            found.x, found.measured, yerr=error, color=colour, marker=marker, ms=5, ls="none", capsize=2,
            label=recipe,
        )  # fmt: skip
        there = np.isfinite(found.predicted)
        if there.any():
            axis.plot(found.x[there], found.predicted[there], color=colour, lw=1.1)


def _by_length(axis: "Axes", points: Sequence[Point], settings: AccelerationSettings) -> None:
    _lines(axis, points, "length", tuple(FREE))
    kappa = settings.condition_for_lengths
    axis.axvline(math.sqrt(kappa), color=INK, lw=1.0, ls="--")
    axis.text(math.sqrt(kappa), 0.98, " √κ", transform=axis.get_xaxis_transform(), va="top", color=INK)
    fedlin = line(points, "length", FEDLIN)
    lost = fedlin.x[np.isnan(fedlin.measured)]
    if lost.size:
        colour = LOOKS[FEDLIN][0]
        axis.axvspan(lost.min() / math.sqrt(2.0), fedlin.x.max() * 1.2, color=colour, alpha=0.12, lw=0)
        axis.text(
            1.1 * math.sqrt(kappa), 0.86, "FedLin does not\nreach ε here", color=colour, fontsize=9, va="top",
            transform=axis.get_xaxis_transform(),
        )  # fmt: skip
    title = f"κ = {kappa:,.0f}: how far clients may go between rounds"
    axis.set(xlabel="γHL", ylabel="rounds to ε", title=title)


def _one_over_n(axis: "Axes", points: Sequence[Point], part: Part) -> None:
    """A dashed line of slope −1 a little below the first point."""
    found = line(points, part, LONG)
    axis.plot(found.x, 0.6 * found.measured[0] * found.x[0] / found.x, color=INK, lw=1.0, ls="--", label="1/N")


def _only(axis: "Axes", label: str) -> tuple[list[object], list[str]]:
    handles, labels = axis.get_legend_handles_labels()
    return [handle for handle, each in zip(handles, labels, strict=True) if each == label], [label]
