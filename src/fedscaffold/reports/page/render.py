"""From content to a page: one function per section."""

import math
from collections.abc import Sequence
from html import escape

from fedscaffold.reports.page import drawings, elements
from fedscaffold.reports.page.content import Candidate, ClientRow, Content
from fedscaffold.reports.page.style import CLASS_COLOURS, stylesheet

MOST_SHOWN = 30


def render(content: Content) -> str:
    """The whole page, in one piece of HTML that needs nothing else."""
    sections = (_asked, _data, _plan, _convergence, _comparison, _clients, _cost, _provenance)
    title = escape(content.title)
    body = "\n".join(make(content) for make in sections)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{stylesheet()}</style>\n</head>\n<body>\n<main>\n"
        f'<header>\n<h1>{title}</h1>\n<p class="lead">{escape(content.summary)}</p>\n</header>\n'
        f"{body}\n<footer>Made by fedscaffold.</footer>\n</main>\n</body>\n</html>\n"
    )


def _asked(content: Content) -> str:
    return elements.section("What was asked", elements.facts("The request", content.asked))


def _data(content: Content) -> str:
    shown = _spread(sorted(content.clients, key=lambda row: -sum(row.rows)))
    most = sum(sum(row.rows) for row in content.clients)
    classes, groups = grouped_classes(content)
    counts = [tuple(sum(row.rows[j] for j in group) for group in groups) for row in shown]
    svg = drawings.bars(
        [row.name for row in shown], counts, title=f"Rows of {len(shown)} clients, from most to fewest"
    )
    all_of = "the" if len(shown) == len(content.clients) else f"{len(shown)} of {len(content.clients):,}"
    what = "Rows of each class" if len(classes) > 1 else "Rows"
    legend = [(f"s{j}", name) for j, name in enumerate(classes)] if len(classes) > 1 else []
    parts = [elements.figure(svg, legend, f"{what} on {all_of} clients, from most to fewest.")]
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
    return elements.section("The data", f'<div class="pair"><div>{facts}</div>\n' + "".join(parts) + "</div>")


def grouped_classes(content: Content) -> tuple[list[str], list[tuple[int, ...]]]:
    """As many classes as there are colours, and the rest as one."""
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


def _plan(content: Content) -> str:
    return elements.section("The plan", *(elements.paragraph(line) for line in content.plan.splitlines()))


def _convergence(content: Content) -> str:
    lines = [(name.lower(), values) for name, values in content.distances.items()]
    legend = [(f"line {name.lower()}", name) for name in content.distances]
    levels = [("target", content.tolerance)]
    says = "The plan aims for the tolerance."
    if content.predicted is not None:
        lines.append(("predicted", content.predicted))
        legend.append(("line predicted", "Scaffold, predicted before the run"))
    elif content.predicted_end is not None:
        levels.append(("predicted", content.predicted_end))
        legend.append(("line predicted", "the plan's prediction for the last round"))
        says += f" It predicted a distance of {content.predicted_end:.2g} after the last round."
    legend.append(("line target", "tolerance"))
    ends = ", ".join(f"{name} ends at {values[-1]:.2g}" for name, values in content.distances.items())
    svg = drawings.curves(
        lines,
        levels=levels,
        title=f"Relative distance to the pooled model by round; {ends}",
        x_label="round",
        y_label="‖θ − θ*‖ / ‖θ*‖",
    )
    caption = f"Distance to the pooled model's coefficients, relative, by round (log scale): {ends}. {says}"
    return elements.section("Convergence", elements.figure(svg, legend, caption))


def _comparison(content: Content) -> str:
    names = list(content.candidates[0].metrics)
    tested = content.candidates[0].test is not None
    header = ["model", "loss", "above pooled", "distance", *names]
    header += [f"test {name}" for name in names] if tested else []
    best = content.candidates[-1].loss
    rows = [_candidate(candidate, best, names) for candidate in content.candidates]
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


