"""Studies under a privacy budget: what leaves sites, whose noise it is, and budgets that are never given back."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from fedscaffold.federation.study.messages import Address, SiteProblems, StudyMessage, pack, with_address
from fedscaffold.federation.study.private.at_site import public_agreement, with_budget
from fedscaffold.federation.study.private.result import PrivateStudyResult
from fedscaffold.federation.study.report.status import study_status
from fedscaffold.models.private.planned import public_plan

import fedscaffold as fs
from fedscaffold.dashboard.server import live_page
from fedscaffold.federation import (
    ProblemTask,
    Refusal,
    RefusalCode,
    RunConfig,
    SitePolicy,
    Study,
    StudySettings,
    dry_run,
    handle_request,
    initial_ledger,
    train_request,
    write_site_page,
)
from fedscaffold.federation.client.files import ClientStateFile, SiteFolder
from fedscaffold.federation.study.site import StudySite
from fedscaffold.federation.study.study import InProcess, conduct_study
from fedscaffold.flower.study.study_file import StudyFile
from fedscaffold.privacy import RecordLevel
from fedscaffold.privacy.settings import PrivacySettings
from tests.models.test_private_fit import BOUNDS, visits


def tables() -> dict[str, pd.DataFrame]:
    sizes = {"bonn": 300, "graz": 150, "kiel": 600}
    return {site: visits(k, n).drop(columns=["site", "unused"]) for k, (site, n) in enumerate(sizes.items())}


def study(**more: Any) -> Study:
    return Study(**{"target": "ill", "epsilon": 3.0, "bounds": BOUNDS, **more})


@pytest.fixture(scope="module")
def result() -> Any:
    return study().run(tables())


def test_only_noisy_steps_and_public_facts_leave_a_site(result: Any) -> None:
    for site, log in result.log.items():
        assert {entry["phase"] for entry in log} == {"greet", "agree", "train", "finish"}, site
        assert [entry["phase"] for entry in log].count("train") == result.training.plan.rounds
        greeting = log[0]["values"]["body"]
        assert set(greeting) == {"columns", "max_hessian_dim", "n_rows", "protocol"}
    assert isinstance(result, PrivateStudyResult)
    assert not result.reached
    assert result.certified_error == {"standard_errors": None, "relative": None}
    with pytest.raises(fs.InvalidInput, match="privacy budget does not cover"):
        result.summary()


def test_files_of_a_study(result: Any, tmp_path: Path) -> None:
    result.save(tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "agreement.json", "model.json", "report.html", "results.json", "summary.txt",
    ]  # fmt: skip
    assert "Taken as public" in (tmp_path / "summary.txt").read_text()
    assert json.loads((tmp_path / "results.json").read_text())["privacy"]["epsilon"] == 3.0


def test_the_page_has_budget_and_predicted_error_and_no_sums_over_rows(result: Any, tmp_path: Path) -> None:
    result.report(tmp_path / "report.html")
    page, plan = (tmp_path / "report.html").read_text(), result.training.plan
    for words in (
        "(3, 0.00017)-differentially private", f"{plan.privacy.clip:.4g}",
        f"{plan.privacy.noise_multiplier:.4g} times",
        f"{np.sqrt(plan.predicted_error):.0%} of the coefficients", "Taken as public", "Not made",
        result.coefficient_values()[0][1],
    ):  # fmt: skip
        assert words in page, words
    smallest = plan.privacy.noise / 150
    assert f"{smallest:.3g} in every coordinate" in page
    assert "standard error</th>" not in page
    assert "certified" not in page


def test_the_page_of_a_site_tells_its_rows_and_the_budget(result: Any, tmp_path: Path) -> None:
    page = tmp_path / "bonn.html"
    write_site_page(result.log["bonn"], page, site="bonn", agreement=result.agreement, result=result.for_sites())
    assert "ε = 3, δ = 0.00017" in page.read_text()
    assert "300" in page.read_text()
    assert "not reported yet" not in page.read_text()


def test_without_noise_it_is_the_pooled_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a wide clip and no noise the study comes to the optimum of all rows in the public coding."""
    monkeypatch.setattr("fedscaffold.engines.reference.secret_normals", np.zeros)
    given = PrivacySettings(epsilon=3.0, clip=1e6, step_size=0.5, local_steps=5, rounds=40)
    monkeypatch.setattr(
        "fedscaffold.federation.study.private.conduct.public_plan",
        lambda kind, levels, sizes, budget, **more: public_plan(kind, levels, sizes, given, **more),
    )
    found = study(l2=1.0).run(tables())
    pooled = pd.concat(tables().values()).assign(site="all")
    bounds: Any = found.settings.public_bounds
    best = bounds.problem(pooled, "site", 1.0).optimum()
    np.testing.assert_allclose(found.theta, best, rtol=1e-6)


