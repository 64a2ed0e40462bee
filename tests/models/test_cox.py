"""Cox regression through `fs.fit` and studies, against statsmodels on pooled rows, stratified by client."""

from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn import datasets
from statsmodels.duration.hazard_regression import PHReg

import fedscaffold as fs
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array
from fedscaffold.models.fit import Fit
from tests.inference.data_sets import bins, shipped

TARGET: Any = ("time", "event")
FAST = ("heart", "strikes", "diabetes")


@cache
def table(name: str) -> pd.DataFrame:
    """Real rows with `time`, `event` and `site`; as times, sizes of tumours or years of marriage do as well."""
    if name == "heart":  # transplants: days until death or the last visit
        found = shipped("heart").rename(columns={"survival": "time", "censors": "event"})
        return found.assign(age2=(found["age"] - 45) ** 2, site=np.arange(len(found)) % 4)
    if name == "strikes":  # days until strikes ended; all did
        found = shipped("strikes").rename(columns={"duration": "time"})
        return found.assign(event=True, half=np.arange(len(found)) % 2, site=bins(np.arange(len(found)), 3))
    if name == "diabetes":
        data = datasets.load_diabetes(as_frame=True)
        found = data.data[["age", "sex", "bmi", "bp", "s5"]].assign(time=data.target)
        return found.assign(event=data.data["s1"] > -0.02, site=bins(data.data["s2"], 5))
    if name == "fair":  # years of marriage until an affair: eight different times in 6,366 rows
        found = shipped("fair").rename(columns={"yrs_married": "time"})
        kept = found[["time", "rate_marriage", "religious", "educ", "age"]]
        return kept.assign(event=found["affairs"] > 0, site=found["occupation"].astype(int))
    data = datasets.load_breast_cancer(as_frame=True)
    kept = data.data[["mean texture", "mean smoothness", "mean symmetry"]]
    return kept.assign(
        time=data.data["mean radius"], event=data.target == 0, site=bins(data.data["mean area"], 100)
    )


TABLES = [
    name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in (*FAST, "fair", "cancer")
]


@cache
def pooled(name: str) -> Any:
    """statsmodels' fit of the pooled rows, with a baseline for each site."""
    frame = table(name)
    features = frame.drop(columns=["time", "event", "site"]).astype(float)
    model = PHReg(frame["time"], features, status=frame["event"].astype(int), strata=frame["site"], ties="efron")
    return model.fit(start_params=model.fit(disp=0).params, disp=0)  # once more, so that it has converged


def assert_equal(summary: fs.inference.Summary, name: str) -> None:
    """Coefficients within 1e-6 of a standard error, standard errors within 1e-5, and the rest."""
    other = pooled(name)
    assert np.abs((summary.coef - other.params) / other.bse).max() < 1e-6
    np.testing.assert_allclose(summary.se, other.bse, rtol=1e-5)
    np.testing.assert_allclose(summary.p, other.pvalues, atol=1e-6)
    np.testing.assert_allclose(
        np.column_stack([summary.low, summary.high]), other.conf_int(), rtol=1e-4, atol=1e-8
    )
    assert summary.statistics.log_likelihood == pytest.approx(other.llf, rel=1e-9)


@pytest.mark.parametrize("name", TABLES)
def test_fits_equal_statsmodels(name: str) -> None:
    fit = fs.fit(table(name), target=TARGET, client="site", kind="cox", l2=0, min_rows=1)
    assert fit.reached
    assert fit.trainer == "newton"
    summary = fit.summary()
    assert_equal(summary, name)
    assert summary.ratio == "hazard ratio"
    assert "intercept" not in summary.names
    np.testing.assert_allclose(summary.ratios()["hazard ratio"], np.exp(pooled(name).params), rtol=1e-6)


@pytest.mark.parametrize("sums", ["secure", "open"])
@pytest.mark.parametrize("name", TABLES)
def test_studies_equal_statsmodels(name: str, sums: Any) -> None:
    sites = {f"s{site}": own.drop(columns="site") for site, own in table(name).groupby("site")}
    study = fs.federation.Study(target=TARGET, kind="cox", min_cell=1, sums=sums)
    if sums == "open":
        sites = {site: own for site, own in sites.items() if len(own) >= 3 * (own.shape[1] - 2)}
        if len(sites) < table(name)["site"].nunique():
            pytest.skip("sites are too small for open matrices")
    result = study.run(sites)
    assert result.reached
    assert_equal(result.summary(), name)


