"""Coefficients with standard errors, as reports show them."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedscaffold.core.display.summaries import rounded_up
from fedscaffold.data.encoding import Encoding, Number
from fedscaffold.inference import Summary
from fedscaffold.inference.layout import number, probability
from fedscaffold.models.fit import Fit
from fedscaffold.models.summaries import own_units
from fedscaffold.reports.page import CoefficientRow, CoefficientTable


def fit_coefficients(fit: Fit) -> CoefficientTable | None:
    """The coefficients of a fit; None where there are no standard errors."""
    if fit.closed is None or fit.model.standard_errors is None:
        return None
    return coefficient_table(fit.summary(), fit.planned.problem.encoding, notes=[_closing(fit)])


def coefficient_table(summary: Summary, encoding: Encoding, *, notes: Sequence[str] = ()) -> CoefficientTable:
    """The coefficients of a summary in the table's own units; `notes` are added to the summary's."""
    known = own_units(encoding).names
    spread = dict(zip(known, np.tile(_deviations(encoding), len(known) // encoding.dim).tolist(), strict=True))
    ratio = summary.ratio
    letter = "z" if summary.df_resid is None else "t"
    rows = []
    for j, name in enumerate(summary.names):
        cells = [number(summary.coef[j]), number(summary.se[j]), f"{summary.z[j]:.2f}", probability(summary.p[j])]
        cells = ["–" if cell == "nan" else cell for cell in cells]
        cells.append(f"{number(summary.low[j])} to {number(summary.high[j])}")
        if ratio is not None:
            low, middle, high = (
                number(float(np.exp(end[j]))) for end in (summary.low, summary.coef, summary.high)
            )
            cells.append("–" if summary.intercepts[j] else f"{middle} [{low}, {high}]")
        size = float("nan") if summary.intercepts[j] else spread[name]
        effect, low_end, high_end = (size * float(end[j]) for end in (summary.coef, summary.low, summary.high))
        rows.append(CoefficientRow(name=name, cells=tuple(cells), effect=effect, low=low_end, high=high_end))
    columns = ("coefficient", "standard error", letter, "p", "95 % interval")
    scale = encoding.family.effect or f"change of {encoding.target}"
    return CoefficientTable(
        rows=rows,
        columns=columns if ratio is None else (*columns, f"{ratio}, 95 % interval"),
        scale=f"{scale} per standard deviation",
        notes=[*summary.notes, *notes],
    )


def _deviations(encoding: Encoding) -> Any:
    """Standard deviation of each number, and 1 for categories and the intercept, (dim,)."""
    found = np.ones(encoding.dim)
    for column, place in zip(encoding.columns, encoding.places, strict=True):
        if isinstance(column, Number):
            found[place] = column.scale
    return found


def _closing(fit: Fit) -> str:
    """How far the coefficients are from the pooled ones, before and after closing."""
    closed = fit.closed
    assert closed is not None  # as the caller has seen
    ended = (
        f"The run ended at most {rounded_up(closed.distance_before)} standard errors from the pooled coefficients"
    )
    if fit.closing is None:
        return f"{ended}, and no Newton step followed."
    return f"{ended}; {fit.closing}, from sums of gradients and Hessians over clients."
