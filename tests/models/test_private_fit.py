"""Fits under a privacy budget: right without noise, noisy as accounted, and blind to the rows elsewhere."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import fedscaffold as fs
from fedscaffold.cli.main import app
from fedscaffold.data.public import Bounds, PublicTarget
from fedscaffold.models.private import run_privately
from fedscaffold.privacy.grid import CLIP
from fedscaffold.privacy.plan import PrivacySettings, public_plan

WRITTEN = ["coding.json", "model.json", "report.html", "results.json", "summary.txt", "sums.npz"]

RIDGE = PublicTarget(kind="ridge", ends=(-3.0, 3.0))
BOUNDS: dict[str, Any] = {"sex": ("f", "m"), "age": (20, 90), "ill": ("no", "yes")}


def visits(seed: int = 0, rows: int = 300) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    age, sex = rng.normal(55, 12, rows), rng.choice(["f", "m"], rows)
    ill = rng.random(rows) < 1 / (1 + np.exp(-(age - 55) / 8 - (sex == "m")))
    return pd.DataFrame({
        "age": age, "sex": sex, "ill": np.where(ill, "yes", "no"), "site": ["a", "b", "b"] * (rows // 3),
        "unused": rng.normal(size=rows),
    })  # fmt: skip


def private(table: Any = None, **more: Any) -> Any:
    given: dict[str, Any] = {"target": "ill", "client": "site", "epsilon": 3.0, "bounds": BOUNDS, **more}
    return fs.fit(visits() if table is None else table, **given)


def test_without_clipping_and_noise_it_is_the_optimum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "fedscaffold.models.private.discrete_gaussian", lambda sigma, count: np.zeros(count, np.int64)
    )
    found = private(clip=10.0, step_size=1.0, rounds=1200, l2=0.01)
    problem = Bounds.parse(BOUNDS, target="ill").problem(visits(), "site", 0.01)
    np.testing.assert_allclose(found.theta, problem.optimum(), rtol=1e-6)
    ages = pd.DataFrame({"age": [40.0, 70.0], "sex": ["f", "m"]})
    chance = 1 / (1 + np.exp(-problem.encoding.encode(ages) @ problem.optimum()))
    np.testing.assert_allclose(found.model.predict_proba(ages)[:, 1], chance, rtol=1e-6)


def test_the_noise_is_what_the_accountant_counts() -> None:
    """If nothing is learnt, θ is a sum of noise, each with its weight by momentum; to four standard errors."""
    d, n, clients, T = 400, 6, 3, 8
    problem = fs.problems.Ridge(np.zeros((clients, n, d)), np.zeros((clients, n)), l2=0.0)
    settings = PrivacySettings(epsilon=1.0, delta=1e-3, clip=0.5, step_size=0.1, rounds=T)
    plan = public_plan(RIDGE, [0] * d, [n] * clients, settings, l2=0.0, intercept=False)
    theta, again = run_privately(problem, plan, False), run_privately(problem, plan, False)
    weights = (1.0 - 0.7 ** np.arange(1, T + 1)) / 0.3
    expected = np.square(weights).sum() * 0.1**2 * (plan.noise_multiplier * 0.5) ** 2 / (n**2 * clients)
    assert abs(theta.var() / expected - 1.0) < 4.0 * np.sqrt(2.0 / d)
    assert abs(np.corrcoef(theta, again)[0, 1]) < 4.0 / np.sqrt(d)  # nobody can repeat it
    assert plan.noise_multiplier <= plan.noise / CLIP < plan.noise_multiplier + 1e-9


def test_the_plan_spends_the_budget_and_no_more() -> None:
    found = private(epsilon=1.5, delta=1e-3)
    spent = fs.privacy.epsilon(
        noise_multiplier=found.privacy.noise_multiplier, delta=1e-3, steps=found.privacy.releases
    )
    assert 1.499 < spent <= 1.5
    assert "(1.5, 0.001)-differentially private" in found.explain()


def test_settings_that_are_given_stay() -> None:
    found = private(clip=0.7, step_size=0.3, rounds=6).privacy
    assert (found.clip, found.step_size, found.rounds) == (0.7, 0.3, 6)
    assert found.predicted_error is None
    assert private(rounds=3).privacy.rounds == 3


def test_nothing_but_the_steps_depends_on_the_rows() -> None:
    """Another table of the same size gives the same coding and plan, and no number of the table is anywhere."""
    one, other = private(visits(0)), private(visits(1) * 1)
    assert one.privacy == other.privacy
    assert one.model.encoding == other.model.encoding
    assert one.model.standard_errors is None
    with pytest.raises(fs.InvalidInput, match="privacy budget does not cover"):
        one.summary()
    assert one.certified_error == {"standard_errors": None, "relative": None}
    assert set(one.model.provenance) == {"versions", "machine", "finished", "privacy"}


def test_values_beyond_the_bounds_count_as_their_ends() -> None:
    table = visits()
    table.loc[:9, "age"], table.loc[0, "sex"] = 1e9, "x"
    known = Bounds.parse(BOUNDS, target="ill").problem(table, "site", 0.0)
    assert np.abs(known.x).max() == 3.0
    assert known.x[0].tolist() == [0.0, 3.0, 1.0]
    numbers = Bounds.parse({"age": (0, 60), "unused": (-1, 1)}, target="unused")
    assert numbers.kind == "ridge"
    assert np.abs(numbers.problem(table, "site", 0.0).y).max() == 3.0


def test_it_learns_what_a_budget_allows() -> None:
    """At ε = 8 with 3,000 rows the model tells the classes apart nearly as the pooled one does."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score

    table, test = visits(2, 3000), visits(3, 3000)
    rows, others = (np.column_stack([each["age"], each["sex"] == "m"]) for each in (table, test))
    best = LogisticRegression().fit(rows, table["ill"]).predict_proba(others)[:, 1]
    found, ill = private(table, epsilon=8.0).model.predict_proba(test)[:, 1], test["ill"] == "yes"
    assert roc_auc_score(ill, found) > roc_auc_score(ill, best) - 0.02


