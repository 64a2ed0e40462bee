"""Studies under a privacy budget: what leaves sites, whose noise it is, and budgets that are never given back."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedscaffold as fs
from fedscaffold.federation import Study
from fedscaffold.federation.client.store import SiteFolder
from fedscaffold.federation.study import private
from fedscaffold.federation.study.plan import StudyPlan
from fedscaffold.federation.study.questions import PHASES, allowed, blocks_of
from fedscaffold.federation.study.rows import SiteRows
from fedscaffold.federation.study.site import SiteRules, StudySite
from fedscaffold.federation.study.study import conduct
from fedscaffold.federation.study.transport import InProcess, SiteProblems
from fedscaffold.privacy.budget import PrivacyBudget
from fedscaffold.privacy.grid import CLIP, clipped_sum
from fedscaffold.privacy.plan import plan_budget
from tests.models.test_private_families import patients
from tests.models.test_private_fit import WRITTEN, visits

COLUMNS: dict[str, Any] = {
    "sex": {"levels": ["f", "m"]},
    "age": {"range": (20, 90)},
    "ill": {"levels": ["no", "yes"]},
}
SIZES = {"bonn": 300, "graz": 150, "kiel": 600}


def tables() -> dict[str, pd.DataFrame]:
    return {site: visits(k, n).drop(columns=["site", "unused"]) for k, (site, n) in enumerate(SIZES.items())}


def study(**more: Any) -> Study:
    return Study(
        **{"target": "ill", "kind": "logistic", "epsilon": 3.0, "delta": 1e-4, "columns": COLUMNS, **more}
    )


def members(folder: Path, rules: SiteRules | None = None) -> dict[str, StudySite]:
    return {
        name: StudySite(
            name=name, table=table, store=SiteFolder(folder / name), rules=rules or SiteRules(max_exchanges=1000)
        )
        for name, table in tables().items()
    }


def spent(folder: Path, site: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / site / "privacy-budget.json").read_text().splitlines()[1:]]


def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw zeros in place of noise."""
    monkeypatch.setattr(private, "discrete_gaussian", lambda sigma, count: np.zeros(count, np.int64))


@pytest.fixture(scope="module")
def result() -> Any:
    return study().run(tables())


def test_only_noisy_sums_leave_a_site(result: Any) -> None:
    assert result.privacy is not None
    for log in result.log.values():
        phases = [entry["phase"] for entry in log]
        assert set(phases) == {"plan", "roster", "noisy", "result"}
        assert phases.count("noisy") == result.privacy.rounds
        assert {entry["numbers"] for entry in log if entry["phase"] == "noisy"} == {3}
    assert result.certified_error == {"standard_errors": None, "relative": None}
    assert not result.reached
    with pytest.raises(fs.InvalidInput, match="privacy budget does not cover"):
        result.summary()
    assert "(3, 0.0001)-differentially private for every row" in result.explain()


def test_a_plan_with_a_budget_has_one_phase() -> None:
    plan = study().plan_for(tables())
    assert [name for name in PHASES if name != "levels" and allowed(plan, name)] == ["noisy"]
    assert [block.name for block in blocks_of(plan, "noisy")] == ["change"]


