"""Coefficients, standard errors and p-values equal statsmodels' on pooled rows, from sums that clients add up."""

import warnings
from functools import cache
from typing import Any

import numpy as np
import pytest
import statsmodels.api as sm

import fedscaffold as fs
from fedscaffold.inference import Summary
from tests.inference.data_sets import DATA_SETS, Regression

COVARIANCES = ("nonrobust", "HC0", "HC1", "cluster")
PROBLEMS: dict[str, Any] = {
    "ridge": fs.problems.Ridge,
    "logistic": fs.problems.Logistic,
    "multinomial": fs.problems.Multinomial,
    "poisson": fs.problems.Poisson,
    "gamma": fs.problems.Gamma,
}


@cache
def data(name: str) -> Regression:
    return DATA_SETS[name]()


def problem_of(given: Regression, **more: Any) -> Any:
    """The rows divided among clients, which count by their rows."""
    rows = [np.flatnonzero(given.clients == c) for c in range(int(given.clients.max()) + 1)]
    if given.offset is not None:
        more["offset"] = [given.offset[own] for own in rows]
    weights = [own.size for own in rows]
    kind = PROBLEMS[given.kind]
    return kind([given.X[own] for own in rows], [given.y[own] for own in rows], weights=weights, **more)


@cache
def problem(name: str) -> Any:
    return problem_of(data(name))


def pooled(given: Regression) -> Any:
    """statsmodels' model of the pooled rows, fitted as exactly as it can."""
    y, X = given.y, given.X
    if given.kind == "ridge":
        return sm.OLS(y, X), {}
    if given.kind == "multinomial":
        return sm.MNLogit(y, X), {"method": "newton", "maxiter": 200, "tol": 1e-14}
    if given.kind == "logistic":
        return sm.Logit(y, X), {"method": "newton", "maxiter": 200, "tol": 1e-14}
    if given.kind == "poisson":
        return sm.Poisson(y, X, offset=given.offset), {"method": "newton", "maxiter": 200, "tol": 1e-14}
    family = sm.families.Gamma(sm.families.links.Log())
    return sm.GLM(y, X, family=family), {"maxiter": 200, "tol": 1e-15}


