"""Random intercepts of clients, against dense generalised least squares and statsmodels' MixedLM."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import minimize_scalar
from statsmodels.regression.mixed_linear_model import MixedLM

import fedscaffold as fs
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array
from fedscaffold.models.fit import Fit
from tests.inference.data_sets import shipped


def made(clients: int = 12, spread: float = 0.7, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    site = np.repeat(np.arange(clients), rng.integers(3, 30, clients))
    x, group = rng.normal(50, 10, site.size), rng.choice(["a", "b", "c"], site.size)
    y = 0.1 * x + (group == "b") + spread * rng.normal(size=clients)[site] + rng.normal(size=site.size)
    return pd.DataFrame({"x": x, "group": group, "y": 3 * y, "site": site})


def grunfeld() -> pd.DataFrame:
    found = shipped("grunfeld").rename(columns={"invest": "y", "firm": "site"})
    return found[["value", "capital", "y", "site"]]


TABLES = {"made": made, "grunfeld": grunfeld}


def fit_of(frame: pd.DataFrame, **options: Any) -> Fit:
    given = {"target": "y", "client": "site", "kind": "ridge", "l2": 0, "client_intercepts": "random"}
    return fs.fit(frame, **{**given, **options})


def matrices(frame: pd.DataFrame, fit: Fit) -> tuple[Array, Array, Array]:
    """X with a constant, y, and the indicators of clients."""
    x = fit.model.encoding.encode(frame)
    sites = np.unique(frame["site"].to_numpy(), return_inverse=True)[1]
    Z = np.eye(sites.max() + 1)[sites]
    return np.column_stack([x, np.ones(len(x))]), frame["y"].to_numpy(dtype=float), Z


def dense(X: Array, y: Array, Z: Array, ratio: float) -> Any:
    """Generalised least squares: coefficients, standard errors, σ², and −2 log of the restricted likelihood."""
    V = np.eye(len(y)) + ratio * Z @ Z.T
    inverse = np.linalg.inv(V)
    A = X.T @ inverse @ X
    beta = np.linalg.solve(A, X.T @ inverse @ y)
    left = (y - X @ beta) @ inverse @ (y - X @ beta)
    variance = left / (len(y) - X.shape[1])
    volumes = np.linalg.slogdet(V)[1] + np.linalg.slogdet(A)[1]
    criterion = (len(y) - X.shape[1]) * np.log(variance) + volumes
    return beta, np.sqrt(variance * np.diagonal(np.linalg.inv(A))), variance, criterion


@pytest.mark.parametrize("name", TABLES)
def test_fits_are_generalised_least_squares_at_the_largest_restricted_likelihood(name: str) -> None:
    frame = TABLES[name]()
    fit = fit_of(frame)
    assert fit.reached
    assert fit.variance_ratio is not None
    summary, (X, y, Z) = fit.summary(), matrices(frame, fit)
    best = minimize_scalar(lambda log: dense(X, y, Z, np.exp(log))[3], bounds=(-10, 10), method="bounded",
                           options={"xatol": 1e-10})  # fmt: skip
    assert np.log(fit.variance_ratio) == pytest.approx(best.x, abs=1e-5)
    beta, errors, variance, _ = dense(X, y, Z, fit.variance_ratio)
    np.testing.assert_allclose(summary.coef, beta, atol=1e-8 * errors.min())
    np.testing.assert_allclose(summary.se, errors, rtol=1e-8)
    assert float(summary.facts["SD within clients"]) == pytest.approx(np.sqrt(variance), rel=1e-4)


@pytest.mark.parametrize("name", TABLES)
def test_fits_equal_statsmodels(name: str) -> None:
    """As far as its optimiser goes; its standard errors are of the observed information with the variances."""
    frame = TABLES[name]()
    fit = fit_of(frame)
    X, y, Z = matrices(frame, fit)
    scale = X.std(axis=0) + (X.std(axis=0) == 0.0)
    other = MixedLM(y, X / scale, frame["site"].to_numpy()).fit(reml=True, method="bfgs", gtol=1e-10)
    summary = fit.summary()
    np.testing.assert_allclose(summary.coef, other.fe_params / scale, atol=1e-4 * summary.se.min())
    spread = float(other.cov_re[0, 0])
    np.testing.assert_allclose(summary.se, dense(X, y, Z, spread / other.scale)[1], rtol=1e-4)
    between = float(summary.facts["SD between clients"])
    assert between == pytest.approx(np.sqrt(spread), rel=1e-3)
    assert float(summary.facts["SD within clients"]) == pytest.approx(np.sqrt(other.scale), rel=1e-4)


def test_clients_that_do_not_differ_leave_least_squares() -> None:
    rng = np.random.default_rng(3)
    x, site = rng.normal(size=60), np.repeat(np.arange(6), 10)
    noise = rng.normal(size=60)
    noise -= np.repeat(noise.reshape(6, 10).mean(axis=1), 10)  # the same mean in each client
    frame = pd.DataFrame({"x": x, "y": x + noise, "site": site})
    fit = fit_of(frame)
    assert fit.variance_ratio == 0.0
    np.testing.assert_allclose(
        fit.summary().coef, fit_of(frame, client_intercepts=False).summary().coef, rtol=1e-9
    )


def test_the_result_is_saved_and_predicts_the_common_part(tmp_path: Any) -> None:
    frame = made()
    fit = fit_of(frame)
    fit.save(tmp_path)
    again = fs.models.load(tmp_path)
    assert again.variance_ratio == fit.variance_ratio
    assert again.summary("cluster").facts == fit.summary("cluster").facts
    X, _, _ = matrices(frame, fit)
    np.testing.assert_allclose(fit.model.predict(frame), X @ fit.summary().coef, rtol=1e-9)
    assert any("random intercepts" in note for note in fit.summary().notes)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "poisson"}, "is for kind='ridge', not 'poisson'"),
        ({"l2": 0.1}, "requires l2=0"),
        ({"offset": "x"}, "does not support offset"),
        ({"weights": "uniform"}, "requires weights='rows'"),
        ({"client_intercepts": "fixed"}, "client_intercepts must be one of"),
    ],
)
def test_what_random_intercepts_do_not_support(options: Any, message: str) -> None:
    frame = made()
    with pytest.raises(InvalidInput, match=message):
        fit_of(frame.assign(y=frame["y"].abs().round()), **options)
