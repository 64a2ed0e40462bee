"""What users of scikit-learn expect: sparse rows, several targets, positive coefficients, warm starts, classes."""

import inspect
import sys
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from scipy.optimize import lsq_linear
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_iris
from sklearn.linear_model import GammaRegressor, LogisticRegression, Ridge
from sklearn.preprocessing import scale

from fedscaffold.core import machine
from fedscaffold.core.errors import InvalidInput
from fedscaffold.sklearn import (
    FederatedGammaRegression,
    FederatedLogisticRegression,
    FederatedPoissonRegression,
    FederatedRidge,
)

RNG = np.random.default_rng(0)
X = RNG.normal(size=(120, 4)) * (RNG.random((120, 4)) < 0.4) + [0.0, 0.0, 0.0, 1.0]
CLIENTS = np.repeat(["a", "b", "c"], [60, 40, 20])
Z = X @ [0.8, -0.5, 0.3, -0.4]
AMOUNTS = Z + 0.5 * RNG.normal(size=120)
LABELS = np.where(Z + RNG.logistic(size=120) > -0.4, "yes", "no")
COUNTS = RNG.poisson(np.exp(1.0 + Z))
WEIGHTS = RNG.uniform(0.5, 2.0, size=120)
COSTS = RNG.gamma(2.0, np.exp(1.0 + Z) / 2.0)

MODELS: list[Any] = [
    (FederatedRidge(), AMOUNTS),
    (FederatedLogisticRegression(), LABELS),
    (FederatedPoissonRegression(alpha=0.1), COUNTS),
    (FederatedGammaRegression(alpha=0.1), COSTS),
]


@pytest.mark.parametrize("make", [sparse.csr_matrix, sparse.csr_array, sparse.csc_array, sparse.coo_matrix])
@pytest.mark.parametrize(("model", "y"), MODELS)
def test_sparse_rows_give_the_same_model(model: Any, y: Any, make: Any) -> None:
    dense = clone(model).fit(X, y, clients=CLIENTS)
    thin = clone(model).fit(make(X), y, clients=CLIENTS)
    np.testing.assert_array_equal(thin.coef_, dense.coef_)
    np.testing.assert_allclose(thin.score(make(X), y), dense.score(X, y), rtol=1e-12)
    assert isinstance(thin.predict(make(X)), np.ndarray)


def test_sparse_rows_that_would_not_fit_are_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "memory_limit", lambda: 2**30)
    wide = sparse.csr_array((20, 10_000_000))
    with pytest.raises(InvalidInput, match=r"dense table of the sparse X.* would take 3\.0 GiB"):
        FederatedRidge().fit(wide, np.arange(20.0), clients=np.arange(20) % 2)


@pytest.mark.parametrize("alpha", [0.5, [0.1, 3.0]])
def test_several_targets_are_several_fits(alpha: Any) -> None:
    Y = np.column_stack([AMOUNTS, 3.0 - 2.0 * AMOUNTS + X[:, 0]])
    model = FederatedRidge(alpha=alpha).fit(X, Y, clients=CLIENTS, sample_weight=WEIGHTS)
    assert (model.coef_.shape, model.intercept_.shape, model.predict(X).shape) == ((2, 4), (2,), (120, 2))
    assert model.n_iter_.shape == (2,)
    assert [each.rounds for each in model.trained_] == model.n_iter_.tolist()
    for k, each in enumerate(np.broadcast_to(alpha, 2).tolist()):
        one = FederatedRidge(alpha=each).fit(X, Y[:, k], clients=CLIENTS, sample_weight=WEIGHTS)
        np.testing.assert_allclose(model.coef_[k], one.coef_, rtol=1e-12)
        np.testing.assert_allclose(model.intercept_[k], one.intercept_, rtol=1e-12)
        np.testing.assert_allclose(model.summary(target=k).se, one.summary_.se, rtol=1e-12)
    with pytest.raises(InvalidInput, match="y had 2 targets; pass target=0 for the first"):
        _ = model.summary_
    with pytest.raises(InvalidInput, match="target must be a whole number of at most 1"):
        model.summary(target=2)


