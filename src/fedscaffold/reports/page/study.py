"""The pages about a study: the coordinator's, and one for each site."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from fedscaffold.core.types import Array
from fedscaffold.reports.page import drawings, elements
from fedscaffold.reports.page.coefficients import coefficients_section
from fedscaffold.reports.page.content import Page
from fedscaffold.reports.page.judged import MAX_SITES, judged_parts
from fedscaffold.reports.page.sizes import format_bytes
from fedscaffold.reports.page.study_content import (
    HistoryPoint,
    Judgement,
    PhaseTraffic,
    SentMessage,
    SiteContent,
    StudyContent,
)

MAX_MARKS = 60
MAX_MESSAGES = 400


def study_page(content: StudyContent) -> Page:
    """The coordinator's page, from what sites told."""
    section, facts, paragraph = elements.section, elements.facts, elements.paragraph
    sections = (
        section("What was asked", facts("The study", content.request)),
        *([] if content.coefficients is None else [coefficients_section(content.coefficients)]),
        _certificate(content),
        _sites(content),
        section(
            "What was agreed",
            facts("The encoding that all sites accepted", content.agreed),
            elements.table("Columns", ("column", "how it becomes numbers", "missing values"), content.columns),
        ),
        traffic_section(content.traffic, content.promised),
        section("What was decided on the way", *map(paragraph, content.decisions)),
        section("Where this came from", facts("Origin", content.provenance)),
    )
    return Page(title=content.title, summary=content.summary, sections=sections)


def site_page(content: SiteContent) -> Page:
    """A site's own page: how the common model serves it, and exactly what left it."""
    section, facts = elements.section, elements.facts
    judged = content.judgement
    nothing = [elements.paragraph("No rows were left out to judge the model here, or too few to tell anything.")]
    sections = (
        section("The study", facts("Facts", content.facts)),
        section(
            "How the common model serves this site",
            *(
                judged_parts([judged], content.classes, content.loss_name)
                if judged and judged.left_out
                else nothing
            ),
        ),
        *([] if content.coefficients is None else [coefficients_section(content.coefficients)]),
        section(
            "What left this site",
            elements.paragraph(
                "Everything that this site sent, from its own log, in order. Values are shown as they were sent; "
                "of vectors, which are sums over rows or models, the length and a digest, with which the message "
                "can be recognised. Vectors of secure sums left masked, and their entries say so."
            ),
            _phases(content.traffic),
            _messages(content.messages),
        ),
    )
    return Page(title=content.title, summary=content.summary, sections=sections)


def _certificate(content: StudyContent) -> str:
    parts = [elements.facts("Distance to the model that pooled rows would give", content.certificate)]
    if len(content.history) > 1:
        parts.append(_history(content))
    words = (
        "The certificate comes from sums over all sites at the model itself: with g the gradient and A the "
        "Hessian, A⁻¹g is the distance to the pooled optimum, up to its square. Nobody needed pooled rows, or the "
        "optimum."
    )
    return elements.section("How close it is to the pooled model", elements.paragraph(words), *parts)


def _history(content: StudyContent) -> str:
    relative = _by_exchange(content.history, [point.relative for point in content.history])
    lines = [("scaffold", relative)]
    legend = [("line scaffold", "relative to the norm of the coefficients")]
    errors = [math.nan if p.standard_errors is None else p.standard_errors for p in content.history]
    if not all(map(math.isnan, errors)):
        lines.append(("fedavg", _by_exchange(content.history, errors)))
        legend.append(("line fedavg", "largest of a coefficient, in its standard errors"))
    unit = "standard errors" if content.in_standard_errors else "relative"
    legend.append(("line target", f"tolerance: {content.tolerance:g} {unit}"))
    marks = [
        (f"dot-{'common' if point.certified else 'local'}", float(point.exchange), point.relative)
        for point in content.history[-MAX_MARKS:]
        if point.relative > 0
    ]
    if any(point.certified for point in content.history):
        legend.append(("dot-common", "certified by sums over all sites"))
    if not all(point.certified for point in content.history):
        legend.append(("dot-local", "estimated from the latest rounds"))
    last = content.history[-1]
    svg = drawings.curves(
        lines,
        levels=[("target", content.tolerance)],
        marks=marks,
        title=f"Error by exchange; after {last.exchange} exchanges {last.relative:.2g}",
        x_label="exchanges with all sites",
        y_label="distance to the pooled model",
    )
    caption = (
        f"How far the model was from the pooled one, as the study itself could know it (log scale). It began with "
        f"{content.history[0].method} and ended with {last.method}."
    )
    return elements.figure(svg, legend, caption)