def test_the_status_counts_rounds_and_has_no_tolerance(tmp_path: Path) -> None:
    settings = study().settings
    found = conduct_study(InProcess(sites(tmp_path, settings)), settings, folder=tmp_path / "coordinator")
    status = study_status(tmp_path / "coordinator")
    assert isinstance(found, PrivateStudyResult)
    assert status.rounds == found.training.plan.rounds
    assert status.tolerance == ""
    page = live_page(status, "n")
    assert page.count("not computed in a study under a privacy budget") == 2
    assert "Training has not begun" not in page
    assert StudySettings(target="ill").known_tolerance == str(StudySettings(target="ill").tolerance)


def test_noise_is_each_sites_own_and_cannot_be_repeated(result: Any) -> None:
    again: Any = study().run(tables())
    assert again.training.plan == result.training.plan
    assert not np.allclose(again.theta, result.theta, rtol=1e-6)


def sites(folder: Path, settings: StudySettings, **policy: Any) -> dict[str, StudySite]:
    return {
        name: StudySite(
            name=name, table=table, store=SiteFolder(folder / name), engine="reference",
            policy=with_budget(SitePolicy(**policy), settings),
        )
        for name, table in tables().items()
    }  # fmt: skip


def steps_of(folder: Path, site: str) -> int:
    spent = json.loads((folder / site / "privacy-budget.json").read_text())["spent"]
    return sum(int(part["steps"]) for part in spent)


def test_a_second_study_in_the_same_folders_is_refused_whoever_asks(tmp_path: Path) -> None:
    """Budgets are kept on disk: neither a new study nor sites that were started again have one anew."""
    settings = study(delta=1e-4).settings
    found = conduct_study(InProcess(sites(tmp_path, settings)), settings)
    assert isinstance(found, PrivateStudyResult)
    plan = found.training.plan
    assert steps_of(tmp_path, "bonn") == plan.steps
    with pytest.raises(fs.InvalidInput, match="cannot begin again") as refused:
        conduct_study(InProcess(sites(tmp_path, settings)), settings)
    spare = plan.spare_rounds * plan.method.uniform_local_steps
    assert steps_of(tmp_path, "bonn") == plan.steps + spare  # the spare round, and not one step more
    assert "would spend" in str(refused.value)
    spent = fs.privacy.epsilon(
        noise_multiplier=plan.privacy.noise_multiplier, delta=plan.delta, steps=plan.steps + spare
    )
    assert spent <= 3.0


def test_studies_of_different_budgets_add_up_to_the_limit_of_a_site(tmp_path: Path) -> None:
    """A site that allows 3 in all takes part with 2, and then with 1, and not a third time with 2.5."""
    spent = {}
    for epsilon in (2.0, 1.0):
        settings = study(delta=1e-4, epsilon=epsilon).settings
        found = conduct_study(InProcess(sites(tmp_path, settings, epsilon=3.0)), settings)
        assert isinstance(found, PrivateStudyResult)
        plan = found.training.plan
        spent[plan.privacy.noise_multiplier] = plan.steps
        parts = json.loads((tmp_path / "bonn" / "privacy-budget.json").read_text())["spent"]
        assert {part["noise_multiplier"]: part["steps"] for part in parts} == spent
        assert len({part["run"] for part in parts}) == len(spent)
    settings = study(delta=1e-4, epsilon=2.5).settings
    with pytest.raises(fs.InvalidInput, match=r"would spend ε = .* of a budget of 3"):
        conduct_study(InProcess(sites(tmp_path, settings, epsilon=3.0)), settings)