def test_shapes_of_one_column() -> None:
    model = FederatedRidge().fit(X, AMOUNTS[:, None], clients=CLIENTS)
    whole = Ridge().fit(X, AMOUNTS[:, None])
    assert (model.coef_.shape, model.intercept_.shape) == (whole.coef_.shape, whole.intercept_.shape)
    with pytest.raises(InvalidInput, match="do not correspond: 3 != 1"):
        FederatedRidge(alpha=[1.0, 2.0, 3.0]).fit(X, AMOUNTS, clients=CLIENTS)


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("alpha", [0.0, 20.0])
def test_positive_coefficients_are_the_constrained_minimum(alpha: float, fit_intercept: bool) -> None:
    """Against bounded least squares on rows with the penalty appended as rows."""
    rows, y = load_diabetes(return_X_y=True)
    rows = scale(rows)
    model = FederatedRidge(alpha=alpha, positive=True, fit_intercept=fit_intercept, standardize=False).fit(
        rows, y, clients=np.arange(len(y)) % 5
    )
    d = rows.shape[1]
    design = np.column_stack([rows, np.full(len(y), float(fit_intercept))])
    penalty = np.sqrt(alpha) * np.eye(d, d + 1)
    wanted = lsq_linear(
        np.vstack([design, penalty]), np.concatenate([y, np.zeros(d)]),
        bounds=(np.array([0.0] * d + [-np.inf]), np.inf), tol=1e-14, method="bvls",
    ).x  # fmt: skip
    np.testing.assert_allclose(model.coef_, wanted[:d], rtol=1e-8, atol=1e-9)
    assert (model.coef_ == 0.0).any()
    if fit_intercept:
        assert model.intercept_ == pytest.approx(wanted[d], rel=1e-10)


def test_positive_coefficients_change_nothing_where_none_is_negative() -> None:
    y = X @ [1.0, 2.0, 0.5, 1.0] + 0.01 * RNG.normal(size=120)
    plain = FederatedRidge().fit(X, y, clients=CLIENTS)
    bound = FederatedRidge(positive=True).fit(X, y, clients=CLIENTS)
    np.testing.assert_allclose(bound.coef_, plain.coef_, rtol=1e-9)
    with pytest.raises(InvalidInput, match="no standard errors; fit with positive=False"):
        bound.summary("HC0")


@pytest.mark.parametrize(("model", "y"), MODELS)
def test_warm_starts_need_fewer_exchanges(model: Any, y: Any) -> None:
    """Training from its result stays there, on clients that differ."""
    order = np.argsort(X[:, 0])  # each client has another range of a feature
    warm = clone(model).set_params(warm_start=True).fit(X[order], y[order], clients=CLIENTS)
    coef, exchanges = warm.coef_.copy(), np.ravel(warm.n_iter_)[0]
    np.testing.assert_array_equal(coef, clone(model).fit(X[order], y[order], clients=CLIENTS).coef_)
    warm.fit(X[order], y[order], clients=CLIENTS)
    assert np.ravel(warm.n_iter_)[0] == 2 < exchanges  # a certificate before and after the last step
    np.testing.assert_allclose(warm.coef_, coef, rtol=1e-6)
    warm.fit(X[order][:, :2], y[order], clients=CLIENTS)  # another number of features: from the beginning
    assert warm.coef_.shape[-1] == 2


def test_warm_starts_of_several_targets() -> None:
    Y = np.column_stack([AMOUNTS, 3.0 - 2.0 * AMOUNTS + X[:, 0]])
    model = FederatedRidge(warm_start=True).fit(X, Y, clients=CLIENTS)
    assert model.n_iter_.tolist() == [3, 3]
    assert model.fit(X, Y, clients=CLIENTS).n_iter_.tolist() == [2, 2]


def test_warm_start_of_another_penalty() -> None:
    rows, y = scale(load_iris().data), load_iris().target
    clients = np.arange(150) % 5
    model = FederatedLogisticRegression(warm_start=True).fit(rows, y, clients=clients)
    first = int(model.n_iter_[0])
    model.set_params(C=0.9).fit(rows, y, clients=clients)
    assert 2 < int(model.n_iter_[0]) < first
    whole = LogisticRegression(C=0.9, tol=1e-12, max_iter=10_000, solver="newton-cholesky").fit(rows, y)
    np.testing.assert_allclose(model.coef_, whole.coef_, rtol=1e-4, atol=1e-7)


def test_coefficients_of_classes_add_up_to_zero() -> None:
    rows, y = load_iris(return_X_y=True)
    model = FederatedLogisticRegression(C=150).fit(rows, y, clients=np.arange(150) % 3)
    np.testing.assert_allclose(model.coef_.sum(axis=0), 0.0, atol=1e-12)
    assert model.intercept_.sum() == pytest.approx(0.0, abs=1e-11)


@pytest.mark.slow
def test_a_small_penalty_is_no_separation() -> None:
    """Classes that columns separate have finite coefficients as soon as these are penalised."""
    rows, y = load_iris(return_X_y=True)
    rows, y = scale(rows[:100]), y[:100]
    model = FederatedLogisticRegression(C=1e4, standardize=False)
    model.fit(rows, y, clients=np.arange(100) % 4)
    whole = LogisticRegression(C=1e4, tol=1e-12, max_iter=10_000, solver="newton-cholesky").fit(rows, y)
    np.testing.assert_allclose(model.coef_, whole.coef_, rtol=1e-3)
    with pytest.raises(InvalidInput, match=r"separate.* pass a positive penalty 1/C"):
        FederatedLogisticRegression(C=np.inf).fit(rows, y, clients=np.arange(100) % 4)


