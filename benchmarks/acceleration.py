"""Rounds against the condition number and gradients per client against the number of clients: the open question.

`python -m benchmarks.acceleration [--quick]` runs the study of `fedscaffold reproduce acceleration`, resumes what
an interrupted call left in results/acceleration, and draws the figure of the documentation.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks import measured
from fedscaffold.core.display import progress_bar
from fedscaffold.core.files import folder_at
from fedscaffold.paper.acceleration import (
    FEDLIN,
    LONG,
    SHORT,
    SKIP,
    AccelerationSettings,
    Line,
    Part,
    Point,
    claims,
    draw,
    line,
    over_predicted,
    proved_rounds,
    save,
    simulate,
)

QUICK = AccelerationSettings(conditions=(4.0, 8.0, 16.0), clients=(4, 8, 16))
NAMES = {SHORT: "scaffold_short", LONG: "scaffold_long", SKIP: "proxskip", FEDLIN: "fedlin"}
PARTS: tuple[Part, ...] = ("condition", "clients", "logistic")


def figures(points: Sequence[Point], settings: AccelerationSettings) -> dict[str, Any]:
    """Return the numbers of the page, by name."""
    found: dict[str, Any] = {}
    for part in PARTS:
        there = {point.cell.recipe for point in points if point.cell.part == part}
        found[part] = {
            name: _numbers(line(points, part, recipe)) for recipe, name in NAMES.items() if recipe in there
        }
    ratio = over_predicted(points)
    lengths = {NAMES[recipe]: line(points, "length", recipe) for recipe in (LONG, SKIP, FEDLIN)}
    proved = line(points, "condition", LONG).measured / proved_rounds(points, settings)
    return found | {
        "longest": {name: float(each.x[np.isfinite(each.measured)].max()) for name, each in lengths.items()},
        "condition_for_lengths": settings.condition_for_lengths,
        "condition_for_clients": settings.condition_for_clients,
        "logistic_condition": next(p.cell.condition for p in points if p.cell.part == "logistic"),
        "over_predicted": {"least": float(ratio.min()), "most": float(ratio.max()), "cases": ratio.size},
        "over_proved": {"least": float(proved.min()), "most": float(proved.max())},
    }


def _numbers(found: Line) -> dict[str, Any]:
    there = found.measured[np.isfinite(found.measured)]
    numbers: dict[str, Any] = {"first": float(there[0]), "last": float(there[-1])} if there.size else {}
    for name, y in (("measured", found.measured), ("predicted", found.predicted)):
        if np.isfinite(y).sum() >= 3:
            fit = found.fit(y)
            numbers[name] = {"exponent": fit.slope, "low": fit.low, "high": fit.high}
    return numbers


def main() -> None:
    """Measure, print, draw and save."""
    options = measured.parser(__doc__).parse_args()
    settings = QUICK if options.quick else AccelerationSettings()
    out = folder_at(measured.ROOT / "results" / ("quick/acceleration" if options.quick else "acceleration"))
    with progress_bar("Acceleration", None) as advance:
        points = simulate(settings, scratch=folder_at(out / "unfinished"), advance=advance)
    found = claims(points, settings)
    for claim in found:
        print(f"{claim.verdict:10} {claim.claim}: {claim.measured}")
    save(points, found, settings, out)
    if not options.quick:
        image = measured.ROOT / "docs" / "images" / "acceleration.png"
        draw(points, settings, [image])
    note = "Ridge regression on tables and logistic regression on streams, d = 4, B = 1."
    measured.save("acceleration", figures(points, settings), options, note=note)


if __name__ == "__main__":
    main()
