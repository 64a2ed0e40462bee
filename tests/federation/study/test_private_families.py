"""Studies under a privacy budget for several classes, counts and amounts."""

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest
from fedscaffold.federation.study.private.at_site import public_agreement
from fedscaffold.models.private.planned import public_plan

import fedscaffold as fs
from fedscaffold.federation import Study, StudySettings, dry_run
from fedscaffold.flower.study.study_file import StudyFile
from fedscaffold.privacy.settings import PrivacySettings
from tests.models.test_private_families import TARGETS, asked, patients


def tables(family: str, rows: int = 300) -> dict[str, pd.DataFrame]:
    columns = ["age", "sex", TARGETS[family]["target"]]
    return {site: patients(k, rows * (k + 1))[columns] for k, site in enumerate(("bonn", "graz", "kiel"))}


def study(family: str, **more: Any) -> Study:
    given = {**asked(family), **more}
    del given["client"]
    return Study(**{**given, "kind": given["kind"] or "logistic"})


@pytest.mark.parametrize(("family", "secure"), [("several classes", True), ("poisson", False), ("gamma", True)])
def test_only_noisy_steps_and_public_facts_leave_a_site(family: str, secure: bool, tmp_path: Any) -> None:
    result: Any = study(family, secure=secure).run(tables(family))
    plan = result.training.plan
    phases = {"greet", "agree", "train", "finish"} | ({"peers"} if secure else set())
    for log in result.log.values():
        assert {entry["phase"] for entry in log} == phases
    spent = fs.privacy.epsilon(
        noise_multiplier=plan.privacy.noise_multiplier, delta=plan.delta,
        steps=plan.method.uniform_local_steps * (plan.rounds + plan.spare_rounds),
    )  # fmt: skip
    assert 2.999 < spent <= 3.0
    result.save(tmp_path)
    names = [name for name, _ in result.coefficient_values()]
    assert names[-1].endswith("intercept")
    assert len(names) == result.theta.size
    page = (tmp_path / "report.html").read_text()
    assert result.coefficient_values()[0][1] in page
    assert fs.Model.load(tmp_path / "model.json").kind == result.settings.kind


@pytest.mark.parametrize("family", TARGETS)
def test_without_noise_it_is_the_pooled_model(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedscaffold.engines.reference.secret_normals", np.zeros)
    gamma = {"several classes": 0.8, "poisson": 0.1, "gamma": 0.3}[family]
    given = PrivacySettings(epsilon=3.0, clip=1e6, step_size=gamma, local_steps=10, rounds=60)
    monkeypatch.setattr(
        "fedscaffold.federation.study.private.conduct.public_plan",
        lambda target, levels, sizes, budget, **more: public_plan(target, levels, sizes, given, **more),
    )
    found = study(family, l2=0.5).run(tables(family, 60))
    bounds: Any = found.settings.public_bounds
    best = bounds.problem(pd.concat(tables(family, 60).values()).assign(site="all"), "site", 0.5).optimum()
    np.testing.assert_allclose(found.theta, best, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", TARGETS)
def test_many_rows_and_a_large_budget_come_near_the_pooled_coefficients(family: str) -> None:
    found = study(family, epsilon=150.0).run(tables(family, 450))
    bounds: Any = found.settings.public_bounds
    pooled = pd.concat(tables(family, 450).values()).assign(site="all")
    best = bounds.problem(pooled, "site", "auto").optimum()
    assert np.linalg.norm(found.theta - best) < 0.15 * np.linalg.norm(best)
    if family == "several classes":
        np.testing.assert_allclose(found.theta.reshape(3, -1).sum(axis=0), 0.0, atol=1e-12)


@pytest.mark.parametrize("family", TARGETS)
def test_settings_agreement_and_file_survive_their_texts(family: str) -> None:
    settings = study(family).settings
    assert StudySettings.from_json(json.loads(json.dumps(settings.to_json(), sort_keys=True))) == settings
    file = StudyFile(name="pilot", settings=settings, sites=("bonn", "graz"))
    assert StudyFile.parse(file.text()) == file
    agreement = public_agreement(settings, 100)
    assert type(agreement).from_json(json.loads(json.dumps(agreement.to_json()))) == agreement
    assert not dry_run(tables(family)["bonn"], settings).stopped


@pytest.mark.parametrize("limits", [[1.0], [2.0, 1.0], "ab", [0.0, float("nan")], 3])
def test_agreements_with_other_limits_are_refused(limits: Any) -> None:
    told = public_agreement(study("poisson").settings, 100).to_json()
    with pytest.raises(fs.InvalidInput, match="target_limits"):
        fs.federation.Agreement.from_json({**told, "target_limits": limits})


@pytest.mark.parametrize(
    ("family", "wrong", "words"),
    [
        ("poisson", {"epsilon": 0.0}, "epsilon must be a positive number"),
        ("poisson", {"bounds": None}, "epsilon requires bounds"),
        ("poisson", {"bounds": {"age": (0, 9), "visits": (-1, 20)}}, "range of counts must not be negative"),
        ("gamma", {"bounds": {"age": (0, 9), "cost": (0, 20)}}, "range of positive amounts must be positive"),
        ("several classes", {"bounds": {"age": (0, 9), "stage": ("late",)}}, "two values or more"),
        ("poisson", {"exposure": "days"}, r"epsilon cannot be combined with exposure=\.\.\."),
        ("gamma", {"delta": 1.0}, "delta must be below 1"),
    ],
)
def test_bad_settings_are_refused_before_anything_is_sent(family: str, wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(fs.InvalidInput, match=words):
        study(family, **wrong)


def test_a_delta_that_does_not_protect_a_site_is_refused() -> None:
    with pytest.raises(fs.InvalidInput, match=r"delta must be below 0\.00111, one over the 900 rows"):
        study("poisson", delta=0.01).run(tables("poisson"))
