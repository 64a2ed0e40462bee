"""The pages and files of a study hold what sites told, and nothing else."""

import json
import re
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
from fedscaffold.federation.study.report.content import study_content
from fedscaffold.models import Model
from tests.federation.study.tables import TABLES, deal

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
    content = study_content(result)
    assert [one.rows for one in content.sites] == [len(table) for table in SITES.values()]
    assert content.history[-1].standard_errors == result.certified_error["standard_errors"]
    assert content.tolerance == 0.05


def test_traffic_on_the_page_is_that_of_the_sites_logs(result: StudyResult) -> None:
    """What the coordinator counted is what each site's own log says, but for the receipt of the result itself."""
    for site, phases in study_content(result).traffic.items():
        log = [entry for entry in result.log[site] if entry["phase"] != "finish"]
        assert sum(one.bytes for one in phases) == sum(entry["bytes"] for entry in log)
        assert {one.phase: one.messages for one in phases} == {
            phase: sum(entry["phase"] == phase for entry in log) for phase in {entry["phase"] for entry in log}
        }


def test_losses_are_in_the_targets_units() -> None:
    frame, kind = TABLES["diabetes"]()
    sites = deal(frame, 3, "even", seed=1)
    result = Study(target="y", kind=kind).run(sites, engine="reference")
    for one in study_content(result).sites:
        assert one.together is not None
        half_squares = 0.5 * np.var(sites[one.site]["y"])
        assert 0.3 * half_squares < one.together < half_squares


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