@cache
def fitted(name: str, cov: str) -> Any:
    model, settings = pooled(data(name))
    kwds = {"groups": data(name).clients} if cov == "cluster" else {}
    if not isinstance(model, sm.OLS | sm.GLM):
        settings = {**settings, "disp": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.fit(**settings, cov_type=cov, cov_kwds=kwds or None)


def assert_equal(summary: Summary, wanted: Any) -> None:
    params, se = np.ravel(np.asarray(wanted.params), order="F"), np.ravel(np.asarray(wanted.bse), order="F")
    p = np.ravel(np.asarray(wanted.pvalues), order="F")
    frame = summary.to_frame()
    assert (np.abs(frame["coef"] - params) / se).max() < 1e-6
    np.testing.assert_allclose(frame["se"], se, rtol=1e-5)
    np.testing.assert_allclose(frame["p"], p, rtol=0, atol=1e-6)
    interval = np.asarray(wanted.conf_int()).reshape(-1, 2)
    np.testing.assert_allclose(frame[["low", "high"]], interval, rtol=0, atol=1e-5 * se.max())


@pytest.mark.parametrize("cov", COVARIANCES)
@pytest.mark.parametrize("name", DATA_SETS)
def test_equals_statsmodels(name: str, cov: Any) -> None:
    """From θ some way off the optimum, as a run leaves it; two Newton steps close it."""
    own = problem(name)
    step = fs.inference.newton_step(fs.inference.closing_sums(own, own.optimum()), np.zeros(own.dim))
    assert step.standard_errors is not None
    noise = np.random.default_rng(0).normal(size=own.dim) / own.dim
    start = own.optimum() + 0.05 * step.standard_errors * noise
    if own.vectors > 1:
        start -= np.tile(start.reshape(own.vectors, -1).mean(axis=0), own.vectors)
    summary = fs.inference.summarise(own, start, cov=cov, names=data(name).names, n_intercepts=1)
    assert_equal(summary, fitted(name, cov))


@pytest.mark.parametrize("name", DATA_SETS)
def test_likelihood_and_its_kin(name: str) -> None:
    found, wanted = fs.inference.summarise(problem(name)).statistics, fitted(name, "nonrobust")
    kind = data(name).kind
    assert found.log_likelihood == pytest.approx(wanted.llf, rel=1e-9)
    assert found.aic == pytest.approx(wanted.aic, rel=1e-9)
    bic = wanted.bic_llf if kind == "gamma" else wanted.bic
    assert found.bic == pytest.approx(bic, rel=1e-9)
    if kind in ("logistic", "multinomial", "poisson"):
        assert found.null_log_likelihood == pytest.approx(wanted.llnull, rel=1e-7)
        assert found.pseudo_r2 == pytest.approx(wanted.prsquared, rel=1e-6)
    if kind == "ridge":
        assert found.pseudo_r2 == pytest.approx(wanted.rsquared, rel=1e-9)
        assert found.deviance == pytest.approx(wanted.ssr, rel=1e-9)
        assert found.dispersion == pytest.approx(wanted.scale, rel=1e-9)
    if kind == "gamma":
        assert found.deviance == pytest.approx(wanted.deviance, rel=1e-8)
        assert found.dispersion == pytest.approx(wanted.scale, rel=1e-8)


@pytest.mark.parametrize("name", ["anes_vote", "grunfeld", "rand_visits"])
@pytest.mark.parametrize("cov", ["nonrobust", "cluster"])
def test_wald_tests(name: str, cov: Any) -> None:
    summary = fs.inference.summarise(problem(name), cov=cov, names=data(name).names, n_intercepts=1)
    wanted = fitted(name, cov)
    k = len(summary.names)
    with_f = summary.df_resid is not None
    every = wanted.wald_test(np.eye(k)[:-1], use_f=with_f, scalar=True)
    found = summary.wald_test()
    assert found.statistic == pytest.approx(float(every.statistic), rel=1e-6)
    assert found.p == pytest.approx(float(every.pvalue), abs=1e-9)
    difference = np.zeros(k)
    difference[:2] = 1.0, -1.0
    one = wanted.wald_test(difference[None], use_f=with_f, scalar=True)
    assert summary.wald_test(difference).p == pytest.approx(float(one.pvalue), abs=1e-9)
    assert summary.wald_test(summary.names[:2]).df == 2


def test_quasi_poisson() -> None:
    given = data("rand_visits")
    wanted = sm.GLM(given.y, given.X, family=sm.families.Poisson()).fit(tol=1e-14, scale="X2")
    summary = fs.inference.summarise(problem("rand_visits"), dispersion="pearson")
    assert_equal(summary, wanted)
    assert summary.statistics.dispersion == pytest.approx(wanted.scale, rel=1e-8)
    assert summary.statistics.deviance == pytest.approx(wanted.deviance, rel=1e-9)


@pytest.mark.parametrize("cov", COVARIANCES)
@pytest.mark.parametrize("name", ["affairs", "rand_visits", "grunfeld"])
def test_sample_weights_are_weights_of_the_variance(name: str, cov: Any) -> None:
    given = data(name)
    weight = np.random.default_rng(0).uniform(0.3, 3.0, size=given.y.size)
    rows = [np.flatnonzero(given.clients == c) for c in range(int(given.clients.max()) + 1)]
    own = problem_of(given, sample_weight=[weight[part] for part in rows])
    kwds = {"groups": given.clients} if cov == "cluster" else None
    if given.kind == "ridge":
        wanted = sm.WLS(given.y, given.X, weights=weight).fit(cov_type=cov, cov_kwds=kwds)
        summary = fs.inference.summarise(own, cov=cov)
        assert summary.statistics.log_likelihood == pytest.approx(wanted.llf, rel=1e-9)
    else:
        family = sm.families.Binomial() if given.kind == "logistic" else sm.families.Poisson()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "not fully supported", though it is what the formula gives
            wanted = sm.GLM(given.y, given.X, family=family, var_weights=weight).fit(
                tol=1e-14, cov_type=cov, cov_kwds=kwds
            )
        summary = fs.inference.summarise(own, cov=cov)
    assert_equal(summary, wanted)


@pytest.mark.parametrize("cov", COVARIANCES)
@pytest.mark.parametrize("name", ["affairs", "grunfeld", "rand_visits", "strikes"])
def test_client_intercepts_are_one_indicator_per_client(name: str, cov: Any) -> None:
    """Slopes and their standard errors; the clients' own intercepts never leave them."""
    given = data(name)
    slopes = given._replace(X=given.X[:, :-1], names=given.names[:-1])
    own = problem_of(slopes)
    summary = fs.inference.summarise(own, np.zeros(own.dim), cov=cov, client_intercepts=True)
    indicators = (given.clients[:, None] == np.arange(given.clients.max() + 1)).astype(np.float64)
    model, settings = pooled(given._replace(X=np.column_stack([slopes.X, indicators])))
    if not isinstance(model, sm.OLS | sm.GLM):
        settings = {**settings, "disp": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = model.fit(
            **settings, cov_type=cov, cov_kwds={"groups": given.clients} if cov == "cluster" else None
        )
    k = own.dim
    assert (np.abs(summary.coef - wanted.params[:k]) / wanted.bse[:k]).max() < 1e-6
    np.testing.assert_allclose(summary.se, wanted.bse[:k], rtol=1e-5)
    np.testing.assert_allclose(summary.p, wanted.pvalues[:k], atol=1e-6)
    assert summary.statistics.log_likelihood == pytest.approx(wanted.llf, rel=1e-9)
    assert summary.statistics.aic == pytest.approx(wanted.aic, rel=1e-9)
