"""Studies of counts and amounts, with exposures, offsets and weights: the numbers of pooled rows."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedscaffold as fs
from fedscaffold.core.errors import InvalidInput
from fedscaffold.federation.study.plan import StudySettings
from tests.models import test_client_intercepts as intercepts
from tests.models.test_families import CASES, COVARIANCES, FEATURES, assert_equal, pooled, table


def tables(name: str) -> dict[str, pd.DataFrame]:
    options = CASES[name]
    columns = [*FEATURES, *options.values()]
    return {str(site): own[columns] for site, own in table().groupby("site")}


def study(name: str, **more: Any) -> fs.federation.Study:
    options = {"target": CASES[name]["kind"], **CASES[name], **more}
    return fs.federation.Study(**options)


@pytest.mark.parametrize("name", CASES)
def test_summaries_equal_statsmodels(name: str) -> None:
    result = study(name, trainer="newton").run(tables(name), engine="reference")
    assert result.reached
    cov: Any
    for cov in COVARIANCES:
        assert_equal(result.summary(cov), pooled(name, cov))


@pytest.mark.parametrize("name", ["poisson", "gamma"])
def test_scaffold_and_gradients_alone_lead_there_too(name: str) -> None:
    wanted = pooled(name, "nonrobust")
    trained = study(name, trainer="scaffold").run(tables(name), engine="reference")
    assert trained.reached
    assert any("Scaffold ran" in note for note in trained.trained.notes)
    by_gradients = study(name, tolerance=1e-4, hessians=False).run(tables(name), engine="reference")
    for result in (trained, by_gradients):
        own = np.array([*result.model.equations[0].coefficients, result.model.equations[0].intercept])
        assert (np.abs(own - wanted.params) / wanted.bse).max() < 1e-3


def test_the_model_predicts_and_quasi_poisson_has_a_dispersion() -> None:
    result = study("poisson").run(tables("poisson"), engine="reference")
    np.testing.assert_allclose(result.model.predict(table()), pooled("poisson", "HC0").fittedvalues, rtol=1e-8)
    assert_equal(result.summary(dispersion="pearson"), pooled("poisson", "nonrobust", scale="X2"))


def test_rows_left_out_are_evaluated() -> None:
    result = study("poisson", evaluate=0.3).run(tables("poisson"), engine="reference")
    assert all(np.isfinite(site.loss) and site.n_rows > 0 for site in result.evaluation.values())


@pytest.mark.parametrize(
    ("name", "change", "sentence"),
    [
        ("poisson", {"poisson": -1}, "the target 'poisson' must not be negative for kind='poisson'"),
        ("poisson", {"poisson": 0.5}, "the target 'poisson' must hold whole numbers for kind='poisson'"),
        ("poisson", {"days": 0.0}, "the exposure column 'days' must hold positive numbers in all rows"),
        ("gamma", {"gamma": 0.0}, "the target 'gamma' must be positive for kind='gamma'"),
        ("gamma", {"w": 0.0}, "the weight column 'w' must hold positive numbers in all rows"),
        ("weighted ridge", {"known": np.nan}, "the offset column 'known' must hold finite numbers in all rows"),
    ],
)
def test_tables_that_cannot_take_part(name: str, change: dict[str, Any], sentence: str) -> None:
    made = tables(name)
    made["B"] = made["B"].assign(**change)
    with pytest.raises(InvalidInput, match=f"site B: .*{sentence}"):
        study(name).run(made, engine="reference")


def test_exposures_must_be_numbers() -> None:
    made = tables("poisson")
    made["B"] = made["B"].assign(days="long")
    with pytest.raises(InvalidInput, match="site B: column 'days' must hold numbers"):
        study("poisson").run(made, engine="reference")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"kind": "logistic", "exposure": "days"}, "exposure is for kind='poisson' and kind='gamma'"),
        ({"kind": "poisson", "exposure": "days", "offset": "o"}, "pass either exposure=... or offset"),
        ({"kind": "probit"}, "kind must be 'ridge', 'logistic', 'poisson', 'gamma' or 'cox'"),
        ({"tolerance": "se:-1"}, "tolerance must be a number below 1, or such as 'se:0.05'"),
    ],
)
def test_settings_that_contradict_themselves(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        StudySettings(target="n", **options)


# an intercept for each site


@pytest.mark.parametrize("kind", intercepts.CASES)
def test_own_intercepts_are_one_indicator_per_site(kind: str) -> None:
    options = intercepts.CASES[kind]
    columns = ["age", "ward", *options.values()]
    tables = {str(site): own[columns] for site, own in intercepts.table().groupby("site")}
    study = fs.federation.Study(target=kind, client_intercepts=True, **options)
    result = study.run(tables, engine="reference")
    assert result.reached
    cov: Any
    for cov in COVARIANCES:
        summary, wanted = result.summary(cov), intercepts.pooled(kind, cov)
        assert summary.names == ("age", "ward=y")
        assert (np.abs(summary.coef - wanted.params[:2]) / wanted.bse[:2]).max() < 1e-6
        np.testing.assert_allclose(summary.se, wanted.bse[:2], rtol=1e-5)
    own = tables["C"]
    local = result.model.with_intercept_of(own)
    found = local.predict_proba(own)[:, 1] if kind == "logistic" else local.predict(own)
    np.testing.assert_allclose(found, intercepts.pooled(kind, "nonrobust").fittedvalues[own.index], rtol=1e-6)


def test_scaffold_does_not_fit_own_intercepts() -> None:
    with pytest.raises(InvalidInput, match="client_intercepts requires trainer='newton' or 'auto'"):
        StudySettings(target="n", client_intercepts=True, trainer="scaffold")
