"""A site's own page: how the common model serves it, and exactly what left it, from its append-only log."""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedscaffold.core.display.summaries import rounded_up
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.storage.files import write_text
from fedscaffold.federation.agreement import Agreement
from fedscaffold.federation.audit import AuditLog
from fedscaffold.federation.study.evaluate import SiteEvaluation
from fedscaffold.federation.study.report.content import judgement, loss_name, phase_traffic, plain_text, site_rows
from fedscaffold.federation.study.report.traffic import traffic_of_log
from fedscaffold.inference.plain import summary_from_plain
from fedscaffold.models.coefficients import coefficient_table
from fedscaffold.reports.page import render, site_page
from fedscaffold.reports.page.study_content import Judgement, SentMessage, SiteContent

AUDIT = "audit.jsonl"
KEPT = "kept"  # an event of a site's log: how the model serves it, which it tells nobody in secure studies
Log = Sequence[Mapping[str, Any]]


def sent_messages(log: Iterable[Mapping[str, Any]] | str | os.PathLike[str]) -> list[Mapping[str, Any]]:
    """What left a site, in order, and what it kept for its own page: from its folder, its log file, or entries."""
    if isinstance(log, str | os.PathLike):
        path = Path(log)
        path = path / AUDIT if path.is_dir() else path
        if not path.is_file():
            raise InvalidInput(f"{path} is not the log of a site")
        log = AuditLog(path).read()
    return [entry for entry in log if entry.get("event") in ("sent", KEPT)]


def write_site_page(
    log: Iterable[Mapping[str, Any]] | str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    site: str,
    study: str = "study",
    agreement: Agreement | None = None,
    result: Mapping[str, Any] | None = None,
) -> None:
    """Write a site's own page: how the common model serves it, and exactly what left it.

    Parameters
    ----------
    log
        The site's folder, its log file, or the entries of its log.
    path
        The page, an HTML file that needs no other one.
    site, study
        Names of the site and of the study.
    agreement
        The encoding that the site accepted, for names of classes and the units of losses.
    result
        What the coordinator sent at the end, from `StudyResult.for_sites`.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import numpy as np
    >>> import pandas as pd
    >>> import fedscaffold as fs
    >>> from fedscaffold.federation import write_site_page
    >>> table = pd.DataFrame({"x": np.arange(30.0), "y": 2.0 * np.arange(30.0) + 5.0})
    >>> study = fs.federation.Study(target="y", kind="ridge")
    >>> result = study.run({"bonn": table, "lyon": table}, engine="reference")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     page = Path(folder) / "lyon.html"
    ...     write_site_page(result.log["lyon"], page, site="lyon", agreement=result.agreement)
    ...     "What left this site" in page.read_text()
    True
    """
    entries = sent_messages(log)
    sent = [entry for entry in entries if entry.get("event") == "sent"]
    kept = [entry for entry in entries if entry.get("event") == KEPT]
    write_text(path, render(site_page(_content(sent, kept, site, study, agreement, result))))


def _content(
    log: Log, kept: Log, site: str, study: str, agreement: Agreement | None, result: Mapping[str, Any] | None
) -> SiteContent:
    traffic = traffic_of_log(log)
    n_rows = int(kept[-1]["n_rows"]) if kept else site_rows(log)
    told = [entry["values"]["body"] for entry in log if entry["phase"] == "evaluate" and "body" in entry["values"]]
    told += [entry["values"] for entry in kept]
    found = SiteEvaluation.from_json(told[-1], site) if told else None
    judged = judgement(site, n_rows, found, agreement)
    total = sum(one.bytes for one in traffic.values())
    facts = [("study", study), ("site", site), ("rows", f"{n_rows:,}" if n_rows else "not told yet")]
    coefficients = None
    if result is not None:
        rows = "not told" if result["rows"] is None else f"{result['rows']:,}"
        facts += [("sites of the study", f"{result['sites']:,}"), ("rows of all sites", rows)]
        if "privacy" in result:
            spent = result["privacy"]
            what = f"privacy budget of {spent['protects']}"
            facts.append((what, f"ε = {spent['epsilon']:g}, δ = {spent['delta']:.2g}"))
        else:
            error = result["certified_error"]
            facts.append(("distance to the pooled model", f"at most {rounded_up(error['relative'])}, certified"))
        if result.get("summary") is not None and agreement is not None:
            coefficients = coefficient_table(summary_from_plain(result["summary"]), agreement.encoding)
    return SiteContent(
        title=f"{site} in the study {study}",
        summary=f"{len(log):,} messages left this site, {total:,} bytes in all. {_verdict(judged)}",
        facts=facts,
        classes=tuple(map(str, (agreement.encoding.classes if agreement else None) or ("first", "second"))),
        loss_name=loss_name(agreement),
        judgement=judged if judged.left_out else None,
        coefficients=coefficients,
        traffic=phase_traffic(traffic),
        messages=[_message(entry) for entry in log],
    )


def _verdict(judged: Judgement) -> str:
    if judged.together is None:
        return "No rows were left out here to judge the model."
    if judged.alone is None:
        return "The site has no model of its own to compare the common one with."
    better = "better" if judged.together < judged.alone else "no better"
    return f"On rows left out, the common model predicts {better} than the site's own would."


def _message(entry: Mapping[str, Any]) -> SentMessage:
    return SentMessage(
        time=str(entry.get("time", "")),
        phase=str(entry["phase"]),
        bytes=int(entry["bytes"]),
        content=plain_text(entry["values"]),
        vectors=[
            (name, int(vector["numbers"]), str(vector["sha256"])) for name, vector in entry["vectors"].items()
        ],
    )
