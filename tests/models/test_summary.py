"""Summaries of fits: statsmodels' numbers in the table's own units, kept with the model and in the report."""

import warnings
from functools import cache
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm

import fedscaffold as fs
from fedscaffold.core.errors import InvalidInput
from tests.inference.data_sets import shipped

COVARIANCES = ("nonrobust", "HC0", "HC1", "cluster")


@cache
def table(kind: str) -> pd.DataFrame:
    """Visits with two numbers and a category; clients differ in size."""
    rng = np.random.default_rng(3)
    n = 600
    made = pd.DataFrame({"age": rng.normal(60, 12, n), "dose": rng.exponential(2.0, n)})
    made["ward"] = rng.choice(["x", "y", "z"], n, p=[0.5, 0.3, 0.2])
    made["site"] = rng.choice(list("ABCDEF"), n, p=[0.4, 0.2, 0.15, 0.1, 0.1, 0.05])
    margin = 0.05 * (made["age"] - 60) - 0.3 * made["dose"] + (made["ward"] == "y")
    if kind == "ridge":
        made["out"] = 100 + 20 * (margin + rng.normal(size=n))
    elif kind == "logistic":
        made["out"] = np.where(margin + rng.logistic(size=n) > 0, "yes", "no")
    else:
        made["out"] = np.argmax(np.outer(margin, [0.0, 0.5, 1.0]) + rng.gumbel(size=(n, 3)), axis=1)
    return made


def pooled(kind: str, cov: str) -> tuple[Any, list[str]]:
    data = table(kind)
    X = pd.DataFrame({"age": data["age"], "dose": data["dose"]})
    X["ward=y"], X["ward=z"] = (data["ward"] == "y") * 1.0, (data["ward"] == "z") * 1.0
    X["intercept"] = 1.0
    settings: dict[str, Any] = {"cov_type": cov}
    if cov == "cluster":
        settings["cov_kwds"] = {"groups": np.unique(data["site"], return_inverse=True)[1]}
    newton = {"method": "newton", "disp": 0, "maxiter": 100, "tol": 1e-13}
    if kind == "ridge":
        return sm.OLS(data["out"], X).fit(**settings), list(X.columns)
    if kind == "logistic":
        return sm.Logit((data["out"] == "yes") * 1.0, X).fit(**newton, **settings), list(X.columns)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = sm.MNLogit(data["out"], X).fit(**newton, **settings)
    return found, [f"{k}: {name}" for k in (1, 2) for name in X.columns]


@cache
def fitted(kind: str) -> fs.models.Fit:
    return fs.fit(table(kind), target="out", client="site", l2=0, kind="ridge" if kind == "ridge" else "logistic")


@pytest.mark.parametrize("cov", COVARIANCES)
@pytest.mark.parametrize("kind", ["ridge", "logistic", "multinomial"])
def test_a_fit_has_the_numbers_of_pooled_statsmodels(kind: str, cov: Any) -> None:
    wanted, names = pooled(kind, cov)
    params, se, p = (np.ravel(np.asarray(v), order="F") for v in (wanted.params, wanted.bse, wanted.pvalues))
    frame = fitted(kind).summary(cov=cov).to_frame().loc[names]
    assert (np.abs(frame["coef"] - params) / se).max() < 1e-6
    np.testing.assert_allclose(frame["se"], se, rtol=1e-5)
    np.testing.assert_allclose(frame["p"], p, rtol=0, atol=1e-6)
    assert (frame["optimisation_error"] < 0.05 * frame["se"]).all()
    assert fitted(kind).summary(cov=cov).statistics.log_likelihood == pytest.approx(wanted.llf, rel=1e-8)


@pytest.mark.parametrize("kind", ["ridge", "logistic", "multinomial"])
def test_the_models_file_keeps_coefficients_and_standard_errors(kind: str, tmp_path: Path) -> None:
    fit = fitted(kind)
    fit.model.save(tmp_path / "model.json")
    again = fs.Model.load(tmp_path / "model.json")
    assert again == fit.model
    pd.testing.assert_frame_equal(again.summary().to_frame(), fit.summary().to_frame())
    assert str(again.summary()) == str(fit.summary())
    assert again.summary().wald_test().p == pytest.approx(fit.summary().wald_test().p)
    equation, frame = fit.model.equations[0], fit.summary().to_frame()
    if kind != "multinomial":
        assert frame.loc["intercept", "coef"] == pytest.approx(equation.intercept)
        assert frame.loc["age", "coef"] == pytest.approx(equation.coefficients[0])
    old = fs.Model(encoding=again.encoding, equations=again.equations)
    with pytest.raises(InvalidInput, match="no standard errors"):
        old.summary()


