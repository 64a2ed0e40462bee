"""How a model serves sites: losses together and alone, calibration, confusion, with small counts withheld."""

from collections.abc import Sequence

from fedscaffold.reports.page import drawings, elements
from fedscaffold.reports.page.helped import helped_figure
from fedscaffold.reports.page.study_content import Judgement

MAX_SITES = 30
WITHHELD = "withheld"


def judged_parts(sites: Sequence[Judgement], classes: Sequence[str], loss_name: str) -> list[str]:
    """Pieces of the section about how the common model serves the sites."""
    told = [one for one in sites if one.left_out]
    compared = [(one.site, one.together, one.alone) for one in told]
    known = [(site, a, b) for site, a, b in compared if a is not None and b is not None]
    figure = [helped_figure(known, who="sites", loss_name=loss_name)] if known else []
    return [*figure, _table(sites, loss_name), *_calibration(told, classes), *_confusion(told, classes)]


def _table(sites: Sequence[Judgement], loss_name: str) -> str:
    shown = sorted(sites, key=lambda one: -one.rows)[:MAX_SITES]
    with_auc = any(one.auc is not None for one in sites)
    header = ["site", "rows", "left out", "loss together", "loss alone", "verdict", *["AUC"] * with_auc]
    rows = []
    for one in shown:
        verdict = "–"
        if one.together is not None and one.alone is not None:
            verdict = "helped" if one.alone > one.together else "hurt"
        cells = [one.site, f"{one.rows:,}", f"{one.left_out:,}" if one.left_out else "none told"]
        rows.append([*cells, number(one.together), number(one.alone), verdict, *[number(one.auc)] * with_auc])
    more = f" The {MAX_SITES} largest of {len(sites):,} sites." if len(sites) > MAX_SITES else ""
    caption = f"Mean {loss_name} on rows that training left out, of the common model and of the site's own.{more}"
    return elements.table(caption, header, rows)


def _calibration(sites: Sequence[Judgement], classes: Sequence[str]) -> list[str]:
    points = [point for one in sites for point in one.calibration if point[2]]
    if not points:
        return []
    svg = drawings.calibration(
        points,
        title=f"Calibration: observed against predicted shares of {classes[1]}, in {len(points)} groups of rows",
        x_label=f"predicted probability of {classes[1]}",
        y_label=f"observed share of {classes[1]}",
    )
    caption = (
        f"Each dot is a group of rows {'of one site ' * (len(sites) > 1)}with similar predictions, larger with "
        "more rows. A well calibrated model has its dots on the line. Groups with few rows were joined."
    )
    return [elements.figure(svg, [], caption)]


def _confusion(sites: Sequence[Judgement], classes: Sequence[str]) -> list[str]:
    told = [one for one in sites if one.confusion is not None][:MAX_SITES]
    if not told:
        return []
    rows = [
        [f"{one.site}: {true}" if k == 0 or len(sites) > 1 else true, *map(_count, counts)]
        for one in told
        for k, (true, counts) in enumerate(zip(classes, one.confusion or (), strict=True))
    ]
    some = "" if len(told) == len(sites) else f" {len(told)} of {len(sites)} sites told it."
    caption = f"Rows of each class (down) and the class that the model gives them (across).{some}"
    return [elements.table(caption, ["site and class", *classes], rows)]


def _count(count: int | None) -> str:
    return WITHHELD if count is None else f"{count:,}"


def number(value: float | None) -> str:
    """A number with four digits; a dash where there is none."""
    return "–" if value is None else f"{value:.4g}"
