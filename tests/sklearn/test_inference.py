"""Summaries, sample and class weights and Poisson regression of the estimators."""

import warnings
from functools import cache
from typing import Any

import numpy as np
import pytest
import statsmodels.api as sm
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression, PoissonRegressor, Ridge

from fedscaffold.core.errors import InvalidInput
from fedscaffold.sklearn import (
    FederatedGammaRegression,
    FederatedLogisticRegression,
    FederatedPoissonRegression,
    FederatedRidge,
)
from tests.inference.data_sets import DATA_SETS, Regression
from tests.inference.test_against_statsmodels import assert_equal, pooled

COVARIANCES = ("nonrobust", "HC0", "HC1", "cluster")
RNG = np.random.default_rng(0)
X = RNG.normal(size=(240, 3)) * [1.0, 5.0, 0.2] + [0.0, 10.0, -3.0]
SITES = np.repeat(["a", "b", "c", "d"], [120, 60, 40, 20])
Z = (X - [0.0, 10.0, -3.0]) / [1.0, 5.0, 0.2] @ [0.5, -0.7, 0.2]
LABELS = np.where(Z + RNG.logistic(size=240) > 0, "yes", "no")
CLASSES = np.argmax(np.outer(Z, [0.0, 0.5, 1.0]) + RNG.gumbel(size=(240, 3)), axis=1)
AMOUNTS = 50 + 3 * (Z + RNG.normal(size=240))
COUNTS = RNG.poisson(np.exp(1.0 + 0.5 * Z))
WEIGHTS = RNG.integers(0, 4, size=240).astype(float)


ESTIMATORS: dict[str, Any] = {
    "ridge": FederatedRidge(alpha=0, min_rows=1),
    "logistic": FederatedLogisticRegression(C=np.inf, min_rows=1),
    "multinomial": FederatedLogisticRegression(C=np.inf, min_rows=1),
    "poisson": FederatedPoissonRegression(alpha=0, min_rows=1),
    "gamma": FederatedGammaRegression(alpha=0, min_rows=1),
}


@cache
def data(name: str) -> Regression:
    """Columns that are not standardised."""
    given = DATA_SETS[name]()
    return given._replace(X=np.column_stack([given.X[:, :-1] * 3.0 + 1.0, given.X[:, -1]]))


@cache
def estimator(name: str) -> Any:
    given = data(name)
    more = {} if given.offset is None else {"exposure": np.exp(given.offset)}
    return clone(ESTIMATORS[given.kind]).fit(given.X[:, :-1], given.y, clients=given.clients, **more)


@pytest.mark.parametrize("cov", COVARIANCES)
@pytest.mark.parametrize("name", DATA_SETS)
def test_summaries_equal_statsmodels(name: str, cov: Any) -> None:
    given = data(name)
    model, settings = pooled(given)
    if not isinstance(model, sm.OLS | sm.GLM):
        settings = {**settings, "disp": 0}
    kwds = {"groups": given.clients} if cov == "cluster" else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # statsmodels', of tolerances that rounding does not reach
        wanted = model.fit(**settings, cov_type=cov, cov_kwds=kwds)
    found = estimator(name).summary(cov)
    assert estimator(name).trained_.reached
    assert_equal(found, wanted)
    assert found.statistics.log_likelihood == pytest.approx(wanted.llf, rel=1e-8)


def test_summary_names_and_units() -> None:
    import pandas as pd

    frame = pd.DataFrame(X, columns=["dose", "age", "score"])
    model = FederatedRidge(alpha=0.5).fit(frame, AMOUNTS, clients=SITES)
    table = model.summary_.to_frame()
    assert list(table.index) == ["dose", "age", "score", "intercept"]
    np.testing.assert_allclose(table["coef"].iloc[:3], model.coef_, rtol=1e-12)
    assert table.loc["intercept", "coef"] == pytest.approx(model.intercept_)
    several = FederatedLogisticRegression().fit(X, CLASSES, clients=SITES)
    assert several.summary_.names[:2] == ("1: x0", "1: x1")
    np.testing.assert_allclose(several.summary_.coef[:3], several.coef_[1] - several.coef_[0], rtol=1e-9)


PAIRS: dict[str, Any] = {
    "ridge": (FederatedRidge(alpha=2.0), AMOUNTS),
    "logistic": (FederatedLogisticRegression(C=0.5), LABELS),
    "multinomial": (FederatedLogisticRegression(C=0.5), CLASSES),
    "poisson": (FederatedPoissonRegression(alpha=0.1), COUNTS),
}


