"""The estimators against scikit-learn's own checks, its tools, and its pooled models."""

import pickle
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
import polars as pl
import pytest
import sklearn
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV, GroupKFold, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import fedscaffold as fs
from fedscaffold.core.errors import DataWarning
from fedscaffold.core.types import Array
from fedscaffold.data import partition
from fedscaffold.inference.training import train
from fedscaffold.sklearn import (
    FederatedGammaRegression,
    FederatedLogisticRegression,
    FederatedPoissonRegression,
    FederatedRidge,
)
from fedscaffold.sklearn.base import federated_scale


@pytest.mark.filterwarnings("ignore::fedscaffold.core.errors.DataWarning")  # of one client, as the checks fit
@pytest.mark.filterwarnings(
    "ignore::sklearn.exceptions.ConvergenceWarning"
)  # of class weights of 1,000 and 0.0001
@parametrize_with_checks(  # type: ignore[untyped-decorator]
    [
        FederatedRidge(),
        FederatedLogisticRegression(),
        FederatedPoissonRegression(),
        FederatedGammaRegression(),
    ],
)
def test_scikit_learns_own_checks(estimator: Any, check: Any) -> None:
    check(estimator)


def pooled(X: Array, y: Any, model: Any) -> tuple[Array, Any]:
    """Coefficients of a pooled model on standardised rows, in the rows' own units, and the pipeline."""
    pipeline = make_pipeline(StandardScaler(), model).fit(X, y)
    return pipeline[-1].coef_ / pipeline[0].scale_, pipeline


def gap(found: Array, wanted: Array) -> float:
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


def cancer() -> tuple[Any, ...]:
    X, y = load_breast_cancer(return_X_y=True)
    parts = train_test_split(X, y, test_size=0.25, random_state=0, stratify=y)
    return (*parts, partition.feature_shift(parts[0], n_clients=10, strength=0.9, seed=0))


@pytest.mark.parametrize("model", [FederatedRidge(), FederatedLogisticRegression()])
def test_one_client_is_warned_of(model: Any) -> None:
    X, _, y, _, clients = cancer()
    with pytest.warns(DataWarning, match="all rows belong to one client") as found:
        model.fit(X, y)
    assert found[0].filename == __file__
    assert model.clients_.size == 1
    model.fit(X, y, clients=clients)  # without a warning, which would be an error


@pytest.mark.parametrize("trainer", ["auto", "newton", "scaffold"])
def test_breast_cancer_over_ten_skewed_clients(trainer: Any) -> None:
    X, X_test, y, y_test, clients = cancer()
    model = FederatedLogisticRegression(trainer=trainer).fit(X, y, clients=clients)
    wanted, whole = pooled(X, y, LogisticRegression(tol=1e-12, max_iter=10_000, solver="newton-cholesky"))
    assert model.score(X_test, y_test) == whole.score(X_test, y_test)
    assert gap(model.coef_, wanted) < 1e-6
    assert model.clients_.tolist() == list(range(10))
    assert model.trained_.reached
    assert model.trained_.trainer == ("scaffold" if trainer == "scaffold" else "newton")
    assert model.n_iter_ == model.trained_.rounds == model.trained_.history[-1].exchange


@pytest.mark.slow
def test_digits_over_twenty_clients_with_dirichlet_skew() -> None:
    X, y = load_digits(return_X_y=True)
    X, X_test, y, y_test = train_test_split(X, y, test_size=0.25, random_state=0, stratify=y)
    clients = partition.dirichlet(y, n_clients=20, alpha=0.1, seed=0)
    model = FederatedLogisticRegression(C=0.1).fit(X, y, clients=clients)
    wanted, whole = pooled(X, y, LogisticRegression(C=0.1, tol=1e-10, max_iter=10_000))
    assert abs(model.score(X_test, y_test) - whole.score(X_test, y_test)) <= 0.005
    assert gap(model.coef_, wanted) < 1e-3  # in units of pixels, of which some are nearly always 0


