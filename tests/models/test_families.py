"""Counts and amounts, exposures, offsets and weights in tables: statsmodels' numbers, and what is refused."""

import json
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from sklearn.metrics import d2_tweedie_score, mean_gamma_deviance, mean_poisson_deviance
from typer.testing import CliRunner

import fedscaffold as fs
from fedscaffold.cli.main import app
from fedscaffold.cli.prepare import class_counts, plan_beside_fedavg, prepare_problem
from fedscaffold.core.errors import InvalidInput
from fedscaffold.models.metrics import regression_metrics, score_table

COVARIANCES = ("nonrobust", "HC0", "HC1", "cluster")
CASES: dict[str, dict[str, Any]] = {
    "poisson": {"kind": "poisson", "exposure": "days"},
    "weighted poisson": {"kind": "poisson", "offset": "known", "weight": "w"},
    "gamma": {"kind": "gamma", "weight": "w"},
    "gamma with exposure": {"kind": "gamma", "exposure": "days"},
    "weighted ridge": {"kind": "ridge", "weight": "w", "offset": "known"},
    "weighted logistic": {"kind": "logistic", "weight": "w", "offset": "known"},
}
FEATURES = ("age", "ward")


@cache
def table() -> pd.DataFrame:
    """Visits of clients of different sizes; targets `n`, `cost`, `score` and `ill` with the same margins."""
    rng = np.random.default_rng(5)
    n = 500
    made = pd.DataFrame({"age": rng.normal(60, 12, n), "ward": rng.choice(["x", "y"], n, p=[0.6, 0.4])})
    made["site"] = rng.choice(list("ABCD"), n, p=[0.5, 0.25, 0.15, 0.1])
    made["days"], made["w"] = rng.uniform(1, 9, n), rng.uniform(0.4, 2.5, n)
    made["known"] = np.log(made["days"])
    margin = 0.03 * (made["age"] - 60) + 0.4 * (made["ward"] == "y")
    made["poisson"] = rng.poisson(made["days"] * np.exp(margin - 1.0) * rng.gamma(3.0, 1.0 / 3.0, n))
    made["gamma"] = rng.gamma(2.0, made["days"] * np.exp(margin + 3.0))
    made["ridge"] = 100 + 20 * margin + made["known"] + rng.normal(size=n)
    made["logistic"] = np.where(margin + made["known"] - 1.5 + rng.logistic(size=n) > 0, "yes", "no")
    return made


@cache
def fitted(name: str) -> fs.models.Fit:
    options = CASES[name]
    return fs.fit(table(), target=options["kind"], client="site", features=FEATURES, l2=0, **options)


def pooled(name: str, cov: str, **more: Any) -> Any:
    options, data = CASES[name], table()
    X = pd.DataFrame({"age": data["age"], "ward=y": (data["ward"] == "y") * 1.0, "intercept": 1.0})
    kwds = {"groups": np.unique(data["site"], return_inverse=True)[1]} if cov == "cluster" else None
    settings = {"cov_type": cov, "cov_kwds": kwds}
    weight = data["w"] if "weight" in options else None
    offset = data["known"] if "offset" in options or "exposure" in options else None
    y, kind = data[options["kind"]], options["kind"]
    if kind == "ridge":
        return sm.WLS(y - offset, X, weights=weight).fit(**settings)
    family: Any = {
        "poisson": sm.families.Poisson(),
        "gamma": sm.families.Gamma(sm.families.links.Log()),
        "logistic": sm.families.Binomial(),
    }[kind]
    y = (y == "yes") * 1.0 if kind == "logistic" else y
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # robust covariances with weights, "not fully supported"
        return sm.GLM(y, X, family=family, offset=offset, var_weights=weight).fit(tol=1e-15, **settings, **more)


@pytest.mark.parametrize("cov", COVARIANCES)
@pytest.mark.parametrize("name", CASES)
def test_summaries_equal_statsmodels(name: str, cov: Any) -> None:
    assert_equal(fitted(name).summary(cov), pooled(name, cov))


def assert_equal(summary: fs.inference.Summary, wanted: Any) -> None:
    frame = summary.to_frame()
    assert list(frame.index) == ["age", "ward=y", "intercept"]
    assert (np.abs(frame["coef"] - wanted.params) / wanted.bse).max() < 1e-6
    np.testing.assert_allclose(frame["se"], wanted.bse, rtol=1e-5)
    np.testing.assert_allclose(frame["p"], wanted.pvalues, rtol=0, atol=1e-6)
    np.testing.assert_allclose(frame[["low", "high"]], wanted.conf_int(), rtol=0, atol=1e-5 * wanted.bse.max())


@pytest.mark.parametrize("name", ["poisson", "weighted poisson"])
def test_quasi_poisson(name: str) -> None:
    summary, wanted = fitted(name).summary(dispersion="pearson"), pooled(name, "nonrobust", scale="X2")
    assert_equal(summary, wanted)
    assert summary.statistics.dispersion == pytest.approx(wanted.scale, rel=1e-8)
    assert summary.facts["family"] == "Poisson (quasi)"
    assert np.isnan(summary.statistics.aic)  # there is no likelihood