@pytest.mark.parametrize("name", PAIRS)
def test_weights_are_repeated_rows(name: str) -> None:
    """Rows of weight 0 might as well be missing, those of weight 3 be there three times."""
    model, y = PAIRS[name]
    weighted = model.fit(X, y, clients=SITES, sample_weight=WEIGHTS)
    coef, intercept = weighted.coef_.copy(), np.array(weighted.intercept_)
    again = np.repeat(np.arange(240), WEIGHTS.astype(int))
    repeated = model.fit(X[again], y[again], clients=SITES[again])
    np.testing.assert_allclose(coef, repeated.coef_, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(intercept, repeated.intercept_, rtol=1e-6)


@pytest.mark.parametrize("name", PAIRS)
def test_equals_scikit_learn_on_pooled_rows(name: str) -> None:
    _, y = PAIRS[name]
    own: Any = {
        "ridge": FederatedRidge(alpha=2.0, standardize=False),
        "logistic": FederatedLogisticRegression(C=0.5, standardize=False),
        "multinomial": FederatedLogisticRegression(C=0.5, standardize=False),
        "poisson": FederatedPoissonRegression(alpha=0.1, standardize=False),
    }[name]
    other: Any = {
        "ridge": Ridge(alpha=2.0),
        "logistic": LogisticRegression(C=0.5, solver="newton-cholesky", tol=1e-12, max_iter=1000),
        "multinomial": LogisticRegression(C=0.5, solver="newton-cholesky", tol=1e-12, max_iter=1000),
        "poisson": PoissonRegressor(alpha=0.1, solver="newton-cholesky", tol=1e-12),
    }[name]
    scaled = (X - X.mean(axis=0)) / X.std(axis=0)
    own.fit(scaled, y, clients=SITES, sample_weight=WEIGHTS)
    other.fit(scaled, y, sample_weight=WEIGHTS)
    np.testing.assert_allclose(own.coef_, other.coef_, rtol=1e-5, atol=1e-7)
    assert own.score(scaled, y) == pytest.approx(other.score(scaled, y), rel=1e-6)


@pytest.mark.parametrize("class_weight", ["balanced", {"yes": 3.0, "no": 0.5}])
def test_class_weights(class_weight: Any) -> None:
    scaled = (X - X.mean(axis=0)) / X.std(axis=0)
    own = FederatedLogisticRegression(class_weight=class_weight, standardize=False)
    own.fit(scaled, LABELS, clients=SITES)
    other = LogisticRegression(class_weight=class_weight, solver="newton-cholesky", tol=1e-12).fit(scaled, LABELS)
    np.testing.assert_allclose(own.coef_, other.coef_, rtol=1e-5)


def test_exposure_is_an_offset() -> None:
    exposure = RNG.uniform(1, 20, size=240)
    counts = RNG.poisson(exposure * np.exp(-1 + 0.3 * Z))
    model = FederatedPoissonRegression(alpha=0).fit(X, counts, clients=SITES, exposure=exposure)
    wanted = sm.Poisson(counts, np.column_stack([X, np.ones(240)]), exposure=exposure).fit(
        disp=0, tol=1e-13, method="newton"
    )
    np.testing.assert_allclose(model.summary_.se, wanted.bse, rtol=1e-5)
    np.testing.assert_allclose([*model.coef_, model.intercept_], wanted.params, rtol=1e-6, atol=1e-8)


def test_refusals() -> None:
    with pytest.raises(InvalidInput, match="y must hold counts, but has -1"):
        FederatedPoissonRegression().fit(X, np.full(240, -1), clients=SITES)
    with pytest.raises(InvalidInput, match="exposure must hold one positive number"):
        FederatedPoissonRegression().fit(X, COUNTS, clients=SITES, exposure=np.zeros(240))
    with pytest.raises(InvalidInput, match="all targets are 0"):
        FederatedPoissonRegression().fit(X, 0 * COUNTS, clients=SITES)
    twice = np.column_stack([X, X[:, 0] * 2])
    with pytest.raises(InvalidInput, match=r"'x[03]' and 'x[03]' depend on each other.*alpha"):
        FederatedRidge(alpha=0).fit(twice, AMOUNTS, clients=SITES)
