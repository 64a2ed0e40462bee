"""The live page: how a study stands, as HTML that a few lines of script keep up to date."""

from html import escape

import numpy as np

from fedscaffold.federation.study.report.status import PHASES, StudyStatus, error_of
from fedscaffold.reports.page import drawings, elements
from fedscaffold.reports.page.style import stylesheet

SECONDS_BETWEEN = 2
NOT_COMPUTED = "not computed in a study under a privacy budget"
STATES = {
    "running": "The study is running.",
    "finished": "The study is complete.",
    "stopped": "The study stopped.",
    "killed": "The coordinator's process is gone; start the study again to go on.",
}
STYLE = """
.phases { display: flex; flex-wrap: wrap; gap: .4rem; padding: 0; margin: 1rem 0; list-style: none; }
.phases li { padding: .2rem .7rem; border: 1px solid var(--rule); border-radius: 1rem; color: var(--soft); }
.phases li.done { background: var(--tint); } .phases li.now { background: var(--scaffold); color: var(--paper); }
.alert { border-left: 4px solid var(--fedavg); padding: .3rem .8rem; background: var(--tint);
  overflow-wrap: anywhere; }
#gone { position: sticky; top: 0; padding: .4rem 1rem; background: var(--fedavg); color: var(--paper); }
#gone[hidden] { display: none; }
"""
SCRIPT = """
async function refresh() {
  let lost = true;
  try {
    const reply = await fetch("body", { cache: "no-store" });
    if (reply.ok) { document.querySelector("main").innerHTML = await reply.text(); lost = false; }
  } catch (error) { lost = true; }
  document.getElementById("gone").hidden = !lost;
}
setInterval(refresh, %d);
"""


def live_page(status: StudyStatus | None, nonce: str) -> str:
    """The whole page; its script has the nonce that the answer's security policy names."""
    name = "a study" if status is None else status.name
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Live: {escape(name)}</title>\n<style>{stylesheet()}{STYLE}</style>\n</head>\n<body>\n"
        '<div id="gone" role="status" hidden>No answer from the coordinator; this page is not up to date.</div>\n'
        f'<main aria-live="polite">\n{live_body(status)}\n</main>\n'
        f'<script nonce="{nonce}">{SCRIPT % (1000 * SECONDS_BETWEEN)}</script>\n</body>\n</html>\n'
    )


def live_body(status: StudyStatus | None) -> str:
    """What changes while the study runs."""
    if status is None:
        return "<h1>A study</h1>\n" + elements.paragraph("The study has not begun yet.")
    parts = [
        f"<header>\n<h1>{escape(status.name)}: a model of {escape(status.target)}</h1>\n"
        f'<p class="lead">{escape(STATES[status.state])}</p>\n</header>',
        _phases(status),
    ]
    if status.error:
        parts.append(f'<p class="alert">{escape(status.error)}</p>')
    parts.append(f'<div class="pair">{_facts(status)}\n{_history(status)}</div>')
    parts.append(_sites(status))
    if status.refused:
        rows = [(one["who"], one["since"], one["why"]) for one in reversed(status.refused)]
        parts.append(elements.section("Refused", elements.table("Who was refused", ("who", "when", "why"), rows)))
    if status.notes:
        parts.append(elements.section("What was decided", *map(elements.paragraph, status.notes)))
    return "\n".join(parts)


def time_text(seconds: float) -> str:
    """A length of time for people: about 3 minutes."""
    for unit, length in (("hour", 3600.0), ("minute", 60.0)):
        if seconds >= 1.5 * length:
            return f"about {seconds / length:.0f} {unit}s"
    count = max(round(seconds), 1)
    return f"about {count} second{'s' * (count > 1)}"


def _phases(status: StudyStatus) -> str:
    at = PHASES.index(status.phase)
    items = []
    for k, phase in enumerate(PHASES):
        done = k < at or status.state == "finished"
        css, current = ("done", "") if done else ("now", ' aria-current="step"') if k == at else ("", "")
        items.append(f'<li class="{css}"{current}>{phase}</li>')
    return f'<ol class="phases">{"".join(items)}</ol>'


def _facts(status: StudyStatus) -> str:
    online = sum(site.state == "online" for site in status.sites.values())
    error = "not known yet" if status.tolerance else NOT_COMPUTED
    if status.current_error is not None and status.aim is not None:
        last = status.history[-1]
        unit = "standard errors" if status.tolerance.startswith("se:") and last.standard_errors is not None else ""
        error = f"{status.current_error:.2g} {unit or 'relative'}, {last.how}; asked for: {status.aim:g}"
    left = "–"
    if status.state == "running" and status.phase == "train":
        left = "cannot be told yet" if status.seconds_left is None else time_text(status.seconds_left)
    return elements.facts(
        "Now",
        [
            ("sites online", f"{online} of {len(status.sites)}"),
            ("phase", status.phase),
            ("exchanges, all phases", f"{status.exchanges:,}"),
            ("exchanges of training", f"{status.rounds:,}"),
            ("distance to the pooled model", error),
            ("time left for training", left),
            ("an exchange takes", f"{status.seconds_per_exchange:.2g} s"),
            ("began", status.started),
            ("newest news", status.updated),
        ],
    )


def _history(status: StudyStatus) -> str:
    points = [(point.exchange, error_of(point, status.tolerance), point.how) for point in status.history]
    points = [point for point in points if point[1] > 0.0]
    if not status.tolerance:
        return elements.paragraph(f"The distance to the pooled model is {NOT_COMPUTED}.")
    if not points:
        return elements.paragraph("Training has not begun, so that there is no error to show yet.")
    values = np.full(max(at for at, _, _ in points) + 1, np.nan)
    for at, value, _ in points:
        values[at] = value
    levels = [] if status.aim is None else [("target", status.aim)]
    svg = drawings.curves(
        [("scaffold", values)],
        levels=levels,
        marks=[("dot-common" if how == "certified" else "dot-local", float(at), v) for at, v, how in points[-60:]],
        title=f"Error by exchange; now {points[-1][1]:.2g}",
        x_label="exchanges of training",
        y_label="distance to the pooled model",
        height=280,
    )
    legend = [("line target", "tolerance"), ("dot-common", "certified"), ("dot-local", "estimated")]
    return elements.figure(svg, legend, "The error as the study itself knows it, by exchange (log scale).")


def _sites(status: StudyStatus) -> str:
    order = ("refused", "offline", "invited", "online")
    rows = [
        (name, site.state, site.since or "–", site.why or "–")
        for name, site in sorted(status.sites.items(), key=lambda item: (order.index(item[1].state), item[0]))
    ]
    return elements.section(
        "Sites", elements.table("How each site stands", ("site", "state", "since", "why"), rows)
    )