def test_classes_without_weight_are_named() -> None:
    model = FederatedLogisticRegression(class_weight={"yes": 0.0, "no": 1.0})
    with pytest.raises(InvalidInput, match=r"no row of class .*'yes'.* has a positive weight; leave out"):
        model.fit(X, LABELS, clients=CLIENTS)


@pytest.mark.parametrize(("model", "y"), MODELS)
def test_weights_that_are_all_zero_are_refused(model: Any, y: Any) -> None:
    with pytest.raises(ValueError, match="at least one non-zero number"):
        clone(model).fit(X, y, clients=CLIENTS, sample_weight=np.zeros(120))


def test_too_many_coefficients_for_a_hessian(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scaffold trains from gradients; there are no standard errors, and no condition on signs."""
    wanted = FederatedRidge().fit(X, AMOUNTS, clients=CLIENTS)
    monkeypatch.setattr(sys.modules["fedscaffold.models.fit"], "MOST_COEFFICIENTS", 3)
    model = FederatedRidge().fit(X, AMOUNTS, clients=CLIENTS)
    assert (model.trained_.trainer, model.trained_.reached) == ("scaffold", True)
    assert np.linalg.norm(model.coef_ - wanted.coef_) < 1e-4 * np.linalg.norm(wanted.coef_)
    close = FederatedRidge(tolerance=1e-6).fit(X, AMOUNTS, clients=CLIENTS)
    np.testing.assert_allclose(close.coef_, wanted.coef_, rtol=1e-5)
    with pytest.raises(InvalidInput, match="standard errors are there for at most"):
        model.summary("HC0")
    with pytest.raises(InvalidInput, match="positive=True supports at most"):
        FederatedRidge(positive=True).fit(X, AMOUNTS, clients=CLIENTS)
    with pytest.raises(InvalidInput, match="Newton's method needs sums of Hessians"):
        FederatedRidge(trainer="newton").fit(X, AMOUNTS, clients=CLIENTS)


@pytest.mark.parametrize("columns", [1200, 3000])
def test_many_columns(columns: int) -> None:
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(600, columns))
    z = rows[:, :20].sum(axis=1)
    clients = np.arange(600) % 4
    ridge = FederatedRidge(alpha=10.0, standardize=False).fit(rows, z, clients=clients)
    np.testing.assert_allclose(
        ridge.predict(rows), Ridge(alpha=10.0).fit(rows, z).predict(rows), atol=1e-3 * z.std()
    )
    logistic = FederatedLogisticRegression(C=0.01, standardize=False).fit(rows, z > 0, clients=clients)
    whole = LogisticRegression(C=0.01, tol=1e-8).fit(rows, z > 0)
    np.testing.assert_allclose(logistic.predict_proba(rows), whole.predict_proba(rows), atol=1e-4)
    assert ridge.trained_.reached
    assert logistic.trained_.reached


def test_sparse_coefficients() -> None:
    model = FederatedLogisticRegression().fit(X, LABELS, clients=CLIENTS)
    margins = model.decision_function(X)
    assert sparse.issparse(model.sparsify().coef_)
    np.testing.assert_allclose(model.decision_function(sparse.csr_array(X)), margins, rtol=1e-12)
    assert isinstance(model.densify().coef_, np.ndarray)


def test_gamma_regression_equals_scikit_learns() -> None:
    scaled = scale(X)
    own = FederatedGammaRegression(alpha=0.1, standardize=False)
    own.fit(scaled, COSTS, clients=CLIENTS, sample_weight=WEIGHTS)
    other = GammaRegressor(alpha=0.1, solver="newton-cholesky", tol=1e-12)
    other.fit(scaled, COSTS, sample_weight=WEIGHTS)
    np.testing.assert_allclose(own.coef_, other.coef_, rtol=1e-6)
    assert own.score(scaled, COSTS) == pytest.approx(other.score(scaled, COSTS), rel=1e-9)
    with pytest.raises(InvalidInput, match="y must hold positive amounts, but has -1"):
        FederatedGammaRegression().fit(X, -COSTS - 1 + COSTS, clients=CLIENTS)


def test_every_parameter_is_documented() -> None:
    for model in (
        FederatedRidge,
        FederatedLogisticRegression,
        FederatedPoissonRegression,
        FederatedGammaRegression,
    ):
        text = str(inspect.getdoc(model))
        for name in (*model().get_params(), "coef_", "n_iter_", "summary_", "clients_", "trained_", "privacy_"):
            assert f"\n{name}" in text or f", {name}" in text, name


def test_help_shows_shared_parameters_once_and_examples_last() -> None:
    text = str(FederatedPoissonRegression.__doc__)
    assert text.startswith("Poisson regression: the minimum of the mean")
    assert [text.count(f"\n{name}\n") for name in ("alpha", "tolerance", "epsilon", "n_iter_")] == [1, 1, 1, 1]
    order = [
        text.index(part)
        for part in ("Parameters\n-", "\nalpha\n", "\ntolerance\n", "Attributes\n-", "Examples\n-")
    ]
    assert order == sorted(order)
