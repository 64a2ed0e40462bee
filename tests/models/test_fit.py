"""Fits: the model is the pooled one, by either trainer, and comes back from its folder."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import fedscaffold as fs
from fedscaffold import InvalidInput
from fedscaffold.data import from_frame, open_problem
from fedscaffold.data.encoded import EncodedRidge
from fedscaffold.models import FitSettings, fit
from fedscaffold.models.coding import standardize_target
from fedscaffold.models.from_data import DROPPED
from tests.hospitals import cancer, diabetes, wine, written

L2 = 0.01


def test_ridge_comes_as_close_to_scikit_learns_pooled_model_as_was_asked(tmp_path: Path) -> None:
    frame = diabetes()
    problem = open_problem(written(frame, tmp_path / "d.csv"), target="target", client="hospital", l2=L2)
    features = list(frame.columns[:10])
    pooled = make_pipeline(StandardScaler(), Ridge(alpha=L2 * len(frame))).fit(frame[features], frame.target)
    found = fit(problem, settings=FitSettings(tolerance=1e-4))
    assert found.reached
    assert (found.certified_error["relative"] or 0.0) <= 1e-4
    scale = frame[features].std(ddof=0).to_numpy()
    own = np.array(found.model.equations[0].coefficients)
    assert found.model.encoding.names == tuple(features)
    wanted = pooled[-1].coef_
    np.testing.assert_allclose(own * scale, wanted, rtol=1e-7)
    np.testing.assert_allclose(found.model.predict(frame), pooled.predict(frame[features]), rtol=1e-9)


def test_two_classes_are_scikit_learns(tmp_path: Path) -> None:
    frame = cancer().drop(columns="ward")
    problem = open_problem(written(frame, tmp_path / "c.parquet"), target="diagnosis", client="hospital", l2=L2)
    found = fit(problem, settings=FitSettings(tolerance=1e-3))
    features = list(frame.columns[:8])
    sk = LogisticRegression(C=1 / (L2 * len(frame)), tol=1e-8, max_iter=5000)
    pooled = make_pipeline(StandardScaler(), sk).fit(frame[features], frame.diagnosis)
    assert found.reached
    np.testing.assert_allclose(
        found.model.predict_proba(frame), pooled.predict_proba(frame[features]), rtol=0, atol=1e-6
    )


def test_three_classes_are_scikit_learns(tmp_path: Path) -> None:
    frame = wine()
    problem = open_problem(written(frame, tmp_path / "w.csv"), target="target", client="hospital", l2=0.1)
    found = fit(problem, settings=FitSettings(tolerance=1e-3))
    features = list(frame.columns[:13])
    sk = LogisticRegression(C=1 / (0.1 * len(frame)), tol=1e-8, max_iter=5000)
    pooled = make_pipeline(StandardScaler(), sk).fit(frame[features], frame.target)
    np.testing.assert_allclose(
        found.model.predict_proba(frame), pooled.predict_proba(frame[features]), rtol=0, atol=1e-6
    )


def test_where_the_targets_zero_lies_does_not_matter() -> None:
    frame = diabetes()
    found = []
    for shift, scale in ((0.0, 1.0), (1e6, 1e-3)):
        moved = frame.assign(target=shift + scale * frame.target)
        problem = from_frame(moved, target="target", client="hospital", l2=L2, standardize=True, intercept=True)
        found.append((fit(problem).model.predict(moved) - shift) / scale)
    np.testing.assert_allclose(found[0], found[1], rtol=1e-6)


def test_the_standardize_targets_optimum_is_the_same_one() -> None:
    problem = from_frame(diabetes(), target="target", client="hospital", l2=L2, standardize=True, intercept=True)
    assert isinstance(problem, EncodedRidge)
    other, mean, deviation = standardize_target(problem)
    back = other.optimum() * deviation
    back[-1] += mean
    np.testing.assert_allclose(back, problem.optimum(), rtol=1e-9)
    assert other.loss(other.optimum()) * deviation**2 == pytest.approx(problem.loss(problem.optimum()), rel=1e-9)


TABLES: dict[str, tuple[Any, str]] = {
    "ridge": (diabetes, "target"), "logistic": (cancer, "diagnosis"), "multinomial": (wine, "target"),
}  # fmt: skip


@pytest.mark.parametrize("kind", TABLES)
def test_scaffold_and_newton_give_one_model(kind: str) -> None:
    make, target = TABLES[kind]
    newton, scaffold = (
        fs.fit(make(), target=target, client="hospital", trainer=one) for one in ("newton", "scaffold")
    )
    assert (newton.trainer, scaffold.trainer) == ("newton", "scaffold")
    assert scaffold.rounds > newton.rounds
    assert any("Scaffold ran" in note for note in scaffold.trained.notes)
    for found in (newton, scaffold):
        error = found.certified_error["standard_errors"]
        assert error is not None
        assert error <= 0.05
        assert found.reached
    ahead = np.abs(newton.summary().coef - scaffold.summary().coef) / newton.summary().se
    assert ahead.max() < 1e-6
    automatic = fs.fit(make(), target=target, client="hospital")
    assert automatic.trainer == "newton"
    assert "Newton's method: with" in automatic.trained.notes[0]


def test_many_coefficients_are_trained_without_hessians() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1200, 1010))
    frame = pd.DataFrame(x, columns=[f"x{j}" for j in range(1010)])
    frame = frame.assign(y=x[:, 0] + rng.normal(size=1200), site=np.arange(1200) % 3)
    found = fs.fit(frame, target="y", client="site", l2=0.5, tolerance=1e-3)
    assert found.trainer == "scaffold"
    assert found.reached
    assert not found.has_standard_errors
    assert found.certified_error["standard_errors"] is None
    problem, *_ = standardize_target(open_problem(frame, target="y", client="site", l2=0.5))
    best = problem.optimum()
    assert np.linalg.norm((found.theta - best)[:-1]) <= 1e-3 * np.linalg.norm(best[:-1])
    with pytest.raises(InvalidInput, match="of all 1,011 coefficients; at most 1,000"):
        found.summary()
    with pytest.raises(InvalidInput, match="Newton's method needs sums of Hessians"):
        fs.fit(frame, target="y", client="site", l2=0.5, trainer="newton")


def test_few_exchanges_leave_the_tolerance_missed() -> None:
    found = fs.fit(cancer(), target="diagnosis", client="hospital", l2=0.0, max_exchanges=1)
    assert not found.reached
    assert "NOT reached" in repr(found)
    assert found.summary().optimisation_error.max() > 0.0
    assert any("up to" in note for note in found.summary().notes)


@pytest.mark.parametrize("kind", TABLES)
def test_a_saved_fit_is_opened_again(kind: str, tmp_path: Path) -> None:
    make, target = TABLES[kind]
    found = fs.fit(make(), target=target, client="hospital", l2=L2)
    found.save(tmp_path)
    names = {"model.json", "coding.json", "results.json", "summary.txt", "report.html", "sums.npz"}
    assert {file.name for file in tmp_path.iterdir()} == names | {"coefficients.csv", "coefficients.parquet"}
    again = fs.models.load(tmp_path)
    assert repr(again) == repr(found)
    assert again.model == found.model == fs.Model.load(tmp_path / "model.json")
    assert again.coding == found.coding
    assert again.trained.history == found.trained.history
    assert (again.sites, again.n_rows, again.settings.tolerance) == (found.sites, found.n_rows, "se:0.05")
    for cov in ("nonrobust", "HC0", "HC1", "cluster"):
        pd.testing.assert_frame_equal(again.summary(cov).to_frame(), found.summary(cov).to_frame())
    frame = pd.read_csv(tmp_path / "coefficients.csv", index_col=0)
    np.testing.assert_allclose(frame["se"], found.summary().se)
    again.report(tmp_path / "again.html")
    assert str(found.summary()) + "\n" == (tmp_path / "summary.txt").read_text()
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["certified_error"] == found.certified_error
    again.save(tmp_path / "copy")
    assert fs.models.load(tmp_path / "copy").settings.to_json() == found.settings.to_json()


@pytest.mark.parametrize("privacy", [{}, {"epsilon": 3.0, "delta": 1e-3}, {"epsilon": 3.0, "protect": "sites"}])
def test_a_finished_study_is_opened_again(privacy: dict[str, Any], tmp_path: Path) -> None:
    """With what it protects or its standard errors, scores and page, though its plan had the usual settings."""
    rng = np.random.default_rng(0)
    ages = {site: rng.normal(50.0, 10.0, 200) for site in ("bonn", "lyon", "oslo")}
    ill = {site: rng.random(200) < 1 / (1 + np.exp(-(age - 50) / 10)) for site, age in ages.items()}
    tables = {site: pd.DataFrame({"age": ages[site], "ill": np.where(ill[site], "yes", "no")}) for site in ages}
    known = {"age": {"type": "number", "range": (20, 90)}, "ill": {"type": "category", "levels": ("no", "yes")}}
    options: dict[str, Any] = {**privacy, "columns": known} if privacy else {"evaluate": 0.3}
    found = fs.federation.Study(target="ill", kind="logistic", **options).run(tables)
    found.save(tmp_path)
    again = fs.models.load(tmp_path)
    assert repr(again) == repr(found)
    assert again.model == found.model
    assert again.explain() == found.explain()
    again.report(tmp_path / "again.html")
    page = (tmp_path / "again.html").read_text()
    assert ("differentially private for every" in page) == bool(privacy)
    assert ("certified" in page) == (not privacy)
    if not privacy:
        assert str(again.summary("HC1")) == str(found.summary("HC1"))


def test_what_is_not_a_saved_fit(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="is not an agreement"):
        fs.models.load(tmp_path)
    fs.fit(diabetes(), target="target", client="hospital").save(tmp_path)
    (tmp_path / "sums.npz").write_bytes(b"no")
    with pytest.raises(InvalidInput, match="does not hold a fit that fedscaffold wrote"):
        fs.models.load(tmp_path)
    (tmp_path / "results.json").write_text("{}")
    with pytest.raises(InvalidInput, match="not written by this version"):
        fs.models.load(tmp_path)


@pytest.mark.parametrize("name", [*DROPPED, "step_size", "local_steps", "rounds"])
def test_a_keyword_that_is_gone_names_its_successor(name: str) -> None:
    words: Any = {name: 1}
    with pytest.raises(InvalidInput, match=rf"fit has no {name}: .*fs\.run|{name} requires epsilon=.*trainer"):
        fs.fit(diabetes(), target="target", client="hospital", **words)


def test_best_coefficients_of_zero_are_found() -> None:
    """Relative to a length of zero no distance is small; in standard errors it is."""
    x = np.tile([-1.0, 1.0], 40)
    frame = pd.DataFrame({"x": x, "y": np.repeat([-1.0, 1.0], 40), "site": np.arange(80) % 4 // 2})
    found = fs.fit(frame, target="y", client="site", kind="ridge", l2=0)
    assert found.reached
    assert found.rounds < 10
    assert abs(found.summary().coef[0]) < 1e-12


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tolerance": 0.0}, "tolerance must be a positive"),
        ({"tolerance": 1.0}, "below 1"),
        ({"max_exchanges": 0}, "max_exchanges must be"),
        ({"trainer": "sgd"}, "trainer must be"),
        ({"client_intercepts": True, "trainer": "scaffold"}, "client_intercepts requires trainer='newton'"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        FitSettings(**settings)


def test_a_constant_target_is_refused() -> None:
    problem = from_frame(diabetes().assign(target=3.0), target="target", client="hospital", intercept=True)
    with pytest.raises(InvalidInput, match="same in all rows"):
        fit(problem)