def test_files_of_a_study(result: Any, tmp_path: Path) -> None:
    result.save(tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == WRITTEN
    assert json.loads((tmp_path / "results.json").read_text())["privacy"]["epsilon"] == 3.0
    assert "Taken as public" in (tmp_path / "summary.txt").read_text()


@pytest.mark.parametrize("protect", ["rows", "sites"])
@pytest.mark.parametrize("sums", ["open", "secure"])
def test_without_noise_it_is_the_pooled_model(protect: str, sums: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a wide clip and no noise the study comes to the optimum of all rows, or of all sites alike."""
    silent(monkeypatch)
    plan_it: Any = plan_budget
    monkeypatch.setattr(
        private, "plan_budget",
        lambda target, levels, settings, **more: plan_it(
            target, levels, replace(settings, step_size=0.8, rounds=90), **more
        ),
    )  # fmt: skip
    found = study(l2=0.1, clip=10.0, protect=protect, sums=sums).run(tables())
    rows = list(tables().values())
    plan = study(l2=0.1, protect=protect).plan_for(tables())
    if protect == "rows":
        best = SiteRows(pd.concat(rows, ignore_index=True), plan, b"").problem.optimum()
    else:
        each = [SiteRows(table, plan, b"").problem for table in rows]
        best = fs.problems.Logistic(
            [one.x for one in each], [one.y for one in each], l2=0.1, n_unpenalised=1
        ).optimum()
    np.testing.assert_allclose(found.theta, best, rtol=1e-5)


def test_open_and_secure_sums_have_the_same_bits_without_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    silent(monkeypatch)
    one, other = (study(sums=sums).run(tables()) for sums in ("open", "secure"))
    np.testing.assert_array_equal(one.theta, other.theta)


def test_what_an_open_study_receives_are_whole_numbers_with_noise() -> None:
    from fedscaffold.federation.study.numbers import decode

    found: Any = study(sums="open").run(tables())
    plan = study(sums="open").plan_for(tables())
    noise, theta = [], np.zeros(3)
    for message in found.received[:3]:
        sent = decode(message.words, blocks_of(plan, "noisy"))["change"]
        rows = SiteRows(tables()[message.site], plan, b"").problem
        noise.append(sent - clipped_sum(rows, theta, np.arange(SIZES[message.site]), found.privacy.clip))
    assert (np.array(noise) == np.rint(noise)).all()
    assert 0.3 < np.std(noise) / found.privacy.noise < 2.5


def test_noise_is_each_sites_own_and_cannot_be_repeated(result: Any) -> None:
    again: Any = study().run(tables())
    assert again.privacy == result.privacy
    assert not np.allclose(again.theta, result.theta, rtol=1e-6)


@pytest.mark.parametrize("protect", ["rows", "sites"])
@pytest.mark.parametrize("sums", ["open", "secure"])
def test_a_plan_spends_its_budget_and_no_more(protect: Any, sums: str) -> None:
    sites = [f"s{k}" for k in range(12)]
    given: dict[str, Any] = {
        "target": "ill", "kind": "logistic", "columns": COLUMNS, "sites": sites, "rows": 5000, "epsilon": 2.0,
        "delta": 1e-3, "protect": protect, "sums": sums,
    }  # fmt: skip
    plan = StudyPlan(**given)
    found = private.private_plan(plan)
    assert (
        1.999
        < fs.privacy.epsilon(noise_multiplier=found.noise_multiplier, delta=1e-3, steps=found.releases)
        <= 2.0
    )
    parts = 9 if (protect, sums) == ("sites", "secure") else 1  # 12 − 4 + 1: three may reveal their parts
    assert found.noise == math.ceil(found.noise_multiplier / math.sqrt(parts) * CLIP)
    assert found.units == (5000 if protect == "rows" else 12)
    assert found.rounds <= 40
    assert private.private_plan(StudyPlan.from_json(plan.to_json())) == found


def test_the_last_question_again_brings_the_same_bytes_and_costs_nothing(tmp_path: Path) -> None:
    class Twice(InProcess):
        def exchange(self, requests: Any) -> Any:
            first, second = (super(Twice, self).exchange(requests) for _ in range(2))
            for site, reply in first.items():
                if "words" in reply.arrays:
                    np.testing.assert_array_equal(reply.arrays["words"], second[site].arrays["words"])
            return first

    found: Any = conduct(study().plan_for(tables()), Twice(members(tmp_path)))
    assert sum(part["steps"] for part in spent(tmp_path, "graz")) == found.privacy.rounds


class Stops(InProcess):
    """A transport that fails after some exchanges."""

    left = 8

    def exchange(self, requests: Any) -> Any:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
        return super().exchange(requests)


def test_a_study_that_was_stopped_goes_on_and_spends_nothing_twice(tmp_path: Path) -> None:
    plan, own = study().plan_for(tables()), tmp_path / "coordinator"
    sites = members(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        conduct(plan, Stops(sites), folder=own)
    assert len(spent(tmp_path, "kiel")) == 6  # after plan and roster
    found: Any = conduct(plan, InProcess(sites), folder=own)
    assert {len(spent(tmp_path, site)) for site in SIZES} == {found.privacy.rounds}


def test_a_crash_after_paying_costs_a_release_that_plans_have_to_spare(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was paid for and not kept is paid for again, with other noise; once, the budget covers it."""
    plan, own, sites = study().plan_for(tables()), tmp_path / "coordinator", members(tmp_path)
    save, saved = SiteFolder.save_note, []

    def crash_once(store: SiteFolder, name: str, values: Any) -> None:
        if name == "state" and store.path.name == "graz":
            saved.append(name)
            if len(saved) == 3:
                raise KeyboardInterrupt
        save(store, name, values)

    monkeypatch.setattr(SiteFolder, "save_note", crash_once)
    with pytest.raises(KeyboardInterrupt):
        conduct(plan, InProcess(sites), folder=own)
    found: Any = conduct(plan, InProcess(sites), folder=own)
    assert len(spent(tmp_path, "graz")) == found.privacy.releases
    assert len(spent(tmp_path, "bonn")) == found.privacy.rounds


def test_budgets_are_for_all_studies_together(tmp_path: Path) -> None:
    """A second plan is answered as far as the site's budget goes; another name is no new budget."""
    own = SiteRules(epsilon=3.5, delta=1e-4, max_exchanges=1000)
    conduct(study().plan_for(tables()), InProcess(members(tmp_path, own)))
    before = len(spent(tmp_path, "bonn"))
    for site in SIZES:
        for note in ("plan", "roster", "state", "proposed", "result"):
            (tmp_path / site / f"{note}.json").unlink(missing_ok=True)
    with pytest.raises(SiteProblems):
        conduct(study(name="again").plan_for(tables()), InProcess(members(tmp_path, own)))
    parts = spent(tmp_path, "bonn")
    assert before < len(parts) < 2 * before
    steps = [fs.privacy.NoisySteps(part["noise_multiplier"], part["steps"]) for part in parts]
    assert fs.privacy.composed_epsilon(steps, delta=1e-4) <= 3.5
    events = [entry for entry in SiteFolder(tmp_path / "bonn").audit.read() if entry["event"] == "rejected"]
    assert any("would spend" in entry["text"] for entry in events)


def test_nothing_is_computed_before_it_is_paid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = members(tmp_path)["bonn"]
    monkeypatch.setattr(SiteRows, "problem", property(lambda rows: pytest.fail("rows were read")))
    monkeypatch.setattr(PrivacyBudget, "spend", lambda budget, steps: (_ for _ in ()).throw(fs.InvalidInput("no")))
    plan = study().plan_for(tables())
    with pytest.raises(SiteProblems, match="privacy"):
        conduct(plan, InProcess({**members(tmp_path), "bonn": site}))


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ({"epsilon": 2.0, "delta": 1e-4}, "the plan spends ε = 3"),
        ({"epsilon": 4.0, "delta": 1e-5}, "with δ = 0.0001"),
        ({"epsilon": 4.0, "delta": 1e-4, "protect": "sites"}, "no privacy budget of sites"),
    ],
)
def test_a_plan_beyond_a_sites_budget_is_not_accepted(rules: Any, words: str) -> None:
    assert any(words in problem for problem in SiteRules(**rules).problems(study().plan_for(tables())))