def _by_exchange(history: Sequence[HistoryPoint], values: Sequence[float]) -> Array:
    found = np.full(max(point.exchange for point in history) + 1, np.nan)
    for point, value in zip(history, values, strict=True):
        found[point.exchange] = value
    return found


def _sites(content: StudyContent) -> str:
    judged = judged_parts(content.sites, content.classes, content.loss_name) if content.evaluated else []
    if content.secure:
        words = [
            "With secure sums nothing is known here about single sites: losses and counts are sums over all of "
            "them. Each site's own page says how the model serves it."
        ]
        if content.evaluated:
            words.append(_how_judged(content.evaluated))
        return elements.section("All sites together", *map(elements.paragraph, words), *judged)
    words = _who_is_helped(content.sites, content.evaluated)
    return elements.section(
        "Sites: whom the model serves",
        rows_figure({one.site: one.rows for one in content.sites}),
        *map(elements.paragraph, words),
        *judged,
    )


def rows_figure(rows: Mapping[str, int]) -> str:
    """Bars for the rows of each site, or of the largest."""
    shown = sorted(rows, key=lambda site: -rows[site])[:MAX_SITES]
    some = f"the {len(shown)} largest of {len(rows):,} sites" if len(shown) < len(rows) else "each site"
    title = f"Rows of {len(shown)} sites, from most to fewest"
    svg = drawings.bars(shown, [(rows[site],) for site in shown], title=title)
    return elements.figure(svg, [], f"Rows of {some}, from most to fewest.")


def _how_judged(evaluated: float) -> str:
    return (
        f"To judge the model, a second training left out {evaluated:.0%} of each site's rows, chosen by a secret "
        "of the site, and was tried on them; the model that is delivered uses all rows."
    )


def _who_is_helped(sites: Sequence[Judgement], evaluated: float) -> list[str]:
    if not evaluated:
        return ["The study asked for no evaluation."]
    known = [one for one in sites if one.together is not None and one.alone is not None]
    helped = sum((one.alone or 0.0) > (one.together or 0.0) for one in known)
    silent = sum(one.left_out == 0 for one in sites)
    words = [
        f"{_how_judged(evaluated)} {helped} of {len(known)} sites are served better by the common model than by "
        "one of their own. There are no error bars: small differences may be noise."
    ]
    if silent:
        words.append(f"Sites with too few rows to leave some out, which told nothing: {silent}.")
    return words


def traffic_section(traffic: Mapping[str, Sequence[PhaseTraffic]], promised: Sequence[str]) -> str:
    """What left each site, by phase, and sentences about it."""
    phases = list(dict.fromkeys(one.phase for each in traffic.values() for one in each))
    rows = []
    for site, each in list(traffic.items())[:MAX_SITES]:
        by_phase = {one.phase: one for one in each}
        cells = [format_bytes(by_phase[phase].bytes) if phase in by_phase else "–" for phase in phases]
        rows.append([site, *cells, format_bytes(sum(one.bytes for one in each))])
    more = len(traffic) - len(rows)
    caption = "What left each site, by phase" + (f"; {more:,} sites are left out" if more > 0 else "")
    return elements.section(
        "What left each site",
        elements.table(caption, ["site", *phases, "all"], rows),
        *map(elements.paragraph, promised),
    )


def _phases(traffic: Sequence[PhaseTraffic]) -> str:
    rows = [[one.phase, f"{one.messages:,}", f"{one.numbers:,}", format_bytes(one.bytes)] for one in traffic]
    total = sum(one.bytes for one in traffic)
    rows.append(["all", f"{sum(one.messages for one in traffic):,}", f"{sum(one.numbers for one in traffic):,}"])
    rows[-1].append(format_bytes(total))
    return elements.table("What left, by phase", ("phase", "messages", "numbers in vectors", "size"), rows)


def _messages(messages: Sequence[SentMessage]) -> str:
    entries = [
        elements.details(
            f"{k + 1}. {one.phase}, {format_bytes(one.bytes)}" + (f", {one.time}" if one.time else ""),
            elements.code(one.content),
            *(
                elements.paragraph(f"{name}: {count:,} numbers, SHA-256 {digest}")
                for name, count, digest in one.vectors
            ),
        )
        for k, one in enumerate(messages[:MAX_MESSAGES])
    ]
    more = len(messages) - len(entries)
    rest = [elements.paragraph(f"{more:,} later messages are in the log alone.")] if more > 0 else []
    return "\n".join([*entries, *rest])
