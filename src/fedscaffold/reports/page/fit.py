"""The page about a fit: one function per section."""

import math
from collections.abc import Sequence

from fedscaffold.reports.page import drawings, elements
from fedscaffold.reports.page.coefficients import coefficients_section
from fedscaffold.reports.page.content import ClientRow, ModelRow, Page, ReportContent
from fedscaffold.reports.page.helped import helped_figure
from fedscaffold.reports.page.style import CLASS_COLOURS

MAX_SHOWN = 30  # clients
N_EXTREME = 5  # of them at each end, beside the largest


def fit_page(content: ReportContent) -> Page:
    """The page about a fit."""
    section, facts = elements.section, elements.facts
    sections = (
        section("What was asked", facts("The request", content.request)),
        *([] if content.coefficients is None else [coefficients_section(content.coefficients)]),
        _data(content),
        section("The plan", *map(elements.paragraph, content.plan.splitlines())),
        _convergence(content),
        _comparison(content),
        _clients(content),
        section("Communication", facts("What is sent and received", content.cost)),
        *(
            [section("Time", facts("Where the time of this simulation went", content.time))]
            if content.time
            else []
        ),
        section(
            "How to run it again",
            elements.code(content.command),
            facts("Where this came from", content.provenance),
        ),
    )
    return Page(title=content.title, summary=content.summary, sections=sections)


def _data(content: ReportContent) -> str:
    by_size = sorted(content.clients, key=_size)
    shown = _largest_and(content.clients, by_size[:N_EXTREME])
    most = sum(sum(row.rows) for row in content.clients)
    classes, groups = grouped_classes(content)
    counts = [tuple(sum(row.rows[j] for j in group) for group in groups) for row in shown]
    svg = drawings.bars(
        [row.name for row in shown], counts, title=f"Rows of {len(shown)} clients, from most to fewest"
    )
    left_out = len(content.clients) - len(shown)
    all_of = f"the {len(shown) - N_EXTREME} largest and the {N_EXTREME} smallest" if left_out else "the"
    end = f" {left_out:,} clients between them are left out." if left_out else ""
    what = "Rows of each class" if len(classes) > 1 else "Rows"
    legend = [(f"s{j}", name) for j, name in enumerate(classes)] if len(classes) > 1 else []
    drawing = elements.figure(svg, legend, f"{what} on {all_of} clients, from most to fewest.{end}")
    facts = elements.facts("The table", content.data)
    if len(content.classes) > 1:
        totals = [sum(row.rows[j] for row in content.clients) for j in range(len(content.classes))]
        facts += elements.table(
            "Classes: rows, share of all, and the range of shares over clients",
            ("class", "rows", "share", "smallest", "largest"),
            [
                (name, f"{total:,}", f"{total / most:.1%}", *_range(content.clients, j))
                for j, (name, total) in enumerate(zip(content.classes, totals, strict=True))
            ],
        )
    return elements.section("The data", f'<div class="pair"><div>{facts}</div>\n{drawing}</div>')


def grouped_classes(content: ReportContent) -> tuple[list[str], list[tuple[int, ...]]]:
    """Names and groups of classes: one group per colour, the smallest classes together in the last."""
    K = max(len(content.classes), 1)
    names = list(content.classes) or ["rows"]
    if K <= CLASS_COLOURS:
        return names, [(j,) for j in range(K)]
    totals = [sum(row.rows[j] for row in content.clients) for j in range(K)]
    order = sorted(range(K), key=lambda j: -totals[j])
    kept, rest = sorted(order[: CLASS_COLOURS - 1]), tuple(order[CLASS_COLOURS - 1 :])
    return [*(names[j] for j in kept), f"{len(rest)} others"], [*((j,) for j in kept), rest]


def _range(clients: Sequence[ClientRow], j: int) -> tuple[str, str]:
    shares = [row.rows[j] / sum(row.rows) for row in clients]
    return f"{min(shares):.1%}", f"{max(shares):.1%}"


def _convergence(content: ReportContent) -> str:
    lines = [(name.lower(), values) for name, values in content.distances.items()]
    legend = [(f"line {name.lower()}", name) for name in content.distances]
    levels = [("target", content.tolerance)]
    if content.predicted is not None:
        lines.append(("predicted", content.predicted))
        legend.append(("line predicted", "Scaffold, as the plan predicted it, intercept included"))
    legend.append(("line target", "tolerance"))
    ends = ", ".join(f"{name} ends at {values[-1]:.2g}" for name, values in content.distances.items())
    svg = drawings.curves(
        lines,
        levels=levels,
        title=f"Relative distance to the pooled model by round; {ends}",
        x_label="round",
        y_label="‖β − β*‖ / ‖β*‖",
    )
    caption = (
        f"Distance to the pooled model's coefficients, relative and without the intercept, by round (log scale): "
        f"{ends}. The plan aims for the tolerance."
    )
    return elements.section("Convergence", elements.figure(svg, legend, caption))


