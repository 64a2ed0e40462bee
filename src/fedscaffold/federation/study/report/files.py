"""The files that a study leaves: model, summary, results for programs, and the page."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedscaffold.core import provenance
from fedscaffold.core.files import folder_at, replacing, write_text
from fedscaffold.inference.plain import summary_to_plain
from fedscaffold.models.summaries import column_spread
from fedscaffold.reports.page import render

if TYPE_CHECKING:
    from fedscaffold.federation.study.result import StudyResult

MODEL, SUMMARY, RESULTS, COEFFICIENTS, REPORT = (
    "model.json", "summary.txt", "results.json", "coefficients.parquet", "report.html",
)  # fmt: skip
AGREEMENT = "agreement.json"
FORMAT = "fedscaffold study results 1"


def write_report(result: "StudyResult", path: str | os.PathLike[str]) -> None:
    """Write the coordinator's page from what sites reported; it is replaced only once the new one is complete."""
    rows = {site: one.n_rows for site, one in result.measured.items()}
    if result.settings.secure:  # evaluations are sums over all sites, under one name
        rows = dict.fromkeys(result.evaluation, result.n_rows)
    summary = None if result.training.certificate.sums is None else result.summary()
    write_text(
        path,
        render(
            "study",
            result=result,
            n_rows=rows,
            told={site: one for site, one in result.evaluation.items() if one.n_rows},
            summary=summary,
            spread=None if summary is None else column_spread(summary, result.agreement.encoding),
            origin=provenance.origin(),
        ),
    )


def results_of(result: "StudyResult") -> dict[str, Any]:
    """Everything that a study ended with, as values that JSON can hold."""
    return {
        "format": FORMAT,
        **for_sites(result),
        "settings": result.settings.to_json(),
        "rounds": result.rounds,
        "notes": list(result.training.notes),
        "history": [point.to_json() for point in result.training.history],
        "measured": {site: one.to_json() for site, one in result.measured.items()},
        "evaluation": {site: one.to_json() for site, one in result.evaluation.items()},
        "auc": result.auc,
        "traffic": {
            site: {phase: vars(one) for phase, one in by_phase.items()}
            for site, by_phase in result.traffic.items()
        },
    }


def for_sites(result: "StudyResult") -> dict[str, Any]:
    """What a coordinator sends to all sites at the end: the model, its certificate and its coefficients."""
    known = result.training.certificate.sums is not None
    return {
        "study": result.name,
        "sites": len(result.sites),
        "rows": result.n_rows,
        "reached": result.reached,
        "certified_error": result.certified_error,
        "model": json.loads(result.model.to_json()),
        "summary": summary_to_plain(result.summary()) if known else None,
    }


def save(result: "StudyResult", folder: str | os.PathLike[str]) -> None:
    """Write all files of a study to a folder, the page last."""
    out = folder_at(Path(folder))
    result.model.save(out / MODEL)
    result.agreement.save(out / AGREEMENT)
    write_text(out / RESULTS, json.dumps(results_of(result), indent=1, allow_nan=False))
    if result.training.certificate.sums is not None:
        summary = result.summary()
        write_text(out / SUMMARY, f"{summary}\n")
        with replacing(out / COEFFICIENTS) as temporary:
            summary.to_frame().to_parquet(temporary)
    write_report(result, out / REPORT)
