"""An intercept for each client: the slopes of pooled rows with one indicator column per client."""

import json
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from typer.testing import CliRunner

import fedscaffold as fs
from fedscaffold.cli.main import app
from fedscaffold.core.errors import InvalidInput

COVARIANCES = ("nonrobust", "HC0", "HC1", "cluster")
CASES: dict[str, dict[str, Any]] = {
    "ridge": {"kind": "ridge"},
    "logistic": {"kind": "logistic"},
    "poisson": {"kind": "poisson", "exposure": "days", "weight": "w"},
    "gamma": {"kind": "gamma"},
}
LEVELS = {"A": -1.0, "B": 0.2, "C": 0.7, "D": 1.6}


@cache
def table() -> pd.DataFrame:
    """Clients whose levels differ, and whose ages differ with them: a common intercept would be wrong."""
    rng = np.random.default_rng(8)
    n = 600
    made = pd.DataFrame({"site": rng.choice(list(LEVELS), n, p=[0.4, 0.3, 0.2, 0.1])})
    level = made["site"].map(LEVELS)
    made["age"] = rng.normal(60 + 4 * level, 10, n)
    made["ward"] = rng.choice(["x", "y"], n, p=[0.6, 0.4])
    made["days"], made["w"] = rng.uniform(1, 9, n), rng.uniform(0.4, 2.5, n)
    margin = level + 0.03 * (made["age"] - 60) + 0.4 * (made["ward"] == "y")
    made["ridge"] = 10 * margin + rng.normal(size=n)
    made["logistic"] = np.where(margin - 0.5 + rng.logistic(size=n) > 0, "yes", "no")
    made["poisson"] = rng.poisson(made["days"] * np.exp(margin - 1.5))
    made["gamma"] = rng.gamma(2.0, np.exp(margin))
    return made


@cache
def fitted(kind: str) -> fs.models.Fit:
    return fs.fit(
        table(), target=kind, client="site", features=["age", "ward"], l2=0, client_intercepts=True, **CASES[kind]
    )


@cache
def pooled(kind: str, cov: str) -> Any:
    data, options = table(), CASES[kind]
    X = pd.DataFrame({"age": data["age"], "ward=y": (data["ward"] == "y") * 1.0})
    for site in LEVELS:
        X[site] = (data["site"] == site) * 1.0
    kwds = {"groups": np.unique(data["site"], return_inverse=True)[1]} if cov == "cluster" else None
    settings = {"cov_type": cov, "cov_kwds": kwds}
    if kind == "ridge":
        return sm.OLS(data[kind], X).fit(**settings)
    family: Any = {
        "poisson": sm.families.Poisson(),
        "gamma": sm.families.Gamma(sm.families.links.Log()),
        "logistic": sm.families.Binomial(),
    }[kind]
    y = (data[kind] == "yes") * 1.0 if kind == "logistic" else data[kind]
    more = {"var_weights": data["w"], "exposure": data["days"]} if "weight" in options else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return sm.GLM(y, X, family=family, **more).fit(tol=1e-15, **settings)


@pytest.mark.parametrize("cov", COVARIANCES)
@pytest.mark.parametrize("kind", CASES)
def test_slopes_are_those_of_one_indicator_per_client(kind: str, cov: Any) -> None:
    summary, wanted = fitted(kind).summary(cov), pooled(kind, cov)
    assert summary.names == ("age", "ward=y")
    params, se = wanted.params[:2], wanted.bse[:2]
    assert (np.abs(summary.coef - params) / se).max() < 1e-6
    np.testing.assert_allclose(summary.se, se, rtol=1e-5)
    np.testing.assert_allclose(summary.p, wanted.pvalues[:2], rtol=0, atol=1e-6)
    if cov == "nonrobust":
        assert summary.statistics.log_likelihood == pytest.approx(wanted.llf, rel=1e-9)
    assert summary.facts["client intercepts"] == "4"


def test_client_intercepts_are_trained_by_newtons_method() -> None:
    fit = fitted("poisson")
    assert fit.reached
    assert fit.trained.notes[0] == "Training is by Newton's method, as client_intercepts requires."


@pytest.mark.parametrize("kind", CASES)
def test_a_client_fits_its_intercept_to_its_own_rows(kind: str, tmp_path: Path) -> None:
    fitted(kind).model.save(tmp_path / "model.json")
    model = fs.Model.load(tmp_path / "model.json")
    assert model == fitted(kind).model
    with pytest.raises(InvalidInput, match="the model does not hold the clients' intercepts"):
        model.predict(table())
    own = table().query("site == 'C'")
    local = model.with_intercept_of(own)
    found = local.predict_proba(own)[:, 1] if kind == "logistic" else local.predict(own)
    np.testing.assert_allclose(found, pooled(kind, "nonrobust").fittedvalues[own.index], rtol=1e-6)