def _comparison(content: ReportContent) -> str:
    names = list(content.models[0].metrics)
    tested = content.models[0].test is not None
    header = ["model", "loss", "above pooled", "distance", *names]
    header += [f"test {name}" for name in names] if tested else []
    best = content.models[-1].loss
    rows = [_model_cells(model, best, names) for model in content.models]
    caption = (
        f"Loss ({content.loss_name}) and metrics on all rows"
        + (", and on the test rows" if tested else "")
        + "; distance to the pooled model's coefficients, relative"
    )
    words = elements.paragraph(
        "Scaffold and FedAvg ran with the same step size, local steps, rounds and batches. Pooled is the model "
        "that one would fit with all rows in one place: the optimum that both aim for."
    )
    return elements.section("Scaffold, FedAvg and pooled data", words, elements.table(caption, header, rows))


def _model_cells(model: ModelRow, best: float, names: Sequence[str]) -> list[str]:
    above = 0.0 if math.isclose(model.loss, best, rel_tol=1e-12) else model.loss - best
    cells = [model.name, f"{model.loss:.6g}", f"{above:.2g}", model.distance_text]
    for metrics in (model.metrics, model.test):
        if metrics is not None:
            cells += [f"{metrics[name]:.4g}" if name in metrics else "–" for name in names]
    return cells


def _clients(content: ReportContent) -> str:
    compared = sorted((row for row in content.clients if _has_own_model(row)), key=_gain)
    none = [elements.paragraph("No client has enough rows, or a model of its own, to compare with.")]
    parts = _local_models(content, compared) if compared else none
    return elements.section("Clients: who is helped", *parts, _client_table(content))


def _local_models(content: ReportContent, compared: Sequence[ClientRow]) -> list[str]:
    helped = sum(_gain(row) > 0 for row in compared)
    some = f" {len(compared):,} of {len(content.clients):,} clients were compared."
    words = (
        f"{helped} of {len(compared)} clients are served better by the common model than by one of their own, "
        "measured on rows that were left out: every other row of each client is left out of both fits, then the "
        "halves change places. So both are models of half of the rows, and the common one is the pooled optimum "
        "that Scaffold approaches. There are no error bars: small differences may be noise."
    )
    return [
        elements.paragraph(words + (some if len(compared) < len(content.clients) else "")),
        helped_figure(
            [(row.name, row.common or 0.0, row.local or 0.0) for row in compared],
            who="clients",
            loss_name=content.loss_name,
        ),
    ]


def _client_table(content: ReportContent) -> str:
    """The table of all clients or, where there are many, of the largest and those most hurt and most helped."""
    compared = sorted((row for row in content.clients if _has_own_model(row)), key=_gain)
    extremes = [*compared[:N_EXTREME], *compared[-N_EXTREME:]]
    shown = _largest_and(content.clients, extremes)
    rows = []
    for row in shown:
        verdict = ("helped" if _gain(row) > 0 else "hurt") if _has_own_model(row) else "–"
        judged = (_number(row.common), _number(row.local), verdict)
        rows.append([row.name, f"{sum(row.rows):,}", _number(row.scaffold), _number(row.fedavg), *judged])
    header = ("client", "rows", "Scaffold", "FedAvg", "left out: together", "alone", "verdict")
    left_out = len(content.clients) - len(shown)
    of = f" (the largest, those most hurt and most helped; {left_out:,} others are left out)" if left_out else ""
    caption = f"Loss per client{of}: {content.loss_name} plus penalty on its rows, and on rows left out of the fit"
    return elements.table(caption, header, rows)


def _has_own_model(row: ClientRow) -> bool:
    return row.local is not None and not math.isnan(row.local)


def _gain(row: ClientRow) -> float:
    return (row.local or 0.0) - (row.common or 0.0)


def _number(value: float | None) -> str:
    return "–" if value is None or math.isnan(value) else f"{value:.4g}"


def _size(row: ClientRow) -> int:
    return sum(row.rows)


def _largest_and(rows: Sequence[ClientRow], extremes: Sequence[ClientRow]) -> list[ClientRow]:
    """Rows from the largest to the smallest client: all, or 30 of them, the extremes and the largest."""
    ordered = sorted(rows, key=_size, reverse=True)
    if len(ordered) <= MAX_SHOWN:
        return ordered
    kept = {id(row) for row in extremes}
    for row in ordered:
        if len(kept) < MAX_SHOWN:
            kept.add(id(row))
    return [row for row in ordered if id(row) in kept]