def _candidate(candidate: Candidate, best: float, names: Sequence[str]) -> list[str]:
    cells = [candidate.name, f"{candidate.loss:.6g}", f"{candidate.loss - best:.2g}", f"{candidate.distance:.2g}"]
    for metrics in (candidate.metrics, candidate.test):
        if metrics is not None:
            cells += [f"{metrics[name]:.4g}" if name in metrics else "–" for name in names]
    return cells


def _clients(content: Content) -> str:
    judged = [row for row in content.clients if row.alone is not None and not math.isnan(row.alone)]
    judged.sort(key=_gain)
    parts = []
    if judged:
        parts += _alone(content, judged)
    else:
        parts.append(elements.paragraph("No client has enough rows, or a model of its own, to compare with."))
    parts.append(_client_table(content))
    return elements.section("Clients: who is helped", *parts)


def _alone(content: Content, judged: Sequence[ClientRow]) -> list[str]:
    helped = sum(_gain(row) > 0 for row in judged)
    shown = list(judged)
    if len(shown) > MOST_SHOWN:
        shown = [*shown[: MOST_SHOWN // 2], *shown[-(MOST_SHOWN // 2) :]]
    svg = drawings.pairs(
        [row.name for row in shown],
        [row.together or 0.0 for row in shown],
        [row.alone or 0.0 for row in shown],
        title=f"Loss on rows left out, together and alone; {helped} of {len(judged)} clients are helped",
        label=f"{content.loss_name} on rows left out",
    )
    some = f" {len(judged):,} of {len(content.clients):,} clients were judged."
    ends = f" The {MOST_SHOWN // 2} that lose most and gain most are shown." if len(shown) < len(judged) else ""
    words = (
        f"{helped} of {len(judged)} clients are served better by the common model than by one of their own, "
        "judged on rows that were left out: every other row of each client is left out of both fits, then the "
        "halves change places. So both are models of half of the rows, and the common one is the pooled optimum "
        "that Scaffold approaches. There are no error bars: small differences may be chance."
    )
    caption = "From most hurt (top) to most helped by the common model; further left is better."
    legend = [("dot-together", "together, with all clients"), ("dot-alone", "alone, on its own rows")]
    return [
        elements.paragraph(words + (some if len(judged) < len(content.clients) else "")),
        elements.figure(svg, legend, caption + ends),
    ]


def _client_table(content: Content) -> str:
    shown = _spread(sorted(content.clients, key=lambda row: -sum(row.rows)))
    rows = []
    for row in shown:
        verdict = "–"
        if row.alone is not None and not math.isnan(row.alone):
            verdict = "helped" if _gain(row) > 0 else "hurt"
        held = (_number(row.together), _number(row.alone), verdict)
        rows.append([row.name, f"{sum(row.rows):,}", _number(row.scaffold), _number(row.fedavg), *held])
    header = ("client", "rows", "Scaffold", "FedAvg", "left out: together", "alone", "verdict")
    of = "" if len(shown) == len(content.clients) else f" ({len(shown)} of {len(content.clients):,} clients)"
    caption = f"Loss per client{of}: {content.loss_name} plus penalty on its rows, and on rows left out of the fit"
    return elements.table(caption, header, rows)


def _cost(content: Content) -> str:
    return elements.section("Communication", elements.facts("What travels", content.cost))


def _provenance(content: Content) -> str:
    return elements.section(
        "How to run it again",
        elements.code(content.command),
        elements.facts("Where this came from", content.provenance),
    )


def _gain(row: ClientRow) -> float:
    return (row.alone or 0.0) - (row.together or 0.0)


def _number(value: float | None) -> str:
    return "–" if value is None or math.isnan(value) else f"{value:.4g}"


def _spread(rows: Sequence[ClientRow]) -> Sequence[ClientRow]:
    """All, or evenly spaced ones."""
    if len(rows) <= MOST_SHOWN:
        return rows
    return [rows[round(k * (len(rows) - 1) / (MOST_SHOWN - 1))] for k in range(MOST_SHOWN)]
