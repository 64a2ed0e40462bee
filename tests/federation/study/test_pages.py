"""The page of a site holds its log, its plan and the result; a dry run says before what the log says after."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedscaffold.federation import Study, StudyPlan, dry_run, write_site_page
from fedscaffold.federation.client.store import MemoryStore, SiteFolder
from fedscaffold.federation.messages import Payload
from fedscaffold.federation.study.coordinator import _document
from fedscaffold.federation.study.plan import OTHER
from fedscaffold.federation.study.roster import fingerprint
from fedscaffold.federation.study.rows import SiteRows
from fedscaffold.federation.study.site import StudySite
from fedscaffold.federation.study.study import conduct
from fedscaffold.federation.study.transport import InProcess
from fedscaffold.inference import Summary
from fedscaffold.models import Model
from tests.federation.study.tables import TABLES, deal
from tests.reports.pages import BAD, Page

FRAME, KIND = TABLES["wards"]()
CHOICES: Any = {"target": "y", "kind": KIND}
SITES = {name.replace(" ", "-"): table for name, table in deal(FRAME, 3, "sizes", seed=1).items()}


def conducted(folder: Path, tables: Any, **settings: Any) -> tuple[dict[str, StudySite], Any, Summary]:
    """A study, and the summary of its result."""
    sites = {
        name: StudySite(name=name, table=table, store=SiteFolder(folder / name), engine="reference")
        for name, table in tables.items()
    }
    plan = Study(**{"name": "wards", **CHOICES, **settings}).plan_for(tables)
    result = conduct(plan, InProcess(sites))
    return sites, result, result.summary()


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return conducted(tmp_path_factory.mktemp("sites"), SITES, evaluate=0.2)


def page_of(site: StudySite, folder: Path) -> Page:
    write_site_page(site.store, folder / "site.html")
    return Page((folder / "site.html").read_text())


def test_the_page_has_every_message_of_the_log(study: Any, tmp_path: Path) -> None:
    site = study[0]["site-1"]
    page = page_of(site, tmp_path)
    answers = [entry for entry in site.log if "numbers" in entry]
    for entry in answers:
        assert entry["sha256"] in page.words
    assert f"{len(answers)} messages with numbers left this site" in page.words
    for phase, count in Counter(entry["phase"] for entry in answers).items():
        numbers = sum(entry["numbers"] for entry in answers if entry["phase"] == phase)
        assert page.row(phase)[1:3] == [f"{count:,}", f"{numbers:,}"]
    assert "all two-way counts" in page.words
    assert "each of them masked" in page.words


def test_the_page_has_the_fingerprints_that_people_compare(study: Any, tmp_path: Path) -> None:
    sites, result, _ = study
    page = page_of(sites["site-1"], tmp_path)
    first = Study(name="wards", **CHOICES, evaluate=0.2).plan_for(SITES)
    assert page.facts["as it was accepted"] == first.fingerprint
    assert page.facts["completed by the survey"] == result.settings.fingerprint != first.fingerprint
    assert " ".join(result.settings.to_toml().split()) in page.words
    for name, site in sites.items():
        assert page.facts[name] == fingerprint(site.public_key)


def test_the_site_gets_the_model_and_its_standard_errors(study: Any, tmp_path: Path) -> None:
    sites, result, summary = study
    page = page_of(sites["site-2"], tmp_path)
    model = Model.load(tmp_path / "model.json")
    np.testing.assert_allclose(model.predict_proba(FRAME[:9]), result.model.predict_proba(FRAME[:9]))
    for name, value in zip(summary.names, summary.coef, strict=True):
        assert float(page.row(name)[1]) == pytest.approx(value, rel=1e-3)
    assert page.facts["tolerance"] == "se:0.05, reached"


def test_documents_keep_the_order_of_coefficients() -> None:
    """Covariances are a matrix in this order: sorted names would belong to other rows of it."""
    payload = _document("result", {"coefficients": {"z": 1, "a": 2}})
    assert '{"z": 1, "a": 2}' in str(payload.values["document"])


def test_reasons_of_rejections_are_on_the_page_alone(tmp_path: Path) -> None:
    site = StudySite(name="bonn", table=SITES["site-1"], store=SiteFolder(tmp_path / "bonn"))
    reply = site.answer(Payload({"study-message": "roster", "document": '{"plan": "x"}'}))
    page = page_of(site, tmp_path)
    assert "Nothing has left this site" in page.words
    (entry,) = site.store.audit.read()
    assert page.row(str(reply.values["study-refused"]))[1] == " ".join(str(entry["text"]).split())
    assert str(entry["text"]) not in str(reply.values)


@pytest.mark.parametrize(
    "document",
    [
        {"model": "no model"},
        {"model": {"format": "other"}},
        {"summary": {"coefficients": {}}},
        {"certified_error": 3},
        {"rows": BAD},
    ],
)
def test_a_result_that_the_plan_would_not_give_does_not_stop_the_page(
    study: Any, tmp_path: Path, document: Any
) -> None:
    kept = study[0]["site-1"].store
    store = MemoryStore()
    for name in ("plan", "roster"):
        store.save_note(name, kept.load_note(name))
    store.save_note("result", {**kept.load_note("result"), **document})
    write_site_page(store, tmp_path / "site.html")
    page = Page((tmp_path / "site.html").read_text())
    assert "no model that this plan would give" in page.words or "not complete" in page.words
    assert not (tmp_path / "model.json").exists()


def test_numbers_are_kept_at_the_site_if_its_people_want_them() -> None:
    """The log then says what was masked; sums over sites are what the coordinator gets."""
    sites = {name: StudySite(name=name, table=table, keep_numbers=True) for name, table in SITES.items()}
    result = conduct(Study(**CHOICES).plan_for(SITES), InProcess(sites))
    kept = [[entry for entry in site.store.audit.read() if entry["event"] == "numbers"] for site in sites.values()]
    scores = [next(one for one in log if one["phase"] == "scores") for log in kept]
    assert "products of gradients" in scores[0]["what"]
    sums = result.trained.certificate.sums
    assert sums is not None
    assert sum(one["values"]["rows"][0] for one in scores) == sums.rows == len(FRAME)
    total = np.sum([one["values"]["gradient"] for one in scores], axis=0)
    np.testing.assert_allclose(total, sums.gradient, rtol=1e-6, atol=1e-9)


def test_a_study_that_stopped_says_why(tmp_path: Path) -> None:
    site = StudySite(name="site-0", table=SITES["site-0"])
    plan = Study(**CHOICES).plan_for(SITES)
    site.answer(_document("plan", plan.to_json()))
    site.answer(_document("result", {"study": "wards", "stopped": f"{BAD}a site left"}))
    page = page_of(site, tmp_path)
    assert f"{BAD}a site left" in page.words
    assert page.facts["as it was accepted"] == plan.fingerprint
    assert "completed by the survey" not in page.facts


def test_names_of_others_are_escaped(tmp_path: Path) -> None:
    frame = FRAME.rename(columns={"ward": f"{BAD}ward", "y": f"{BAD}y"})
    frame[f"{BAD}ward"] = BAD + frame[f"{BAD}ward"]
    frame[f"{BAD}y"] = BAD + frame[f"{BAD}y"]
    tables = {f"site-{k}": frame[k::3] for k in range(3)}
    site = conducted(tmp_path, tables, target=f"{BAD}y")[0]["site-0"]
    page = page_of(site, tmp_path)
    assert f"{BAD}ward={BAD}south" in page.words
    assert page.open == []
    assert "<script" not in (tmp_path / "site.html").read_text()


# dry runs


def test_a_dry_run_has_the_sizes_that_the_study_then_sends(study: Any) -> None:
    plan = Study(**CHOICES, evaluate=0.2).plan_for(SITES)
    found = dry_run(SITES["site-1"], plan)
    sizes = {one.phase: (one.numbers, one.bytes) for one in found.phases}
    sent = {str(entry["phase"]).partition(":")[0]: entry for entry in study[0]["site-1"].log if "numbers" in entry}
    assert set(sent) <= set(sizes)
    assert {"levels", "moments", "spreads", "sums", "scores", "evaluate", "judged sums"} <= set(sent)
    complete = {one.phase: (one.numbers, one.bytes) for one in dry_run(SITES["site-1"], study[1].settings).phases}
    for phase, entry in sent.items():
        now = sizes if phase in ("levels", "moments", "spreads") else complete
        assert now[phase] == (entry["numbers"], entry["bytes"])
    assert not {"levels", "moments", "spreads"} & set(complete)


def test_sizes_do_not_depend_on_the_rows(study: Any) -> None:
    plan = study[1].settings
    one, two = dry_run(FRAME[:100], plan), dry_run(FRAME[100:3000], plan)
    assert one.phases == two.phases
    assert one.columns != two.columns


def test_a_dry_run_shows_the_sites_own_numbers_to_its_people() -> None:
    table = FRAME[:200].copy()
    table.loc[:3, "ward"], table.loc[4:10, "ward"] = "few", [f"rare {k}" for k in range(7)]
    table.loc[11:15, "ward"] = "just enough"
    table.loc[20, "dose"] = np.nan
    plan = Study(**CHOICES, missing="mean").plan_for(dict.fromkeys(SITES, table))
    found = dry_run(table, plan)
    ward, dose, _, y = found.columns
    assert ward.levels == table["ward"].value_counts().to_dict()
    assert (ward.merged, ward.merged_into) == (("few", *(f"rare {k}" for k in range(7))), OTHER)
    assert (dose.present, dose.high) == (199, table["dose"].max())
    assert dose.mean == pytest.approx(table["dose"].mean())
    assert dict(y.levels) == table["y"].value_counts().to_dict()
    text = found.text()
    for words in ("Nothing has been sent", plan.fingerprint, "masked", "at most 500 messages", "two-way counts",
                  "merged into (other): few, rare 0", "1 missing"):  # fmt: skip
        assert words in text
    assert found.n_rows == 200


@pytest.mark.parametrize("levels", [None, ("north", "south", "east", "west", "few"), ("north", "south", OTHER)])
def test_levels_are_merged_as_the_dry_run_says(levels: Any) -> None:
    table = FRAME[:200].copy()
    table.loc[:3, "ward"] = "few"
    table = table[~table["ward"].isin(["east", "west"])] if levels and OTHER in levels else table
    columns: Any = {"ward": {"levels": levels, "reference": "north"} if levels else {"type": "category"}}
    plan = Study(**CHOICES, columns=columns).plan_for(dict.fromkeys(SITES, table))
    ward = dry_run(table, plan).columns[0]
    assert ward.merged == ("few",)
    assert ward.merged_into == "the reference level"  # four rows are too few for a level of rare ones
    if levels:
        merged = pd.Series(SiteRows(table, plan, b"").recoded().column("ward").to_pylist())
        assert set(merged[(table["ward"] == "few").to_numpy()]) == {"north"}


def test_a_table_that_does_not_fit_gets_reasons_and_no_sizes() -> None:
    plan = Study(**CHOICES).plan_for(SITES)
    found = dry_run(FRAME.drop(columns="age"), plan)
    assert (found.phases, found.columns) == ((), ())
    assert "has no column 'age'" in found.text()
    words = dry_run(FRAME.assign(age="old"), plan)
    assert [one.name for one in words.columns] == ["ward", "dose", "y"]
    assert "'age' must hold numbers" in words.text()


def test_open_sums_and_budgets_say_so() -> None:
    plan = Study(**CHOICES, sums="open").plan_for(SITES)
    assert "open: the coordinator reads this site's numbers" in dry_run(SITES["site-0"], plan).text()
    columns: Any = {"dose": {"range": [0, 60]}, "y": {"levels": ["ill", "well"]}}
    private = StudyPlan(**CHOICES, sites=("a", "b", "c"), epsilon=1.0, delta=1e-5, rows=9000, columns=columns)
    assert [one.phase for one in dry_run(FRAME, private).phases] == ["noisy"]