def test_several_classes_on_wine() -> None:
    X, y = load_wine(return_X_y=True)
    clients = partition.dirichlet(y, n_clients=5, alpha=0.3, seed=1)
    model = FederatedLogisticRegression().fit(X, y, clients=clients)
    wanted, whole = pooled(X, y, LogisticRegression(tol=1e-10, max_iter=10_000))
    assert gap(model.coef_, wanted) < 1e-5
    shares = model.predict_proba(X)
    np.testing.assert_allclose(shares, whole.predict_proba(X), rtol=0, atol=0.02)
    np.testing.assert_allclose(shares.sum(axis=1), 1.0, rtol=1e-12)
    assert model.decision_function(X).shape == (178, 3)
    assert (model.predict(X) == model.classes_[shares.argmax(axis=1)]).all()


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("standardize", [True, False])
def test_ridge_on_diabetes(fit_intercept: bool, standardize: bool) -> None:
    X, y = load_diabetes(return_X_y=True)
    X = X * 20  # from variance 1/n to about 1
    clients = partition.quantity(y, n_clients=6, alpha=1.0, seed=0)
    model = FederatedRidge(alpha=30.0, fit_intercept=fit_intercept, standardize=standardize, tolerance=2e-3).fit(
        X, y, clients=clients
    )
    scaler = StandardScaler().fit(X)
    rows = scaler.transform(X) if standardize else X
    whole = Ridge(alpha=30.0, fit_intercept=fit_intercept).fit(rows, y)
    wanted = whole.coef_ / scaler.scale_ if standardize else whole.coef_
    assert gap(model.coef_, wanted) < 1e-5
    np.testing.assert_allclose(model.predict(X), whole.predict(rows), rtol=0, atol=0.02 * np.std(y))


def test_large_clients() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(6000, 5))
    y = X @ rng.normal(size=5) + 0.3 * rng.normal(size=6000) + 2.0
    clients = rng.integers(0, 4, size=6000)
    model = FederatedRidge().fit(X, y, clients=clients)
    assert gap(model.coef_, pooled(X, y, Ridge())[0]) < 1e-9
    assert model.intercept_ == pytest.approx(2.0, abs=0.05)
    again = FederatedRidge().fit(X, y, clients=clients)
    np.testing.assert_array_equal(again.coef_, model.coef_)


def test_names_and_frames_of_pandas_and_polars() -> None:
    X, _, y, _, clients = cancer()
    columns = [f"feature {j}" for j in range(X.shape[1])]
    names = np.array([f"hospital {c}" for c in clients])
    plain = FederatedLogisticRegression().fit(X, y, clients=names)
    assert not hasattr(plain, "feature_names_in_")
    for frame in (pd.DataFrame(X, columns=columns), pl.DataFrame(X, schema=columns)):
        model = FederatedLogisticRegression().fit(frame, y, clients=names)
        assert model.feature_names_in_.tolist() == columns
        np.testing.assert_array_equal(model.coef_, plain.coef_)
        np.testing.assert_array_equal(model.predict(frame), plain.predict(X))
    assert plain.clients_[0] == "hospital 0"


def test_clone_and_pickle() -> None:
    X, _, y, _, clients = cancer()
    model = FederatedLogisticRegression(C=0.5, tolerance=1e-3).fit(X, y, clients=clients)
    copied = clone(model)
    assert copied.get_params() == model.get_params()
    assert not hasattr(copied, "coef_")
    loaded = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(loaded.predict_proba(X), model.predict_proba(X))


def test_grid_search_in_a_pipeline_with_clients_routed() -> None:
    X, _, y, _, clients = cancer()
    with sklearn.config_context(enable_metadata_routing=True):
        model = FederatedLogisticRegression(tolerance=0.05).set_fit_request(clients=True)
        pipeline = make_pipeline(FunctionTransformer(), model)
        search = GridSearchCV(
            pipeline,
            {"federatedlogisticregression__C": [1e-4, 1.0]},
            cv=GroupKFold(n_splits=3),
            error_score="raise",
        )
        search.fit(X, y, groups=clients, clients=clients)
    assert search.best_params_ == {"federatedlogisticregression__C": 1.0}
    best = search.best_estimator_[-1]
    assert best.clients_.size == 10
    assert search.best_score_ > 0.9


