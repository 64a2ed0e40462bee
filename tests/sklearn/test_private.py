"""Estimators under a privacy budget."""

from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, Ridge

import fedscaffold as fs
from fedscaffold.sklearn import FederatedLogisticRegression, FederatedRidge

rng = np.random.default_rng(0)
X = rng.normal([50.0, 3.0], [10.0, 1.0], size=(600, 2))
HOSPITALS = np.repeat(["a", "b", "c"], 200)
Y = X @ [0.2, -1.0] + rng.normal(size=600)
LABELS = np.where(rng.random(600) < 1 / (1 + np.exp(-(X[:, 0] - 50) / 5)), "ill", "well")
RANGES = ([10.0, -1.0], [90.0, 7.0])
STEPS: dict[str, Any] = {"clip": 1e6, "step_size": 0.3, "local_steps": 5, "rounds": 300}


def ridge(**more: Any) -> FederatedRidge:
    return FederatedRidge(**{"epsilon": 3.0, "bounds": RANGES, "target_bounds": (-10, 20), **more})


def logistic(**more: Any) -> FederatedLogisticRegression:
    given = {"epsilon": 3.0, "bounds": RANGES, "target_bounds": ("well", "ill"), **more}
    return FederatedLogisticRegression(**given)


@pytest.mark.parametrize("intercept", [True, False])
def test_without_noise_they_are_the_pooled_models(intercept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedscaffold.engines.reference.secret_normals", np.zeros)
    scaled = (X - [50.0, 3.0]) / [80 / 6, 8 / 6] if intercept else X / [30.0, 7 / 3]
    shift, scale = (5.0, 5.0) if intercept else (0.0, 20 / 3)
    found = ridge(fit_intercept=intercept, **STEPS).fit(X, Y, clients=HOSPITALS)
    pooled = Ridge(alpha=1.0, fit_intercept=intercept).fit(scaled, (Y - shift) / scale)
    np.testing.assert_allclose(found.predict(X), scale * pooled.predict(scaled) + shift, rtol=1e-5)
    told = logistic(fit_intercept=intercept, **STEPS).fit(X, LABELS, clients=HOSPITALS)
    best = LogisticRegression(fit_intercept=intercept, tol=1e-10).fit(scaled, LABELS)
    assert told.classes_.tolist() == ["ill", "well"]
    np.testing.assert_allclose(told.predict_proba(X), best.predict_proba(scaled), atol=1e-4)


def test_a_fit_leaves_what_the_budget_covers() -> None:
    found = ridge(epsilon=8.0).fit(X, Y, clients=HOSPITALS)
    assert found.score(X, Y) > 0.5
    assert found.plan_.epsilon == 8.0
    assert found.n_iter_.tolist() == [found.plan_.rounds]
    assert found.trace_ is None
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
        ({"bounds": None}, "epsilon needs bounds"),
        ({"target_bounds": None}, "epsilon needs target_bounds"),
        ({"bounds": (0.0, [1.0, 2.0, 3.0])}, "two arrays of 2 numbers"),
        ({"bounds": (1.0, 0.0)}, "low < high"),
        ({"close": False, "random_state": 1}, "with epsilon leave out close, random_state"),
        ({"epsilon": None}, "bounds is part of a privacy budget"),
        ({"positive": True}, "leave out positive"),
    ],
)
def test_what_is_refused(wrong: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedscaffold.sklearn.private.run_privately", None)  # nothing is computed from the rows
    with pytest.raises(fs.InvalidInput, match=words):
        ridge(**wrong).fit(X, Y, clients=HOSPITALS)


def test_classes_and_weights_are_refused() -> None:
    with pytest.raises(fs.InvalidInput, match="other classes than target_bounds"):
        logistic(target_bounds=("well", "dead")).fit(X, LABELS, clients=HOSPITALS)
    with pytest.raises(fs.InvalidInput, match="must be the two classes"):
        logistic(target_bounds=("well",)).fit(X, LABELS, clients=HOSPITALS)
    with pytest.raises(fs.InvalidInput, match="leave out sample_weight"):
        logistic().fit(X, LABELS, clients=HOSPITALS, sample_weight=np.ones(600))
