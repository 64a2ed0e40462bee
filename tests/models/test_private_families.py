"""Fits under a privacy budget for each kind of model: near the pooled one where noise is small, and refusals."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import fedscaffold as fs
from fedscaffold.cli.main import app
from fedscaffold.data.public import Bounds, PublicTarget
from fedscaffold.models.private import centred
from fedscaffold.privacy.plan import PrivacySettings, public_plan
from tests.models.test_private_fit import WRITTEN

TARGETS: dict[str, dict[str, Any]] = {
    "several classes": {"target": "stage", "bounds": ("early", "late", "middle")},
    "poisson": {"target": "visits", "kind": "poisson", "bounds": (0, 20)},
    "gamma": {"target": "cost", "kind": "gamma", "bounds": (1.0, 5000.0)},
}
FEATURES: dict[str, Any] = {"age": (20, 90), "sex": ("f", "m")}


def patients(seed: int = 0, rows: int = 300) -> pd.DataFrame:
    """Rows with a target of each kind."""
    rng = np.random.default_rng(seed)
    age, sex = np.clip(rng.normal(55, 12, rows), 20, 90), rng.choice(["f", "m"], rows)
    z = (age - 55) / 12
    odds = np.exp(np.column_stack([-z, z, 0.5 * (sex == "m")]))
    stage = (rng.random(rows)[:, None] > (odds / odds.sum(axis=1)[:, None]).cumsum(axis=1)[:, :2]).sum(axis=1)
    return pd.DataFrame({
        "age": age, "sex": sex, "site": ["a", "b", "b"] * (rows // 3),
        "stage": np.array(["early", "late", "middle"])[stage],
        "visits": rng.poisson(np.exp(0.7 + 0.4 * z + 0.3 * (sex == "m"))),
        "cost": rng.gamma(2.0, np.exp(4.0 + 0.5 * z) / 2.0),
    })  # fmt: skip


def asked(family: str, **more: Any) -> dict[str, Any]:
    """What to give to `fit` for a kind of model."""
    target = TARGETS[family]
    own = {"target": target["target"], "bounds": {**FEATURES, target["target"]: target["bounds"]}}
    return {**own, "kind": target.get("kind"), "client": "site", "epsilon": 3.0, **more}


def pooled(family: str, table: pd.DataFrame, l2: Any) -> Any:
    """The problem of all rows in the public coding."""
    given = asked(family)
    return Bounds.parse(given["bounds"], target=given["target"], kind=given["kind"]).problem(table, "site", l2)


@pytest.mark.parametrize("family", TARGETS)
def test_without_clipping_and_noise_it_is_the_optimum(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "fedscaffold.models.private.discrete_gaussian", lambda sigma, count: np.zeros(count, np.int64)
    )
    table, problem = patients(), pooled(family, patients(), 0.01)
    gamma = {"several classes": 0.8, "poisson": 0.1, "gamma": 0.3}[family]
    found = fs.fit(table, **asked(family, clip=100.0, step_size=gamma, rounds=1500, l2=0.01))
    np.testing.assert_allclose(found.theta, problem.optimum(), rtol=1e-5, atol=1e-7)
    rows = pd.DataFrame({"age": [40.0, 70.0], "sex": ["f", "m"]})
    z = problem.encoding.encode(rows) @ problem.optimum().reshape(problem.vectors, -1).T
    if family == "several classes":
        chances = np.exp(z) / np.exp(z).sum(axis=1)[:, None]
        np.testing.assert_allclose(found.model.predict_proba(rows), chances, rtol=1e-5)
        assert [name for name, _ in found.model.named_coefficients][:2] == ["early: age", "early: sex=m"]
    else:
        base = problem.y[0, 1]  # the offset of all rows, from the public range
        np.testing.assert_allclose(found.model.predict(rows), np.exp(base + z[:, 0]), rtol=1e-5)
    assert fs.Model.from_json(found.model.to_json()) == found.model


@pytest.mark.parametrize("family", TARGETS)
def test_many_rows_and_a_large_budget_come_near_the_pooled_coefficients(family: str) -> None:
    """At ε = 50 with 6,000 rows noise is small; what is left is what clipping does to skewed rows."""
    table = patients(1, 6000)
    found, best = fs.fit(table, **asked(family, epsilon=50.0)), pooled(family, table, "auto").optimum()
    assert np.linalg.norm(found.theta - best) < 0.15 * np.linalg.norm(best)
    if family == "several classes":  # noise that no prediction depends on is taken off
        np.testing.assert_allclose(found.theta.reshape(3, -1).sum(axis=0), 0.0, atol=1e-12)
    assert found.privacy is not None
    assert found.privacy.predicted_error is not None
    assert math.isfinite(found.privacy.predicted_error)


@pytest.mark.parametrize("family", TARGETS)
def test_the_plan_spends_the_budget_and_no_more(family: str) -> None:
    found = fs.fit(patients(), **asked(family, epsilon=1.5, delta=1e-3))
    assert found.privacy is not None
    spent = fs.privacy.epsilon(
        noise_multiplier=found.privacy.noise_multiplier, delta=1e-3, steps=found.privacy.releases
    )
    assert 1.499 < spent <= 1.5


@pytest.mark.parametrize("family", TARGETS)
def test_nothing_but_the_steps_depends_on_the_rows(family: str) -> None:
    """Another table of the same size has the same coding, plan and start; nothing of its rows is in the model."""
    one, other = (fs.fit(patients(seed), **asked(family)) for seed in (0, 1))
    assert one.privacy == other.privacy
    assert one.model.encoding == other.model.encoding
    assert one.model.standard_errors is None
    assert set(one.model.provenance) == {"versions", "machine", "finished", "privacy"}


@pytest.mark.parametrize(
    ("family", "beyond", "ends"),
    [("poisson", [-3, 5000], [0.0, 20.0]), ("gamma", [0.0, 1e12], [1.0, 5000.0])],
)
def test_targets_beyond_their_range_count_as_its_ends(family: str, beyond: list[float], ends: list[float]) -> None:
    table = patients()
    table[asked(family)["target"]] = np.resize(beyond, len(table))
    problem = pooled(family, table, 0.0)
    assert sorted(set(problem.targets.tolist())) == ends


def test_many_classes_keep_their_numbers() -> None:
    """Classes are numbered 0, 1, ... beyond the limit of encoded numbers too."""
    table = pd.DataFrame({"x": np.zeros(12), "y": list("abcdef") * 2, "site": ["a", "b"] * 6})
    problem = Bounds.parse({"x": (-1, 1), "y": tuple("abcdef")}, target="y").problem(table, "site", 0.1)
    assert set(problem.y.tolist()) == {0.0, 1.0, 2.0, 3.0, 4.0, 5.0}


def test_the_mean_over_classes_is_taken_off() -> None:
    theta = np.arange(6.0)
    np.testing.assert_allclose(centred(theta, 3), [-2, -2, 0, 0, 2, 2])
    assert centred(theta, 1) is theta


def test_where_the_exponential_overflows_gradients_are_clipped_all_the_same() -> None:
    problem = fs.problems.Poisson([np.array([[2.0], [0.0]])], [np.array([1.0, 1.0])])
    found = problem.clipped_gradient(0, np.array([1e6]), np.arange(2), 0.5)
    np.testing.assert_allclose(found, [0.25])


@pytest.mark.parametrize(
    "target",
    [
        PublicTarget(kind="poisson", ends=(0.0, 1.0)),
        PublicTarget(kind="poisson", ends=(0.0, 1e6)),
        PublicTarget(kind="gamma", ends=(90.0, 110.0)),
        PublicTarget(kind="gamma", ends=(1e-6, 1e6)),
        PublicTarget(kind="logistic", n_classes=12),
    ],
)
@pytest.mark.parametrize("rows", [6, 100_000])
def test_ranges_and_sizes_of_all_kinds_have_plans(target: PublicTarget, rows: int) -> None:
    budget = PrivacySettings(epsilon=1.0)
    plan = public_plan(target, [0, 3], [rows // 2] * 2, budget, l2=1.0 / rows)
    assert plan.predicted_error is not None
    assert 0.0 < plan.predicted_error < 1.5
    assert plan == public_plan(target, [0, 3], [rows // 2] * 2, budget, l2=1.0 / rows)


@pytest.mark.parametrize(
    ("family", "wrong", "words"),
    [
        ("poisson", {"epsilon": 0.0}, "epsilon must be a positive number"),
        ("gamma", {"delta": 0.005}, "delta must be below 0.005, one over the 200 rows of the largest client"),
        ("poisson", {"bounds": None}, "epsilon requires bounds"),
        ("poisson", {"bounds": FEATURES}, "must have the target 'visits' too"),
        (
            "poisson",
            {"bounds": {**FEATURES, "visits": (-1, 20)}},
            r"range of counts must not be negative, got \(-1",
        ),
        ("poisson", {"bounds": {**FEATURES, "visits": (0, 2.5)}}, "range of counts must be whole numbers"),
        ("poisson", {"bounds": {**FEATURES, "visits": ("few", "many")}}, r"must be a range \(low, high\)"),
        (
            "gamma",
            {"bounds": {**FEATURES, "cost": (0, 20)}},
            r"range of positive amounts must be positive, got \(0",
        ),
        ("gamma", {"bounds": {**FEATURES, "cost": (20, 1)}}, "low < high"),
        ("several classes", {"bounds": {**FEATURES, "stage": ("early",)}}, "two values or more"),
        ("several classes", {"bounds": {**FEATURES, "stage": ("early", "late")}}, "but its classes are"),
        ("poisson", {"exposure": "age"}, r"epsilon cannot be combined with exposure=\.\.\."),
        ("poisson", {"weight": "age"}, r"epsilon cannot be combined with weight=\.\.\."),
        ("poisson", {"kind": "tweedie"}, "kind must be"),
    ],
)
def test_what_is_refused(family: str, wrong: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedscaffold.models.private.run_privately", None)  # nothing is computed from the rows
    with pytest.raises(fs.InvalidInput, match=words):
        fs.fit(patients(), **asked(family, **wrong))


@pytest.mark.parametrize("family", TARGETS)
def test_the_command(family: str, tmp_path: Path) -> None:
    patients().to_csv(tmp_path / "rows.csv", index=False)
    given = asked(family)
    lines = [f"{name} = {list(value)!r}" for name, value in given["bounds"].items()]
    (tmp_path / "bounds.toml").write_text("\n".join(lines))
    words = ["fit", str(tmp_path / "rows.csv"), "--target", given["target"], "--client", "site", "--epsilon", "3"]
    words += ["--bounds", str(tmp_path / "bounds.toml"), "--kind", given["kind"] or "logistic"]
    done = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "model")])
    assert done.exit_code == 0, done.output
    assert sorted(file.name for file in (tmp_path / "model").iterdir()) == WRITTEN
    model = fs.Model.load(tmp_path / "model" / "model.json")
    assert model.kind == (given["kind"] or "logistic")
    assert np.isfinite([value for _, value in model.named_coefficients]).all()
    if given["kind"] is not None:
        (tmp_path / "bounds.toml").write_text("\n".join([*lines[:-1], f"{given['target']} = [-2, 20]"]))
        refused = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "other")])
        assert refused.exit_code == 2
        assert "got (-2, 20)" in refused.output
        assert "Traceback" not in refused.output
