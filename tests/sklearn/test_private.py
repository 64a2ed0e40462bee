"""Estimators under a privacy budget."""

from functools import partial
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import GammaRegressor, LogisticRegression, PoissonRegressor, Ridge

import fedscaffold as fs
from fedscaffold.privacy.plan import PrivacySettings
from fedscaffold.sklearn import (
    FederatedGammaRegression,
    FederatedLogisticRegression,
    FederatedPoissonRegression,
    FederatedRidge,
)

rng = np.random.default_rng(0)
X = rng.normal([50.0, 3.0], [10.0, 1.0], size=(600, 2))
HOSPITALS = np.repeat(["a", "b", "c"], 200)
Y = X @ [0.2, -1.0] + rng.normal(size=600)
LABELS = np.where(rng.random(600) < 1 / (1 + np.exp(-(X[:, 0] - 50) / 5)), "ill", "well")
RANGES = ([10.0, -1.0], [90.0, 7.0])


def without_noise(monkeypatch: pytest.MonkeyPatch, *, step_size: float, rounds: int) -> None:
    """Take steps of a given size, without noise."""
    steps = partial(PrivacySettings, step_size=step_size, rounds=rounds)
    monkeypatch.setattr("fedscaffold.sklearn.base.PrivacySettings", steps)
    monkeypatch.setattr(
        "fedscaffold.models.private.discrete_gaussian", lambda sigma, count: np.zeros(count, np.int64)
    )


def ridge(**more: Any) -> FederatedRidge:
    return FederatedRidge(**{"epsilon": 3.0, "bounds": RANGES, "target_bounds": (-10, 20), **more})


def logistic(**more: Any) -> FederatedLogisticRegression:
    given = {"epsilon": 3.0, "bounds": RANGES, "target_bounds": ("well", "ill"), **more}
    return FederatedLogisticRegression(**given)