def test_no_intercept_is_in_the_model_file_or_the_summary() -> None:
    """The file holds slopes; no number in it depends on the level of one client."""
    content = json.loads(fitted("ridge").model.to_json())
    assert content["client_intercepts"] is True
    shifted = table().assign(ridge=table()["ridge"] + 1000.0 * (table()["site"] == "B"))
    other = fs.fit(
        shifted,
        target="ridge",
        kind="ridge",
        client="site",
        features=["age", "ward"],
        l2=0,
        client_intercepts=True,
    )
    np.testing.assert_allclose(other.summary().coef, fitted("ridge").summary().coef, rtol=1e-6)
    np.testing.assert_allclose(other.summary().se, fitted("ridge").summary().se, rtol=1e-6)


def test_clients_whose_target_never_varies_are_left_out_and_counted() -> None:
    data = table().assign(logistic=np.where(table()["site"] == "D", "no", table()["logistic"]))
    fit = fs.fit(data, target="logistic", client="site", features=["age", "ward"], l2=0, client_intercepts=True)
    without = fs.fit(
        data.query("site != 'D'"), target="logistic", client="site", features=["age", "ward"], l2=0,
        client_intercepts=True,
    )  # fmt: skip
    np.testing.assert_allclose(fit.summary().coef, without.summary().coef, rtol=1e-6)
    np.testing.assert_allclose(fit.summary().se, without.summary().se, rtol=1e-6)
    assert any("1 client was left out" in note for note in fit.summary().notes)


REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"age": [60.0 if site == "A" else 50.0 for site in table()["site"]]}, {}, "same in all rows of each client"),
    ({"poisson": 0, "days": 1.0}, {"kind": "logistic", "target": "ward", "features": ["days"]}, "same number"),
    ({}, {"target": "three", "kind": "logistic"}, "client_intercepts does not support more than two classes"),
]


@pytest.mark.parametrize(("change", "options", "sentence"), REFUSED)
def test_what_client_intercepts_cannot_fit(change: dict[str, Any], options: dict[str, Any], sentence: str) -> None:
    data = table().assign(three=np.arange(600) % 3, **change)
    given = {"target": "poisson", "kind": "poisson", "features": ["age"], **options}
    with pytest.raises(InvalidInput, match=sentence):
        fs.fit(data, client="site", l2=0, client_intercepts=True, **given)


def test_a_category_that_one_site_alone_has() -> None:
    """Beside the sites' own intercepts it has no coefficient of its own."""
    data = table().assign(unit=np.where(table()["site"] == "A", "special", "usual"))
    with pytest.raises(InvalidInput, match="'unit=special' is the same in all rows of each client"):
        fs.fit(
            data, target="poisson", kind="poisson", client="site", features=["age", "unit"], l2=0,
            client_intercepts=True,
        )  # fmt: skip


runner = CliRunner(env={"COLUMNS": "200"})


def test_the_command_line(tmp_path: Path) -> None:
    data, out = tmp_path / "visits.csv", tmp_path / "model"
    table().to_csv(data, index=False)
    own = tmp_path / "own.csv"
    table().query("site == 'C'").to_csv(own, index=False)
    flags = ["--target", "gamma", "--kind", "gamma", "--client", "site", "--features", "age,ward", "--l2", "0"]
    done = runner.invoke(app, ["fit", str(data), *flags, "--set", "client_intercepts=true", "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert "one for each client" in (out / "report.html").read_text(encoding="utf-8")
    assert "as client_intercepts requires" in done.output
    refused = runner.invoke(app, ["score", str(out / "model.json"), str(own)])
    assert refused.exit_code == 2
    assert "fit one to a client's rows with --intercept-of" in refused.output
    scored = runner.invoke(app, ["score", str(out / "model.json"), str(own), "--intercept-of", str(own)])
    assert scored.exit_code == 0, scored.output
    tested = runner.invoke(
        app,
        [
            "fit",
            str(data),
            *flags,
            "--set",
            "client_intercepts=true",
            "--test",
            str(own),
            "--out",
            str(tmp_path / "m2"),
        ],
    )
    assert tested.exit_code == 2
    assert "--test does not support client_intercepts" in tested.output
    inspected = runner.invoke(app, ["inspect", str(data), *flags, "--set", "client_intercepts=true"])
    assert inspected.exit_code == 0, inspected.output