def test_merged_moments_are_those_of_all_rows() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(50, 3)) * [1.0, 1e6, 1e-6] + [1e3, 0.0, 5.0]
    X = np.column_stack([X, np.full(50, 0.1)])
    scale = federated_scale([X[:3], X[3:20], X[20:]])
    np.testing.assert_allclose(scale.mean, X.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(scale.spread[:3], X[:, :3].std(axis=0), rtol=1e-9)
    assert scale.spread[3] == 1.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"C": 0.0}, "C must be a positive number"),
        ({"trainer": "sgd"}, "trainer must be one of 'auto', 'newton', 'scaffold', got 'sgd'"),
        ({"min_rows": 0}, "min_rows must be a whole number of at least 1"),
        ({"tolerance": 0}, "tolerance must be a positive number"),
        ({"tolerance": 2.0}, "tolerance must be below 1"),
        ({"tolerance": "auto"}, "tolerance must be a number below 1, or such as 'se:0.05'"),
    ],
)
def test_refusals(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FederatedLogisticRegression(**options).fit(np.eye(4), [0, 1, 0, 1])


def test_refused_clients() -> None:
    X, y = np.eye(4), [0, 1, 0, 1]
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        FederatedLogisticRegression().fit(X, y, clients=[1, 2])
    with pytest.raises(ValueError, match="one id per row"):
        FederatedLogisticRegression().fit(X, y, clients=[[1], [2], [1], [1]])
    with pytest.raises(ValueError, match="None or NaN in 1 of 4 rows"):
        FederatedLogisticRegression().fit(X, y, clients=[1.0, np.nan, 1.0, 2.0])
    with pytest.raises(ValueError, match="one class only"):
        FederatedLogisticRegression().fit(X, [1, 1, 1, 1])


@pytest.mark.parametrize("trainer", ["newton", "scaffold"])
def test_a_fit_does_not_look_for_the_optimum(trainer: Any) -> None:
    X, y = load_diabetes(return_X_y=True)
    with patch.object(fs.problems.Ridge, "optimum", side_effect=AssertionError):
        model = FederatedRidge(trainer=trainer).fit(X, y, clients=np.arange(len(y)) % 4)
    assert gap(model.coef_, pooled(X, y, Ridge())[0]) < 1e-9


def test_refusals_name_the_estimators_own_parameters() -> None:
    X = np.ones((20, 2)) * np.arange(20)[:, None]
    clients = np.arange(20) % 2
    with pytest.raises(fs.InvalidInput, match="pass a positive penalty alpha") as caught:
        FederatedRidge(alpha=0.0).fit(X, np.arange(20.0), clients=clients)
    assert "l2" not in str(caught.value)


def test_clients_that_are_none_mixed_or_small() -> None:
    X, y = np.random.default_rng(0).normal(size=(6, 2)), [0, 1, 0, 1, 0, 1]
    with pytest.raises(fs.InvalidInput, match="None or NaN in 6 of 6 rows; name a client for each row"):
        FederatedLogisticRegression().fit(X, y, clients=[None] * 6)
    with pytest.raises(fs.InvalidInput, match="all text or all numbers"):
        FederatedLogisticRegression().fit(X, y, clients=np.array(["a", "a", 1, 1, 2, 2], dtype=object))
    with pytest.raises(fs.InvalidInput, match=r"client c has only 1 row; .* accept them with min_rows=1"):
        FederatedLogisticRegression().fit(X, y, clients=list("aabbbc"))
    assert FederatedLogisticRegression(min_rows=1).fit(X, y, clients=list("aabbbc")).clients_.size == 3


def test_types_are_those_of_scikit_learn() -> None:
    X, y = load_diabetes(return_X_y=True)
    clients = np.arange(len(y)) % 4
    for dtype in (np.float32, np.float64):
        ours, theirs = FederatedRidge().fit(X.astype(dtype), y, clients=clients), Ridge()
        theirs.fit(X.astype(dtype), y)
        assert ours.coef_.dtype == theirs.coef_.dtype == ours.intercept_.dtype == dtype
        assert isinstance(ours.intercept_, np.floating)
        assert ours.predict(X.astype(dtype)).dtype == dtype
        model = FederatedLogisticRegression().fit(X.astype(dtype), y > 140, clients=clients)
        assert model.coef_.dtype == model.intercept_.dtype == model.predict_proba(X.astype(dtype)).dtype == dtype


def test_logarithms_of_probabilities() -> None:
    X, y = load_wine(return_X_y=True)
    for labels in (y, y == 1):
        model = FederatedLogisticRegression(tolerance=0.05).fit(X, labels, clients=np.arange(178) % 3)
        np.testing.assert_allclose(np.exp(model.predict_log_proba(X)), model.predict_proba(X), atol=1e-12)
        assert np.isfinite(model.predict_log_proba(1e4 * X)).all()


def test_features_of_very_different_sizes() -> None:
    X, y = load_breast_cancer(return_X_y=True)
    clients = np.arange(len(y)) % 4
    ridge = FederatedRidge(standardize=False).fit(X, X[:, 0] * 2 + y, clients=clients)
    np.testing.assert_allclose(ridge.coef_, Ridge().fit(X, X[:, 0] * 2 + y).coef_, rtol=1e-6)
    model = FederatedLogisticRegression(standardize=False).fit(X, y, clients=clients)
    whole = LogisticRegression(solver="newton-cholesky", tol=1e-12).fit(X - X.mean(axis=0), y)
    np.testing.assert_allclose(model.coef_, whole.coef_, rtol=1e-4)


def test_a_distance_beyond_the_tolerance_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedscaffold.sklearn.base.train", partial(train, max_exchanges=2))
    X, y = load_breast_cancer(return_X_y=True)
    clients = np.arange(len(y)) % 4
    words = r"standard errors away .* after 3 exchanges; pass standardize=True .*, or pass a larger penalty 1/C"
    with pytest.warns(ConvergenceWarning, match=words) as found:
        model = FederatedLogisticRegression(standardize=False).fit(X, y, clients=clients)
    assert found[0].filename == __file__
    assert not model.trained_.reached
    assert model.summary_.optimisation_error.max() > 0.05 * model.summary_.se.min()


@pytest.mark.filterwarnings("error")
def test_rows_that_are_fitted_perfectly_are_not_warned_of() -> None:
    """Standard errors are rounding then, and so is the distance to the optimum."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 3))
    clients = np.arange(60) % 3
    model = FederatedRidge(alpha=0.0).fit(X, X @ [1.0, -2.0, 0.5] + 3.0, clients=clients)
    np.testing.assert_allclose(model.coef_, [1.0, -2.0, 0.5], rtol=1e-12)
    same = FederatedRidge().fit(X, np.full(60, 3.0), clients=clients)
    np.testing.assert_allclose(same.coef_, 0.0, atol=1e-12)
    assert same.n_iter_ < 10


def test_verbose_prints_the_distance(capsys: pytest.CaptureFixture[str]) -> None:
    X, y = load_wine(return_X_y=True)
    model = FederatedRidge(verbose=True).fit(X, y, clients=np.arange(178) % 3)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == model.n_iter_[0]
    assert lines[0].startswith("exchange 1, Newton: 1.0e+00 of the norm")


@pytest.mark.parametrize("alpha", [0.0, 1.0, 1e16])
def test_centring_changes_nothing_but_the_conditioning(alpha: float) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 4)) + 1000.0
    y = X @ [1.0, 2.0, 0.0, -1.0] + rng.normal(size=80)
    model = FederatedRidge(alpha=alpha, standardize=False).fit(X, y, clients=np.arange(80) % 4)
    whole = Ridge(alpha=alpha).fit(X, y)
    np.testing.assert_allclose(model.coef_, whole.coef_, rtol=1e-8, atol=1e-12)
    assert model.intercept_ == pytest.approx(whole.intercept_, rel=1e-8)