@pytest.mark.parametrize("intercept", [True, False])
def test_without_noise_they_are_the_pooled_models(intercept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    without_noise(monkeypatch, step_size=0.3, rounds=300)
    scaled = (X - [50.0, 3.0]) / [80 / 6, 8 / 6] if intercept else X / [30.0, 7 / 3]
    shift, scale = (5.0, 5.0) if intercept else (0.0, 20 / 3)
    found = ridge(fit_intercept=intercept, clip=300.0).fit(X, Y, clients=HOSPITALS)
    pooled = Ridge(alpha=1.0, fit_intercept=intercept).fit(scaled, (Y - shift) / scale)
    np.testing.assert_allclose(found.predict(X), scale * pooled.predict(scaled) + shift, rtol=1e-5)
    told = logistic(fit_intercept=intercept, clip=300.0).fit(X, LABELS, clients=HOSPITALS)
    best = LogisticRegression(fit_intercept=intercept, tol=1e-10).fit(scaled, LABELS)
    assert told.classes_.tolist() == ["ill", "well"]
    np.testing.assert_allclose(told.predict_proba(X), best.predict_proba(scaled), atol=1e-4)


def test_a_fit_leaves_what_the_budget_covers() -> None:
    found = ridge(epsilon=8.0).fit(X, Y, clients=HOSPITALS)
    assert found.score(X, Y) > 0.5
    assert found.privacy_ is not None
    assert found.privacy_.epsilon == 8.0
    assert found.n_iter_.tolist() == [found.privacy_.rounds]
    assert found.trained_ is None
    with pytest.raises(fs.InvalidInput, match="privacy budget does not cover"):
        found.summary()
    again = ridge(epsilon=8.0).fit(X, Y, clients=HOSPITALS)
    assert not np.allclose(found.coef_, again.coef_, rtol=1e-9)
    assert logistic(epsilon=8.0).fit(X, LABELS, clients=HOSPITALS).score(X, LABELS) > 0.7


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"epsilon": 0.0}, "epsilon must be a positive number"),
        ({"delta": 0.005}, "delta must be below 0.005, one over the 200 rows"),
        ({"clip": 0.0}, "clip must be a positive number"),
        ({"bounds": None}, "epsilon requires bounds"),
        ({"target_bounds": None}, "epsilon requires target_bounds"),
        ({"bounds": (0.0, [1.0, 2.0, 3.0])}, "two arrays of 2 numbers"),
        ({"bounds": (1.0, 0.0)}, "low < high"),
        (
            {"trainer": "newton", "warm_start": True},
            "cannot be combined with trainer=..., warm_start=...",
        ),
        ({"epsilon": None}, "bounds requires epsilon"),
        ({"positive": True}, "cannot be combined with positive"),
    ],
)
def test_what_is_refused(wrong: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedscaffold.sklearn.base.run_privately", None)  # nothing is computed from the rows
    with pytest.raises(fs.InvalidInput, match=words):
        ridge(**wrong).fit(X, Y, clients=HOSPITALS)


def test_classes_and_weights_are_refused() -> None:
    with pytest.raises(fs.InvalidInput, match="classes that target_bounds lacks"):
        logistic(target_bounds=("well", "dead")).fit(X, LABELS, clients=HOSPITALS)
    with pytest.raises(fs.InvalidInput, match="must be the classes of y, two or more"):
        logistic(target_bounds=("well",)).fit(X, LABELS, clients=HOSPITALS)
    with pytest.raises(fs.InvalidInput, match="cannot be combined with sample_weight"):
        logistic().fit(X, LABELS, clients=HOSPITALS, sample_weight=np.ones(600))


Z = (X - [50.0, 3.0]) / [10.0, 1.0]
STAGES = np.array(["early", "late", "middle"])[
    (Z + rng.gumbel(size=Z.shape)).argmax(axis=1) + (rng.random(600) < 0.2)
]
COUNTS = rng.poisson(np.exp(1.0 + 0.4 * Z[:, 0]))
COSTS = rng.gamma(3.0, np.exp(5.0 + 0.4 * Z[:, 0]) / 3.0)
FAMILIES: dict[str, tuple[Any, Any, Any, Any]] = {
    "classes": (FederatedLogisticRegression, STAGES, ("late", "early", "middle"), LogisticRegression(tol=1e-10)),
    "poisson": (FederatedPoissonRegression, COUNTS, (0, 30), PoissonRegressor(alpha=1.0, tol=1e-10)),
    "gamma": (FederatedGammaRegression, COSTS, (1, 5000), GammaRegressor(alpha=1.0, tol=1e-10)),
}


def estimator(family: str, **more: Any) -> Any:
    kind, _, target_bounds, _ = FAMILIES[family]
    return kind(**{"epsilon": 3.0, "bounds": RANGES, "target_bounds": target_bounds, **more})


@pytest.mark.parametrize("family", FAMILIES)
def test_each_kind_is_the_pooled_model_without_noise(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    step_size = {"classes": 0.8, "poisson": 0.1, "gamma": 0.3}[family]
    without_noise(monkeypatch, step_size=step_size, rounds=400)
    scaled, y = (X - [50.0, 3.0]) / [80 / 6, 8 / 6], FAMILIES[family][1]
    found = estimator(family, clip=300.0).fit(X, y, clients=HOSPITALS)
    pooled = FAMILIES[family][3].fit(scaled, y)
    if family == "classes":
        assert found.classes_.tolist() == ["early", "late", "middle"]
        assert found.coef_.shape == (3, 2)
        np.testing.assert_allclose(found.predict_proba(X), pooled.predict_proba(scaled), atol=1e-4)
    else:
        np.testing.assert_allclose(found.predict(X), pooled.predict(scaled), rtol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_each_kind_spends_its_budget_and_comes_near(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At ε = 100 what is left is what clipping does; the accountant's ε is the one asked for."""
    normals = np.random.default_rng(0).standard_normal
    monkeypatch.setattr("fedscaffold.engines.reference.secret_normals", normals)  # the same in every test
    more: dict[str, Any] = {} if family == "classes" else {"alpha": 0.0}
    found = estimator(family, epsilon=100.0, **more).fit(X, FAMILIES[family][1], clients=HOSPITALS)
    plan = found.privacy_
    spent = fs.privacy.epsilon(noise_multiplier=plan.noise_multiplier, delta=plan.delta, steps=plan.releases)
    assert 99.9 < spent <= 100.0
    scaled = (X - [50.0, 3.0]) / [80 / 6, 8 / 6]
    pooled = FAMILIES[family][3].set_params(**more).fit(scaled, FAMILIES[family][1])
    own = found.coef_ * [80 / 6, 8 / 6]
    assert np.linalg.norm(own - pooled.coef_) < 0.3 * np.linalg.norm(pooled.coef_)
    assert found.trained_ is None
    assert np.ravel(found.n_iter_).tolist() == [plan.rounds]
    with pytest.raises(fs.InvalidInput, match="privacy budget does not cover"):
        found.summary()


@pytest.mark.parametrize(
    ("family", "wrong", "words"),
    [
        ("poisson", {"epsilon": -1.0}, "epsilon must be a positive number"),
        ("poisson", {"delta": 0.005}, "delta must be below 0.005, one over the 200 rows"),
        ("poisson", {"target_bounds": (-1, 30)}, r"target_bounds: the range of counts must not be negative"),
        ("poisson", {"target_bounds": None}, "epsilon requires target_bounds"),
        ("poisson", {"bounds": None}, "epsilon requires bounds"),
        ("gamma", {"target_bounds": (0, 30)}, r"target_bounds: the range of positive amounts must be positive"),
        ("gamma", {"fit_intercept": False}, "epsilon requires fit_intercept=True"),
        ("gamma", {"epsilon": None}, "bounds requires epsilon"),
        ("classes", {"target_bounds": ("early",)}, "must be the classes of y, two or more"),
        ("classes", {"target_bounds": ("early", "late", "late")}, "must be the classes of y, two or more"),
        ("classes", {"target_bounds": ("early", "late")}, "classes that target_bounds lacks"),
    ],
)
def test_what_each_kind_refuses(
    family: str, wrong: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedscaffold.sklearn.base.run_privately", None)  # nothing is computed from the rows
    with pytest.raises(fs.InvalidInput, match=words):
        estimator(family, **wrong).fit(X, FAMILIES[family][1], clients=HOSPITALS)


def test_targets_beyond_their_range_count_as_its_ends_and_exposures_are_refused() -> None:
    outside = np.where(np.arange(600) == 0, -5, COUNTS)
    estimator("poisson").fit(X, outside, clients=HOSPITALS)
    with pytest.raises(fs.InvalidInput, match=r"epsilon cannot be combined with exposure=\.\.\."):
        estimator("poisson").fit(X, COUNTS, clients=HOSPITALS, exposure=np.ones(600))