@pytest.mark.parametrize("how", ["frame", "csv", "parquet", "folder"])
def test_frames_files_and_folders(how: str, tmp_path: Path) -> None:
    data: Any = table("logistic")
    if how == "csv":
        data.to_csv(tmp_path / "t.csv", index=False)
        data = tmp_path / "t.csv"
    elif how != "frame":
        data.to_parquet(tmp_path / "t.parquet", index=False)
        data = tmp_path / "t.parquet" if how == "parquet" else tmp_path
    fit = fs.fit(data, target="out", client="site", l2=0)
    np.testing.assert_allclose(fit.summary().coef, fitted("logistic").summary().coef, rtol=1e-6)


def test_separation_and_collinearity_are_named() -> None:
    data = table("logistic").assign(marker=lambda t: (t["out"] == "yes") * (t["age"] > 65) * 1.0)
    with pytest.raises(InvalidInput, match=r"^'marker' separates the classes, .*l2"):
        fs.fit(data, target="out", client="site", l2=0)
    data = table("ridge").assign(years=lambda t: 2 * t["age"] + t["dose"])
    with pytest.raises(InvalidInput, match=r"'age'.*depend on each other|depend on each other") as refused:
        fs.fit(data, target="out", client="site", l2=0)
    assert all(name in str(refused.value) for name in ("age", "dose", "years"))
    few = table("ridge").iloc[:4].assign(site=["A", "A", "B", "B"])
    with pytest.raises(InvalidInput, match="4 rows for"):
        fs.fit(few, target="out", client="site", l2=0, kind="ridge")


@pytest.mark.parametrize("tolerance", ["se", "se:", "se:-1", "sd:0.1", "se:inf", 2.0, 0.0, None])
def test_tolerances_that_mean_nothing_are_refused(tolerance: Any) -> None:
    with pytest.raises(InvalidInput, match="tolerance must be"):
        fs.fit(table("ridge"), target="out", client="site", tolerance=tolerance)


def test_real_data_through_fit() -> None:
    """Fair's affairs by occupation: an odds ratio with its interval, as statsmodels gives it."""
    frame = shipped("fair").assign(affair=lambda t: t["affairs"] > 0, job=lambda t: t["occupation"].astype(int))
    names = ["rate_marriage", "age", "yrs_married", "children"]
    fit = fs.fit(frame, target="affair", client="job", features=names, l2=0)
    wanted = sm.Logit(frame["affair"] * 1.0, sm.add_constant(frame[names])).fit(disp=0, tol=1e-13)
    found = fit.summary().to_frame().loc[names]
    assert (np.abs(found["coef"] - wanted.params[names]) / wanted.bse[names]).max() < 1e-6
    np.testing.assert_allclose(found["se"], wanted.bse[names], rtol=1e-5)
    np.testing.assert_allclose(found["p"], wanted.pvalues[names], atol=1e-6)


@pytest.mark.parametrize("kind", ["ridge", "logistic", "multinomial"])
def test_the_report_has_coefficients_and_a_forest_plot(kind: str, tmp_path: Path) -> None:
    fitted(kind).report(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "<h2>Coefficients</h2>" in page
    assert "Coefficients in the table's own units" in unescape(page)
    assert ("odds ratio" in page) == (kind != "ridge")
    assert "per standard deviation" in page
    assert "ward=y" in page


def test_more_columns_than_rows_are_fitted_with_a_penalty_and_have_no_standard_errors(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(20, 30))
    frame = pd.DataFrame(X, columns=[f"c{j}" for j in range(30)])
    frame["y"], frame["s"] = X[:, 0] + rng.normal(size=20), ["a", "b"] * 10
    fit = fs.fit(frame, target="y", client="s", kind="ridge")
    assert fit.model.standard_errors is None
    assert fit.reached
    with pytest.raises(InvalidInput, match="20 rows for 31 coefficients, so nothing is left to estimate"):
        fit.summary()
    with pytest.raises(InvalidInput, match=r"20 rows for 31 coefficients, .*use fewer columns or more rows"):
        fs.fit(frame, target="y", client="s", kind="ridge", l2=0)
    fit.report(tmp_path / "report.html")
    assert "<h2>Coefficients</h2>" not in (tmp_path / "report.html").read_text()