class Stops(InProcess):
    """A transport that fails after some exchanges."""

    left = 8

    def exchange(self, requests: Any, *, enough: int | None = None) -> Any:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
        return super().exchange(requests, enough=enough)


def test_a_study_that_was_stopped_goes_on_and_spends_nothing_twice(tmp_path: Path) -> None:
    settings, own = study().settings, tmp_path / "coordinator"
    with pytest.raises(KeyboardInterrupt):
        conduct_study(Stops(sites(tmp_path, settings)), settings, folder=own)
    before = steps_of(tmp_path, "kiel")
    found = conduct_study(InProcess(sites(tmp_path, settings)), settings, folder=own)
    assert isinstance(found, PrivateStudyResult)
    assert 0 < before < found.training.plan.steps
    assert steps_of(tmp_path, "kiel") == found.training.plan.steps


def test_a_crash_after_paying_costs_a_round_which_plans_leave_to_spare(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, own = study(delta=1e-4).settings, tmp_path / "coordinator"
    save, saved = ClientStateFile.save, []

    def crash_once(file: ClientStateFile, stored: Any) -> None:
        saved.append(file.path.parts)
        if len(saved) == 5:  # the second site, in its second round
            raise KeyboardInterrupt
        save(file, stored)

    monkeypatch.setattr(ClientStateFile, "save", crash_once)
    with pytest.raises(KeyboardInterrupt):
        conduct_study(InProcess(sites(tmp_path, settings)), settings, folder=own)
    found = conduct_study(InProcess(sites(tmp_path, settings)), settings, folder=own)
    assert isinstance(found, PrivateStudyResult)
    plan = found.training.plan
    assert steps_of(tmp_path, "bonn") == plan.steps  # answered again from disk
    assert steps_of(tmp_path, "graz") == plan.steps + plan.method.uniform_local_steps


def test_a_site_that_refuses_for_its_budget_stops_the_study_and_keeps_its_folder(tmp_path: Path) -> None:
    settings, own = study().settings, tmp_path / "coordinator"
    members = sites(tmp_path, settings)
    members["graz"].policy = replace(
        members["graz"].policy, epsilon=0.2
    )  # its own budget, smaller than the study's
    for absent in ("wait", "leave out"):
        with pytest.raises(fs.InvalidInput, match=r"site graz.*would spend ε = .* of a budget of 0.2"):
            conduct_study(InProcess(members), settings, folder=own, absent=absent)
    assert not (tmp_path / "graz" / "privacy-budget.json").exists()
    found = conduct_study(InProcess(sites(tmp_path, settings)), settings, folder=own)  # its people allow more
    assert isinstance(found, PrivateStudyResult)
    assert steps_of(tmp_path, "bonn") == found.training.plan.steps  # the same attempt: nothing was paid twice


@pytest.mark.parametrize("phase", ["prepare", "measure", "sums", "evaluate", "labels"])
def test_a_site_with_a_budget_answers_nothing_else(phase: Any, tmp_path: Path) -> None:
    """The coordinator is told a code; the sentence is in the site's log."""
    site = sites(tmp_path, study().settings)["bonn"]
    payload = with_address(pack(StudyMessage(phase, {})), Address("0" * 32, "study"))
    with pytest.raises(Refusal, match="privacy budget, which does not cover") as refused:
        site.answer(payload)
    assert refused.value.code is RefusalCode.ONLY_PRIVATE
    reply = site.answer_or_code(lambda: payload)
    assert reply.values == {"study-refused": "only-private"}
    assert any(phase in entry.get("text", "") for entry in site.store.audit.read())


def test_a_site_with_a_budget_takes_part_in_no_study_without_one() -> None:
    with pytest.raises(SiteProblems, match="the study has none"):
        Study(target="ill").run(tables(), policy=SitePolicy(epsilon=1.0), engine="reference")


def private_request(**more: Any) -> Any:
    config = RunConfig(**{
        "name": "demo", "method": fs.Scaffold(step_size=0.1, local_steps=5), "n_clients": 1, "dim": 2,
        "privacy": RecordLevel(clip=1.0, noise_multiplier=30.0), **more,
    })  # fmt: skip
    return train_request(config, initial_ledger(config, np.zeros(2)), client=0)


def task() -> ProblemTask:
    rng = np.random.default_rng(0)
    return ProblemTask(fs.problems.Ridge([rng.normal(size=(50, 2))], [rng.normal(size=50)], l2=0.1))


def test_the_same_request_again_is_answered_from_disk_and_costs_nothing(tmp_path: Path) -> None:
    policy, request = SitePolicy(epsilon=1.0, delta=1e-3), private_request()
    first: Any = handle_request(request, task(), tmp_path, policy)
    again: Any = handle_request(request, task(), tmp_path, policy)
    np.testing.assert_array_equal(first.vector, again.vector)
    assert steps_of(tmp_path.parent, tmp_path.name) == 5


@pytest.mark.parametrize(
    ("asked", "policy", "code", "words"),
    [
        ({"privacy": None}, {}, "only-private", "steps without noise"),
        ({"privacy": RecordLevel(clip=1.0, noise_multiplier=0.0)}, {}, "privacy-budget", "would spend ε = inf"),
        ({"privacy": RecordLevel(clip=1.0, noise_multiplier=3.0)}, {}, "privacy-budget", "of a budget of 1"),
        ({"privacy": RecordLevel(clip=1e-323, noise_multiplier=30.0)}, {}, "policy-method", "clip must be"),
        ({"privacy": RecordLevel(clip=1e308, noise_multiplier=30.0)}, {}, "policy-method", "clip must be"),
        ({"privacy": RecordLevel(clip=1.0, noise_multiplier=1e300)}, {}, "policy-method", "noise below"),
        ({"privacy": RecordLevel(clip=1.0, noise_multiplier=1e-300)}, {}, "privacy-budget", "would spend ε = inf"),
        ({"schedule": ((0, 0.1, 5000),)}, {}, "privacy-budget", "5,000 more steps would spend"),
        ({"schedule": ((0, 0.1, 20_000),)}, {}, "policy-local-steps", "20000 local steps are asked for"),
        ({"batches": fs.core.random.stream.Batches(10)}, {}, "policy-batch", "on all rows"),
        ({"method": fs.FedLin(step_size=0.1, local_steps=2)}, {}, "policy-method", "Scaffold or FedAvg"),
        ({}, {"delta": 0.02}, "privacy-budget", "must be below 0.02, one over the 50"),
    ],
)
def test_requests_that_a_budget_does_not_allow(
    asked: dict[str, Any], policy: dict[str, Any], code: str, words: str, tmp_path: Path
) -> None:
    with pytest.raises(Refusal, match=words) as refused:
        handle_request(private_request(**asked), task(), tmp_path, SitePolicy(**{"epsilon": 1.0, **policy}))
    assert str(refused.value.code) == code
    assert not (tmp_path / "privacy-budget.json").exists()


def test_requests_with_other_noise_spend_the_same_budget(tmp_path: Path) -> None:
    policy = SitePolicy(epsilon=1.0, delta=1e-3)
    handle_request(private_request(), task(), tmp_path, policy)
    other = private_request(name="other", privacy=RecordLevel(clip=1.0, noise_multiplier=60.0))
    handle_request(other, task(), tmp_path, policy)
    assert steps_of(tmp_path.parent, tmp_path.name) == 10
    enough = fs.privacy.noise_for(epsilon=0.98, delta=1e-3, steps=5)  # had nothing been spent before
    louder = private_request(name="third", privacy=RecordLevel(clip=1.0, noise_multiplier=enough))
    with pytest.raises(Refusal, match="would spend ε = 1"):
        handle_request(louder, task(), tmp_path, policy)
    with pytest.raises(Refusal, match="another table, δ or adjacency"):
        handle_request(louder, task(), tmp_path, SitePolicy(epsilon=2.0, delta=1e-4))
    handle_request(louder, task(), tmp_path, SitePolicy(epsilon=2.0, delta=1e-3))  # its people allow more


def test_a_configuration_with_privacy_survives_the_wire() -> None:
    config = private_request().config
    assert RunConfig.from_json(config.to_json()) == config
    assert config.digest != replace(config, privacy=None).digest
    with pytest.raises(fs.InvalidInput):
        RunConfig.from_json(config.to_json().replace('"clip": 1.0', '"clip": 0.0'))


def test_settings_agreement_and_file_survive_their_texts() -> None:
    settings = study(delta=1e-4, clip=2.0, kind="logistic").settings
    assert StudySettings.from_json(json.loads(json.dumps(settings.to_json(), sort_keys=True))) == settings
    file = StudyFile(name="pilot", settings=settings, sites=("bonn", "graz"))
    assert StudyFile.parse(file.text()) == file
    agreement = public_agreement(settings, 100)
    assert type(agreement).from_json(agreement.to_json()) == agreement
    assert agreement.limit == 3.0


def test_a_dry_run_shows_that_nothing_else_would_leave() -> None:
    found = dry_run(tables()["bonn"], study().settings)
    assert set(found.traffic) == {"greet", "agree", "train", "finish"}
    assert not found.stopped


def test_sites_whose_tables_do_not_fit_say_so_before() -> None:
    site = StudySite(name="bonn", table=tables()["bonn"].assign(ill="perhaps"), engine="reference")
    with pytest.raises(fs.InvalidInput, match="its classes are"):
        site.check(study().settings)
    texts = {**tables(), "graz": tables()["graz"].assign(age="old")}
    with pytest.raises(SiteProblems, match=r"column 'age'.*site graz"):
        study().run(texts)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"epsilon": 0.0}, "epsilon must be a positive number"),
        ({"delta": 2.0}, "delta must be below 1"),
        ({"clip": 0.0}, "clip must be a positive number"),
        ({"bounds": None}, "epsilon requires bounds"),
        ({"bounds": {"age": (9, 1), "ill": ("no", "yes")}}, "low < high"),
        ({"epsilon": None}, "bounds requires epsilon"),
        ({"secure": True, "evaluate": 0.5}, r"epsilon cannot be combined with evaluate=\.\.\."),
        ({"secure": True, "secure_threshold": 1}, "secure_threshold must be"),
        (
            {"evaluate": 0.5, "trainer": "newton"},
            "cannot be combined with trainer=..., evaluate=...",
        ),
        ({"kind": "poisson"}, "the bounds of column 'ill' must be a range"),
        ({"features": ["age"]}, r"epsilon cannot be combined with features=\.\.\."),
    ],
)
def test_bad_settings_are_refused_before_anything_is_sent(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(fs.InvalidInput, match=words):
        study(**wrong)


def test_a_delta_that_does_not_protect_a_site_is_refused_before_anything_is_prepared(tmp_path: Path) -> None:
    """The coordinator knows numbers of rows after the greeting; a site knows its own before it joins."""
    wrong = study(delta=0.002).settings
    members = sites(tmp_path, wrong)
    with pytest.raises(fs.InvalidInput, match=r"delta must be below 0\.00167, one over the 600 rows"):
        conduct_study(InProcess(members), wrong)
    assert [entry["phase"] for entry in members["kiel"].log] == ["greet"]
    with pytest.raises(fs.InvalidInput, match=r"delta must be below 0\.00167, one over the 600 rows"):
        members["kiel"].check(wrong)
    assert members["graz"].check(wrong).n_rows == 150


@pytest.mark.parametrize(
    "wrong",
    [{"epsilon": 0.0}, {"epsilon": -1.0}, {"delta": 0.1}, {"epsilon": 1.0, "delta": 1.0}, {"run_epsilon": 1.0}],
)
def test_bad_budgets_of_a_policy(wrong: dict[str, Any]) -> None:
    with pytest.raises(fs.InvalidInput, match="the policy"):
        SitePolicy(**wrong)