def test_more_rows_are_predicted_to_help() -> None:
    """More rows of every client are predicted to help."""
    budget = PrivacySettings(epsilon=1.0, delta=1e-6, clip=1.0, step_size=0.1)
    few, many = (public_plan(RIDGE, [0, 0], [n] * 50, budget, l2=0.1) for n in (1000, 100_000))
    assert few.predicted_error is not None
    assert many.predicted_error is not None
    assert many.predicted_error < few.predicted_error


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"epsilon": 0.0}, "epsilon must be a positive number"),
        ({"epsilon": -1.0}, "epsilon must be a positive number"),
        ({"epsilon": "3"}, "epsilon must be a positive number"),
        ({"epsilon": float("nan")}, "epsilon must be a positive number"),
        ({"delta": 0.0}, "delta must be a positive number"),
        ({"delta": 0.005}, "delta must be below 0.005, one over the 200 rows of the largest client"),
        ({"delta": 1.0}, "delta must be below 1"),
        ({"clip": 0.0}, "clip must be a positive number"),
        ({"bounds": None}, "epsilon requires bounds"),
        ({"bounds": {"age": (20, 90)}}, "must have the target 'ill' too"),
        ({"bounds": {"ill": ("no", "yes")}}, "no features"),
        ({"bounds": {"age": (90, 20), "sex": ("f",), "ill": ("no", "yes")}}, "2 problems"),
        ({"bounds": {**BOUNDS, "ill": ("no",)}}, "two values or more"),
        ({"bounds": {**BOUNDS, "weight": (0, 1)}}, "no column 'weight'"),
        ({"bounds": {**BOUNDS, "ill": ("no", "maybe")}}, "has the values 'yes', but its classes are"),
        ({"bounds": 7}, "bounds must be a dictionary"),
        ({"kind": "poisson"}, "the bounds of column 'ill' must be a range"),
        ({"kind": "tweedie"}, "kind must be"),
        ({"categorical": ["ward"]}, "for which there are no bounds"),
        ({"tolerance": 0.1, "trainer": "newton"}, r"epsilon cannot be combined with (to|tr).*=\.\.\., (to|tr)"),
        ({"features": ["age"]}, r"epsilon cannot be combined with features=\.\.\."),
        ({"epsilon": None}, "bounds requires epsilon"),
        ({"epsilon": None, "bounds": None, "delta": 0.1}, "delta requires epsilon"),
    ],
)
def test_what_is_refused(wrong: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedscaffold.models.private.run_privately", None)  # nothing is computed from the rows
    with pytest.raises(fs.InvalidInput, match=words):
        private(**wrong)


def test_the_command(tmp_path: Path) -> None:
    visits().to_csv(tmp_path / "visits.csv", index=False)
    (tmp_path / "bounds.toml").write_text('age = [20, 90]\nsex = ["f", "m"]\nill = ["no", "yes"]\n')
    words = ["fit", str(tmp_path / "visits.csv"), "--target", "ill", "--client", "site", "--out"]
    budget = ["--epsilon", "3", "--bounds", str(tmp_path / "bounds.toml")]
    done = CliRunner().invoke(app, [*words, str(tmp_path / "model"), *budget])
    assert done.exit_code == 0, done.output
    assert sorted(file.name for file in (tmp_path / "model").iterdir()) == WRITTEN
    assert fs.Model.load(tmp_path / "model" / "model.json").provenance["privacy"]["epsilon"] == 3.0
    assert "Taken as public" in (tmp_path / "model" / "summary.txt").read_text()
    for wrong, said in [
        (budget, "holds a model already"),
        (
            [*budget, "--test", "x.csv", "--set", "min_rows=1"],
            "--epsilon cannot be combined with --set min_rows=..., --test",
        ),
        (["--epsilon", "3"], "--epsilon requires --bounds"),
        (["--set", "delta=0.001"], "delta requires --epsilon"),
        (["--epsilon", "3", "--bounds", str(tmp_path / "none.toml")], "cannot read the bounds"),
    ]:
        refused = CliRunner().invoke(app, [*words, str(tmp_path / "model"), *wrong])
        assert refused.exit_code == 2
        assert said in refused.output


def test_a_private_fit_is_saved_and_opened_again(tmp_path: Path) -> None:
    """With what it protects, and a page; nothing in the folder is about single rows."""
    found = private()
    found.save(tmp_path)
    again = fs.models.load(tmp_path)
    assert repr(again) == repr(found)
    assert again.explain() == found.explain()
    assert again.model == found.model
    assert again.privacy == found.privacy
    assert again.certified_error == {"standard_errors": None, "relative": None}
    with pytest.raises(fs.InvalidInput, match="privacy budget does not cover"):
        again.summary()
    page = (tmp_path / "report.html").read_text()
    assert "differentially private for every" in page
    assert "certified" not in page