def test_a_dispersion_that_was_asked_for_is_that_of_the_model_file() -> None:
    options: Any = CASES["poisson"]
    fit = fs.fit(
        table(), target="poisson", client="site", features=FEATURES, l2=0, dispersion="pearson", **options
    )
    wanted = pooled("poisson", "nonrobust", scale="X2")
    assert_equal(fit.summary(), wanted)
    assert_equal(fit.model.summary(), wanted)
    assert_equal(fit.summary(dispersion=1.0), pooled("poisson", "nonrobust"))
    cases: list[tuple[Any, str]] = [("deviance", "'pearson'"), (0.0, "positive"), (True, "number")]
    for wrong, words in cases:
        with pytest.raises(fs.InvalidInput, match=words):
            fs.models.FitSettings(dispersion=wrong)


@pytest.mark.parametrize("name", CASES)
def test_the_model_predicts_as_statsmodels_and_survives_its_file(name: str, tmp_path: Path) -> None:
    fit, wanted = fitted(name), pooled(name, "nonrobust")
    fit.model.save(tmp_path / "model.json")
    model = fs.Model.load(tmp_path / "model.json")
    assert model == fit.model
    assert model.kind == CASES[name]["kind"]
    found = model.predict_proba(table())[:, 1] if model.kind == "logistic" else model.predict(table())
    mean = wanted.fittedvalues + (table()["known"] if model.kind == "ridge" else 0.0)
    np.testing.assert_allclose(found, mean, rtol=1e-8)
    np.testing.assert_allclose(model.summary().se, fit.summary().se, rtol=1e-12)


def test_a_model_file_names_its_columns() -> None:
    content = json.loads(fitted("weighted poisson").model.to_json())
    assert (content["kind"], content["offset"], content["weight"]) == ("poisson", "known", "w")
    assert "exposure" not in content
    assert "offset" not in json.loads(
        fs.fit(table(), target="ridge", client="site", features=["age"]).model.to_json()
    )


def test_predictions_need_the_exposure_and_refuse_what_is_none() -> None:
    model = fitted("poisson").model
    with pytest.raises(InvalidInput, match="no column 'days'"):
        model.predict(table().drop(columns="days"))
    with pytest.raises(InvalidInput, match="column 'days' has no positive number in row 3"):
        model.predict(table().assign(days=[1.0, 1.0, 1.0, 0.0, *[1.0] * 496]))


@pytest.mark.parametrize("name", ["poisson", "gamma with exposure"])
def test_metrics_are_scikit_learns(name: str) -> None:
    import pyarrow as pa

    model, kind = fitted(name).model, CASES[name]["kind"]
    y, mean = table()[kind].to_numpy(np.float64), model.predict(table())
    scored = score_table(model, pa.Table.from_pandas(table()))
    assert scored.metrics is not None
    wanted = {"poisson": mean_poisson_deviance, "gamma": mean_gamma_deviance}[kind](y, mean)
    assert scored.metrics["mean deviance"] == pytest.approx(wanted, rel=1e-10)
    power = {"poisson": 1, "gamma": 2}[kind]
    assert scored.metrics["D2"] == pytest.approx(d2_tweedie_score(y, mean, power=power), rel=1e-10)
    assert list(regression_metrics(y, mean, kind)) == ["mean deviance", "D2", "rmse", "mae", "r2"]


def test_rows_in_files_give_the_same_fit(tmp_path: Path) -> None:
    table().to_parquet(tmp_path / "visits.parquet")
    options: Any = {
        "target": "poisson", "client": "site", "features": FEATURES, "l2": 0.0, **CASES["weighted poisson"],
    }  # fmt: skip
    problem = fs.data.open_problem(tmp_path / "visits.parquet", cache_dir=tmp_path / "cache", **options)
    again = fs.data.open_problem(tmp_path / "visits.parquet", cache_dir=tmp_path / "cache", **options)
    assert problem.y.shape == (500, 3)
    assert again.fingerprint() == problem.fingerprint()
    found = fs.models.fit(problem).summary()
    np.testing.assert_allclose(found.coef, fitted("weighted poisson").summary().coef, rtol=1e-10)
    with pytest.raises(InvalidInput, match="records with weight='w', not None"):
        fs.data.open_problem(
            tmp_path / "visits.parquet", cache_dir=tmp_path / "cache", **{**options, "weight": None}
        )
    with pytest.raises(InvalidInput, match=r"records without exposure=.*, not 'days'"):
        fs.data.open_problem(
            tmp_path / "visits.parquet",
            cache_dir=tmp_path / "cache",
            **{**options, "offset": None, "exposure": "days"},
        )