def test_a_site_with_a_budget_takes_part_in_no_study_without_one() -> None:
    plan = Study(target="ill", kind="logistic", columns=COLUMNS).plan_for(tables())
    assert "no privacy budget of rows" in SiteRules(epsilon=1.0, delta=1e-4).problems(plan)[0]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"columns": {**COLUMNS, "age": {}}}, "column 'age' needs a range or levels"),
        ({"columns": {**COLUMNS, "age": {"mean": 0.0, "sd": 1.0}}}, "column 'age' needs a range or levels"),
        ({"delta": None}, "requires delta"),
        ({"rows": None}, "requires rows"),
        ({"evaluate": 0.2}, "does not cover .*evaluate"),
    ],
)
def test_plans_that_no_budget_covers(wrong: dict[str, Any], words: str) -> None:
    given = {
        "target": "ill", "kind": "logistic", "columns": COLUMNS, "sites": ("a", "b", "c"), "rows": 900,
        "epsilon": 1.0, "delta": 1e-4, **wrong,
    }  # fmt: skip
    with pytest.raises(fs.InvalidInput, match=words):
        StudyPlan(**given)


def test_the_delta_of_a_plan_is_below_one_over_a_sites_rows(tmp_path: Path) -> None:
    plan = study(delta=0.005).plan_for(tables())
    assert "delta must be below one over the 300 rows" in members(tmp_path)["bonn"].problems(plan)[0]