def without_ties() -> pd.DataFrame:
    frame = table("diabetes").copy()
    frame["time"] += np.random.default_rng(0).random(len(frame)) / 2
    return frame


def test_robust_errors_equal_those_of_statsmodels() -> None:
    frame = without_ties()
    features = frame.drop(columns=["time", "event", "site"]).astype(float)
    model = PHReg(frame["time"], features, status=frame["event"].astype(int), strata=frame["site"], ties="breslow")
    fit = fs.fit(frame, target=TARGET, client="site", kind="cox", l2=0)
    params = model.fit(disp=0).params
    scores = np.nan_to_num(model.score_residuals(params))  # NaN for rows that were at risk at no event
    bread = np.linalg.inv(-model.hessian(params))
    for cov, groups in (("HC0", np.arange(len(frame))), ("cluster", frame["site"].to_numpy())):
        sums = np.array([scores[groups == group].sum(axis=0) for group in np.unique(groups)])
        errors = np.sqrt(np.diagonal(bread @ sums.T @ sums @ bread))
        np.testing.assert_allclose(fit.summary(cov).se, errors, rtol=1e-5)  # type: ignore[arg-type]
    assert (fit.summary("HC1").se == fit.summary("HC0").se).all()


def test_robust_errors_are_the_infinitesimal_jackknife() -> None:
    frame = table("diabetes")
    assert frame["time"].duplicated().any()
    fit = fs.fit(frame, target=TARGET, client="site", kind="cox", l2=0)
    problem: Any = fs.data.from_frame(frame, target=TARGET, client="site", kind="cox")
    theta, spread = problem.optimum(), np.zeros((5, 5))
    bread = np.linalg.inv(problem.hessian(theta) * len(frame))
    for client in range(problem.n_clients):
        moved = problem.risk_sets(client, theta).scores @ bread
        spread += moved.T @ moved
    np.testing.assert_allclose(fit.summary("HC0").se, np.sqrt(np.diagonal(spread)), rtol=1e-6)


