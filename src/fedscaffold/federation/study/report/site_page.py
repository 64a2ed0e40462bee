"""A site's own page: how the common model serves it, and exactly what left it, from its append-only log."""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.files import write_text
from fedscaffold.federation.agreement import Agreement
from fedscaffold.federation.audit import AuditLog
from fedscaffold.federation.study.evaluate import SiteEvaluation
from fedscaffold.federation.study.report.traffic import traffic_of_log
from fedscaffold.inference.plain import summary_from_plain
from fedscaffold.models.summaries import column_spread
from fedscaffold.reports.page import render

AUDIT = "audit.jsonl"
KEPT = "kept"  # an event of a site's log: how the model serves it, which it tells nobody in secure studies


def sent_messages(log: Iterable[Mapping[str, Any]] | str | os.PathLike[str]) -> list[Mapping[str, Any]]:
    """Return the entries of messages that left a site, in order, and those it kept for its own page.

    The log is the site's folder, its log file, or entries.
    """
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
    told = [
        entry["values"]["body"] for entry in sent if entry["phase"] == "evaluate" and "body" in entry["values"]
    ]
    told += [entry["values"] for entry in kept]
    found = SiteEvaluation.from_json(told[-1], site) if told else None
    summary = spread = None
    if result is not None and result.get("summary") is not None and agreement is not None:
        summary = summary_from_plain(result["summary"])
        spread = column_spread(summary, agreement.encoding)
    write_text(
        path,
        render(
            "site",
            site=site,
            study=study,
            log=sent,
            traffic=traffic_of_log(sent),
            n_rows=int(kept[-1]["n_rows"]) if kept else _rows_of(sent),
            told=found if found is not None and found.n_rows else None,
            agreement=agreement,
            result=result,
            summary=summary,
            spread=spread,
        ),
    )


def _rows_of(log: Sequence[Mapping[str, Any]]) -> int:
    """Return the number of rows that a site reported, from its log; 0 if it reported none."""
    for entry in log:
        body = entry["values"].get("body", {})
        if entry["phase"] in ("greet", "measure") and isinstance(body.get("n_rows"), int):
            return int(body["n_rows"])
    return 0
