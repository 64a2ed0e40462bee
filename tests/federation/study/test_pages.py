"""The pages and files of a study hold what sites told, and nothing else."""

import json
import re
from collections import Counter
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedscaffold.core.errors import InvalidInput
from fedscaffold.federation import Study, StudyResult, StudySettings, dry_run, write_site_page
from fedscaffold.federation.audit import AuditLog
from fedscaffold.federation.client.rules import SiteRules
from fedscaffold.models import Model
from fedscaffold.reports.page import format_bytes
from tests.federation.study.tables import TABLES, deal
from tests.reports.pages import Page

FRAME, KIND = TABLES["wards"]()
SETTINGS = StudySettings(target="y", kind="logistic")
SITES = deal(FRAME, 4, "sizes", seed=1)


@pytest.fixture(scope="module")
def result() -> StudyResult:
    return Study(target="y", kind=KIND, name="wards").run(SITES, engine="reference")


def text_of(path: Path) -> str:
    return unescape(re.sub(r"<[^>]+>", " ", path.read_text()))


def test_the_page_has_what_sites_told(result: StudyResult, tmp_path: Path) -> None:
    result.report(tmp_path / "report.html")
    text = text_of(tmp_path / "report.html")
    summary = result.summary()
    for name in summary.names:
        assert name in text
    assert f"{result.rounds:,} exchanges" in text
    assert f"{len(FRAME):,} rows" in text
    for site, told in result.evaluation.items():
        assert site in text
        assert f"{told.loss:.4g}" in text or told.n_rows == 0
    assert "tolerance: 0.05 standard errors" in text
    judged = re.search(r"AUC(.*?)Rows of each class", " ".join(text.split()))
    assert judged is not None
    for site, table in SITES.items():
        assert f"{site} {len(table):,} " in judged[1]


def test_traffic_on_the_page_is_that_of_the_sites_logs(result: StudyResult, tmp_path: Path) -> None:
    """The coordinator counted what each site's own log says, but for the receipt of the result itself."""
    result.report(tmp_path / "report.html")
    page = Page((tmp_path / "report.html").read_text())
    for site, phases in result.traffic.items():
        log = [entry for entry in result.log[site] if entry["phase"] != "finish"]
        assert {phase: one.messages for phase, one in phases.items()} == Counter(entry["phase"] for entry in log)
        sizes = [sum(entry["bytes"] for entry in log if entry["phase"] == phase) for phase in phases]
        assert page.row(site)[1:] == [format_bytes(size) for size in (*sizes, sum(sizes))]


def test_losses_are_in_the_targets_units(tmp_path: Path) -> None:
    frame, kind = TABLES["diabetes"]()
    sites = deal(frame, 3, "even", seed=1)
    result = Study(target="y", kind=kind).run(sites, engine="reference")
    result.report(tmp_path / "report.html")
    text = " ".join(text_of(tmp_path / "report.html").split())
    for site, table in sites.items():
        half_squares = 0.5 * np.var(table["y"])
        found = re.search(rf"{site} {len(table)} \d+ ([\d.]+) ", text)
        assert found is not None
        assert 0.3 * half_squares < float(found[1]) < half_squares


def test_without_hessians_and_without_evaluation(tmp_path: Path) -> None:
    rules = SiteRules(by_the_clock=False, allow_hessians=False)
    result = Study(target="y", kind=KIND, evaluate=0.0).run(SITES, rules=rules, engine="reference")
    result.save(tmp_path)
    text = text_of(tmp_path / "report.html")
    assert "not all sites give Hessians" in text
    assert "asked for no evaluation" in text
    assert not (tmp_path / "summary.txt").exists()
    assert json.loads((tmp_path / "results.json").read_text())["summary"] is None


def test_saved_files_are_read_back(result: StudyResult, tmp_path: Path) -> None:
    result.save(tmp_path / "out")
    model = Model.load(tmp_path / "out" / "model.json")
    np.testing.assert_allclose(model.predict_proba(FRAME[:9]), result.model.predict_proba(FRAME[:9]))
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["certified_error"] == result.certified_error
    assert results["traffic"]["site 1"]["greet"]["messages"] == 1
    table = pd.read_parquet(tmp_path / "out" / "coefficients.parquet")
    pd.testing.assert_frame_equal(table, result.summary().to_frame())
    assert (tmp_path / "out" / "summary.txt").read_text().strip() == str(result.summary()).strip()


def test_a_sites_page_has_every_message_of_its_log(result: StudyResult, tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.jsonl")
    for entry in result.log["site 2"]:
        log.write(**{key: value for key, value in entry.items() if key != "time"})
    log.write("refused", code="unknown")
    write_site_page(
        tmp_path, tmp_path / "page.html", site="site 2", agreement=result.agreement, result=result.for_sites()
    )
    text = text_of(tmp_path / "page.html")
    for entry in result.log["site 2"]:
        for vector in entry["vectors"].values():
            assert vector["sha256"] in text
        for line in json.dumps(entry["values"], indent=1).splitlines():
            assert line.strip() in text
    assert f"{len(result.log['site 2'])} messages left" in text
    assert "ward=south" in text  # the coefficients that the coordinator sent
    with pytest.raises(InvalidInput, match="not the log"):
        write_site_page(tmp_path / "nobody", tmp_path / "page.html", site="x")


def test_a_dry_run_shows_what_the_study_then_sends(result: StudyResult) -> None:
    found = dry_run(SITES["site 2"], SETTINGS, rules=SiteRules(by_the_clock=False))
    told: dict[str, Any] = {one["phase"]: one for one in found.to_json()["phases"]}
    for entry in result.log["site 2"][:2]:
        assert told[entry["phase"]]["exact"]
        assert told[entry["phase"]]["values"]["body"] == entry["values"]["body"]
    assert set(told) == {entry["phase"] for entry in result.log["site 2"]}
    assert found.stopped == ""
    assert "Nothing has been sent" in found.text()
    assert "hessian of " in found.text()


def test_a_dry_run_of_a_site_that_could_not_be_alone_says_so() -> None:
    one_class = SITES["site 2"].assign(y="ill")
    found = dry_run(one_class, SETTINGS)
    assert [one["phase"] for one in found.to_json()["phases"]] == ["greet", "prepare"]
    assert "two classes" in found.stopped
    assert "could not go further" in found.text()