def made(n: int = 400, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    x, group = rng.normal(size=n), rng.choice(["old", "new"], n, p=[0.6, 0.4])
    time = rng.exponential(np.exp(-0.5 * x - 0.7 * (group == "new")))
    seen = rng.exponential(1.5, n)
    return pd.DataFrame(
        {
            "days": np.minimum(time, seen),
            "died": time <= seen,
            "x": x,
            "group": group,
            "site": rng.choice(list("abcde"), n),
        }
    )


def fit_of(frame: pd.DataFrame, **options: Any) -> Fit:
    return fs.fit(frame, **{"target": ("days", "died"), "client": "site", "l2": 0, **options})


def test_two_columns_make_it_a_cox_model_and_categories_keep_a_reference(tmp_path: Any) -> None:
    fit = fit_of(made(), reference={"group": "old"})
    summary = fit.summary()
    assert summary.names == ("x", "group=new")
    assert summary.facts["events"] == str(made()["died"].sum())
    assert np.abs(summary.coef - [0.5, 0.7]).max() < 4 * summary.se.max()
    model = fs.Model.from_json(fit.model.to_json())
    assert model == fit.model
    assert model.kind == "cox"
    hazards = model.predict(pd.DataFrame({"x": [0.0, 1.0], "group": ["new", "new"]}))
    assert hazards[1] / hazards[0] == pytest.approx(np.exp(summary.coef[0]))
    fit.save(tmp_path)
    again = fs.models.load(tmp_path)
    assert (again.summary("cluster").se == fit.summary("cluster").se).all()
    assert "intercept" not in [name for name, _ in model.named_coefficients]


def test_times_may_be_in_any_unit_and_status_a_number() -> None:
    frame = made()
    other = fit_of(frame.assign(days=frame["days"] * 365, died=frame["died"].astype(int)))
    np.testing.assert_allclose(other.summary().coef, fit_of(frame).summary().coef, rtol=1e-12)


def test_a_client_without_events_adds_nothing() -> None:
    frame = made()
    silent = frame.assign(died=frame["died"] & (frame["site"] != "c"))
    fit = fit_of(silent)
    assert any("1 of 5 clients have no event" in note for note in fit.summary().notes)
    np.testing.assert_allclose(fit.summary().coef, fit_of(silent[silent["site"] != "c"]).summary().coef, rtol=1e-9)


def test_zero_times_are_times() -> None:
    frame = made()
    frame.loc[:9, "days"] = 0.0
    features = frame.assign(group=(frame["group"] == "old").astype(float))[["x", "group"]]
    other = PHReg(frame["days"], features, status=frame["died"].astype(int), strata=frame["site"], ties="efron")
    summary = fit_of(frame, reference={"group": "new"}).summary()
    np.testing.assert_allclose(summary.coef, other.fit(disp=0).params, rtol=1e-6)


def changed(**columns: Any) -> pd.DataFrame:
    frame = made()
    return frame.assign(**{name: value(frame) if callable(value) else value for name, value in columns.items()})


@pytest.mark.parametrize(
    ("frame", "options", "message"),
    [
        (changed(days=lambda f: f["days"] - 0.5), {}, "which must not be negative"),
        (changed(days=lambda f: f["days"].where(f.index > 3)), {}, "target 'days' has 4 missing values"),
        (changed(died=lambda f: f["died"] + 1), {}, "must hold 1 .an event. or 0 .none."),
        (changed(died=lambda f: f["died"].astype(float).where(f.index > 3)), {}, "column 'died' has missing"),
        (changed(died="no"), {}, "status column 'died' must hold numbers"),
        (changed(died=False), {}, "no event"),
        (changed(died=lambda f: f["died"] & (f["group"] == "old")), {}, "'group=new' predicts the order"),
        (changed(z=lambda f: f["site"].map(ord)), {}, "'z' is the same in all rows of each client"),
        (changed(z=lambda f: 2 * f["x"]), {}, "depend on each other"),
        (made(), {"target": "days", "kind": "cox"}, "needs two columns as target"),
        (made(), {"kind": "ridge"}, "are for kind='cox'"),
        (made().assign(w=1.0), {"weight": "w"}, "does not support weight"),
        (made(), {"client_intercepts": True}, "does not support client_intercepts"),
        (made(), {"trainer": "scaffold"}, "requires trainer='newton' or 'auto'"),
        (made(), {"epsilon": 1.0}, "a privacy budget does not cover kind='cox'"),
    ],
)  # fmt: skip
def test_tables_and_settings_that_cannot_be_used(frame: pd.DataFrame, options: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        fit_of(frame, **options)


def test_penalties_make_separated_times_fit() -> None:
    frame = changed(died=lambda f: f["died"] & (f["group"] == "old"))
    assert fit_of(frame, l2=0.01).reached


def test_intervals_cover() -> None:
    """Of 100 federations of five sites, 88 to 100 % of the intervals hold the coefficient: 3 standard errors."""
    inside = np.zeros(2)
    for seed in range(100):
        summary = fit_of(made(150, seed), reference={"group": "old"}).summary()
        truth: Array = np.array([0.5, 0.7])
        inside += (summary.low < truth) & (truth < summary.high)
    assert (inside >= 88).all()


def naive_concordance(frame: pd.DataFrame, hazards: Array) -> float:
    """The share of concordant pairs of rows, by two loops."""
    days, died = frame["days"].to_numpy(), frame["died"].to_numpy()
    right, pairs = 0.0, 0
    for i in np.flatnonzero(died):
        for j in range(len(days)):
            if days[i] < days[j] or (days[i] == days[j] and not died[j]):
                pairs += 1
                right += float(hazards[i] > hazards[j]) + 0.5 * float(hazards[i] == hazards[j])
    return right / pairs


def test_concordance_of_each_client() -> None:
    frame = made().assign(days=lambda f: f["days"].round(1), x=lambda f: f["x"].round())
    fit = fit_of(frame)
    found = fs.models.concordance(fit.model, frame)
    hazards = fit.model.predict(frame)
    for site in "abcde":
        own = (frame["site"] == site).to_numpy()
        assert found[site] == pytest.approx(naive_concordance(frame[own], hazards[own]), rel=1e-12)
    alone = fs.models.concordance(fit.model, frame[frame["site"] == "b"].drop(columns="site"))
    assert alone == {"all rows": pytest.approx(found["b"])}
    with pytest.raises(InvalidInput, match="of models of kind 'cox'"):
        fs.models.concordance(fs.fit(frame, target="x", client="site", kind="ridge").model, frame)