def test_inspecting_counts() -> None:
    problem = fs.data.from_frame(
        table(), target="poisson", client="site", features=FEATURES, standardize=True, intercept=True,
        kind="poisson", exposure="days",
    )  # fmt: skip
    prepared = prepare_problem(problem, fs.models.FitSettings())
    assert class_counts(prepared.problem) is None
    assert prepared.loss(prepared.optimum) < prepared.loss(plan_beside_fedavg(prepared)[1])


# the command line

runner = CliRunner(env={"COLUMNS": "200"})
ARGUMENTS = ["--target", "poisson", "--client", "site", "--set", "features=age,ward"]


def test_the_command_line_fits_and_scores_counts(tmp_path: Path) -> None:
    data, out = tmp_path / "visits.csv", tmp_path / "model"
    table().to_csv(data, index=False)
    flags = ["--kind", "poisson", "--set", "exposure=days", "--set", "weight=w", "--l2", "0"]
    done = runner.invoke(app, ["fit", str(data), *ARGUMENTS, *flags, "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert "Model: poisson" in done.output
    assert "Poisson" in done.output
    page = (out / "report.html").read_text(encoding="utf-8")
    for words in (
        "exposure column",
        "weight column",
        "logarithm of the rate per standard deviation",
        "rate ratio",
    ):
        assert words in page
    model = fs.Model.load(out / "model.json")
    wanted = fs.fit(
        table(), target="poisson", client="site", features=FEATURES, kind="poisson", exposure="days", weight="w",
        l2=0,
    )  # fmt: skip
    np.testing.assert_allclose(model.summary().coef, wanted.summary().coef, rtol=1e-8)
    scored = runner.invoke(app, ["score", str(out / "model.json"), str(data), "--out", str(tmp_path / "p.csv")])
    assert scored.exit_code == 0, scored.output
    assert "mean deviance" in scored.output
    np.testing.assert_allclose(pd.read_csv(tmp_path / "p.csv")["prediction"], model.predict(table()), rtol=1e-9)
    inspected = runner.invoke(app, ["inspect", str(data), *ARGUMENTS, *flags])
    assert inspected.exit_code == 0, inspected.output
    planned = runner.invoke(app, ["plan", str(data), *ARGUMENTS, "--set", "kind=poisson", *flags[2:]])
    assert planned.exit_code == 0, planned.output


REFUSED: list[tuple[dict[str, Any], list[str], str]] = [
    ({"poisson": -1}, [], "--kind poisson is for counts, which must not be negative, but the target 'poisson'"),
    (
        {"poisson": 0.5},
        [],
        "has 500 values that are not whole numbers; give counts and their --set exposure=...",
    ),
    ({"poisson": 0}, [], "the target 'poisson' is 0 in all rows"),
    ({"poisson": 0}, ["--kind", "gamma"], "--kind gamma is for positive amounts, which must be positive"),
    ({"days": 0.0}, ["--set", "exposure=days"], "exposure must be positive, but column 'days' goes down to 0"),
    ({"w": -2.0}, ["--set", "weight=w"], "weight must be positive, but column 'w' goes down to -2"),
    (
        {"days": [np.nan, *[1.0] * 499]},
        ["--set", "exposure=days"],
        "the exposure column 'days' has missing values",
    ),
    ({"days": "a"}, ["--set", "exposure=days"], "the exposure column 'days' must hold numbers"),
    ({}, ["--set", "exposure=hours"], "no column 'hours'"),
    (
        {},
        ["--set", "exposure=days", "--set", "offset=known"],
        "pass either --set exposure=... or --set offset=...",
    ),
    ({}, ["--set", "exposure=days", "--kind", "ridge"], "exposure is for --kind poisson and --kind gamma"),
    ({}, ["--set", "weight=site"], "weight names column 'site', which is the client too"),
    ({}, ["--set", "weight=age"], "column 'age' holds the weights and cannot be a feature too"),
    ({"age": 7.0}, [], "column 'age' has the same number in all rows"),
]


@pytest.mark.parametrize(("change", "flags", "sentence"), REFUSED)
def test_what_cannot_be_fitted_is_one_sentence(
    change: dict[str, Any], flags: list[str], sentence: str, tmp_path: Path
) -> None:
    data = tmp_path / "visits.csv"
    table().assign(**change).to_csv(data, index=False)
    kind = [] if "--kind" in flags else ["--kind", "poisson"]
    done = runner.invoke(app, ["fit", str(data), *ARGUMENTS, *kind, *flags, "--out", str(tmp_path / "out")])
    assert done.exit_code == 2
    assert sentence in done.output
    assert done.output.count("error:") == 1


def test_offsets_are_refused_for_more_than_two_classes() -> None:
    data = table().assign(ward=np.arange(500) % 3)
    with pytest.raises(InvalidInput, match="offsets are not supported for more than two classes"):
        fs.fit(data, target="ward", client="site", features=["age"], offset="known", kind="logistic")