def test_one_row_changes_no_other_rows_code() -> None:
    """Rare levels are merged without a budget; with one, a row that makes a level rare would change others."""
    columns = {**COLUMNS, "sex": {"levels": ["f", "m", "x"]}}
    table = tables()["bonn"].assign(sex=["x"] * 5 + ["f"] * 295)
    other = table.assign(sex=["f"] + ["x"] * 4 + ["f"] * 295)
    plan = study(columns=columns, min_cell=5).plan_for(tables())
    coded = [SiteRows(one, plan, b"").problem.x for one in (table, other)]
    assert (coded[0] != coded[1]).any(axis=1).sum() == 1
    missing = table.assign(sex=table["sex"].where(table.index > 0))
    assert SiteRows(missing, plan, b"").problem.x[0, 1] == 0.0


@pytest.mark.parametrize(
    ("kind", "target", "ends"),
    [
        ("logistic", "stage", {"levels": ["early", "late", "middle"]}),
        ("poisson", "visits", {"range": (0, 20)}),
        ("gamma", "cost", {"range": (1.0, 5000.0)}),
        ("ridge", "visits", {"range": (0, 20)}),
    ],
)
def test_every_kind_comes_near_the_pooled_model(kind: Any, target: str, ends: Any) -> None:
    rows = patients(1, 6000)
    sites = {name: rows.iloc[k::3].reset_index(drop=True) for k, name in enumerate(SIZES)}
    columns = {"age": {"range": (20, 90)}, "sex": {"levels": ["f", "m"]}, target: ends}
    given = Study(target=target, kind=kind, columns=columns, epsilon=50.0, delta=1e-5)
    found = given.run(sites)
    best = SiteRows(rows, given.plan_for(sites), b"").problem.optimum()
    assert np.linalg.norm(found.theta - best) < 0.2 * np.linalg.norm(best)


def test_many_sites_learn_something_that_protects_each_of_them() -> None:
    """60 sites of 100 rows at ε = 8: the classes are told apart, nearly as by the pooled model."""
    from sklearn.metrics import roc_auc_score

    sites = {f"s{k}": visits(k, 99).drop(columns=["site", "unused"]) for k in range(60)}
    found: Any = study(protect="sites", epsilon=8.0, delta=1e-3).run(sites)
    test = visits(1000, 3000)
    auc = roc_auc_score(test["ill"] == "yes", found.model.predict_proba(test)[:, 1])
    assert auc > 0.75
    assert "for every site's table as a whole" in found.explain()
    assert "fewer than a third" in found.explain()
