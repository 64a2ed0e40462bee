"""Coefficients with their intervals: a drawing and a table."""

import math

from fedscaffold.reports.page import drawings, elements
from fedscaffold.reports.page.content import CoefficientTable

MAX_SHOWN = 30


def coefficients_section(table: CoefficientTable) -> str:
    """A drawing of the largest effects with their intervals, and the table of all coefficients."""
    drawn = sorted((row for row in table.rows if not math.isnan(row.effect)), key=lambda row: -row.effect)
    many = len(drawn) > MAX_SHOWN
    if many:  # those that are clearest
        clearest = sorted(drawn, key=lambda row: -abs(row.effect) / max(row.high - row.low, 1e-300))[:MAX_SHOWN]
        drawn = [row for row in drawn if row in clearest]
    parts = []
    if drawn:
        svg = drawings.forest(
            [row.name for row in drawn],
            [(row.low, row.effect, row.high) for row in drawn],
            title=f"Effects of {len(drawn)} coefficients with 95 % intervals, from largest to smallest",
            label=table.scale,
        )
        some = f"The {MAX_SHOWN} clearest of {len(table.rows)} coefficients" if many else "Effects"
        caption = (
            f"{some} with 95 % intervals, sorted; an interval that crosses the line at 0 is compatible with no "
            "effect. Numbers count per standard deviation, categories against their reference."
        )
        parts.append(elements.figure(svg, [], caption))
    rows = [(row.name, *row.cells) for row in table.rows]
    header = ("coefficient", *table.columns)
    parts.append(elements.table("Coefficients in the table's own units", header, rows))
    return elements.section("Coefficients", *parts, *map(elements.paragraph, table.notes))
