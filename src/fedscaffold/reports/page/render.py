"""From content to a page: one function per section."""

import math
from collections.abc import Sequence
from html import escape

from fedscaffold.reports.page import drawings, elements
from fedscaffold.reports.page.content import ClientRow, ModelRow, ReportContent
from fedscaffold.reports.page.style import CLASS_COLOURS, stylesheet

MAX_SHOWN = 30  # clients
N_EXTREME = 5  # of them at each end, beside the largest


def render(content: ReportContent) -> str:
    """The page as one piece of HTML that needs no other file."""
    section, facts = elements.section, elements.facts
    sections = (
        section("What was asked", facts("The request", content.request)),
        *([_coefficients(content)] if content.coefficients else []),
        _data(content),
        section("The plan", *map(elements.paragraph, content.plan.splitlines())),
        _convergence(content),
        _comparison(content),
        _clients(content),
        section("Communication", facts("What is sent and received", content.cost)),
        section(
            "How to run it again",
            elements.code(content.command),
            facts("Where this came from", content.provenance),
        ),
    )
    title, body = escape(content.title), "\n".join(sections)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{stylesheet()}</style>\n</head>\n<body>\n<main>\n"
        f'<header>\n<h1>{title}</h1>\n<p class="lead">{escape(content.summary)}</p>\n</header>\n'
        f"{body}\n<footer>Made by fedscaffold.</footer>\n</main>\n</body>\n</html>\n"
    )


def _coefficients(content: ReportContent) -> str:
    """A drawing of the largest effects with their intervals, and the table of all coefficients."""
    drawn = sorted(
        (row for row in content.coefficients if not math.isnan(row.effect)), key=lambda row: -row.effect
    )
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
            label=content.coefficient_scale,
        )
        some = f"The {MAX_SHOWN} clearest of {len(content.coefficients)} coefficients" if many else "Effects"
        caption = (
            f"{some} with 95 % intervals, sorted; an interval that crosses the line at 0 is compatible with no "
            "effect. Numbers count per standard deviation, categories against their reference."
        )
        parts.append(elements.figure(svg, [], caption))
    rows = [(row.name, *row.cells) for row in content.coefficients]
    header = ("coefficient", *content.coefficient_columns)
    parts.append(elements.table("Coefficients in the table's own units", header, rows))
    return elements.section("Coefficients", *parts, *map(elements.paragraph, content.coefficient_notes))


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
    says = "The plan aims for the tolerance."
    if content.predicted is not None:
        lines.append(("predicted", content.predicted))
        legend.append(("line predicted", "Scaffold, predicted before the run, intercept included"))
    elif content.predicted_end is not None:
        levels.append(("predicted", content.predicted_end))
        legend.append(("line predicted", "the plan's prediction for the last round, intercept included"))
        says += f" It predicted a distance of {content.predicted_end:.2g} after the last round."
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
        f"{ends}. {says}"
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
    cells = [model.name, f"{model.loss:.6g}", f"{model.loss - best:.2g}", model.distance_text]
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
    shown = list(compared)
    if len(shown) > MAX_SHOWN:
        shown = [*shown[: MAX_SHOWN // 2], *shown[-(MAX_SHOWN // 2) :]]
    svg = drawings.pairs(
        [row.name for row in shown],
        [row.common or 0.0 for row in shown],
        [row.local or 0.0 for row in shown],
        title=f"Loss on rows left out, together and alone; {helped} of {len(compared)} clients are helped",
        label=f"{content.loss_name} on rows left out",
    )
    some = f" {len(compared):,} of {len(content.clients):,} clients were compared."
    ends = f" The {MAX_SHOWN // 2} that lose most and gain most are shown." if len(shown) < len(compared) else ""
    words = (
        f"{helped} of {len(compared)} clients are served better by the common model than by one of their own, "
        "measured on rows that were left out: every other row of each client is left out of both fits, then the "
        "halves change places. So both are models of half of the rows, and the common one is the pooled optimum "
        "that Scaffold approaches. There are no error bars: small differences may be noise."
    )
    caption = "From most hurt (top) to most helped by the common model; further left is better."
    legend = [("dot-common", "together, with all clients"), ("dot-local", "alone, on its own rows")]
    return [
        elements.paragraph(words + (some if len(compared) < len(content.clients) else "")),
        elements.figure(svg, legend, caption + ends),
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
