"""Standard errors from sites that never pooled, against statsmodels on the pooled rows."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedscaffold.core.errors import InvalidInput
from fedscaffold.federation import Study
from fedscaffold.federation.client.rules import SiteRules
from fedscaffold.federation.study.certificate import certify
from fedscaffold.inference import closing_sums
from tests.federation.study.tables import TABLES, deal

sm = pytest.importorskip("statsmodels.api")


def pooled_fit(rows: pd.DataFrame, kind: str, **options: Any) -> Any:
    """Statsmodels' fit of the same model, with the most frequent ward as the reference."""
    x = rows.drop(columns="y")
    if "ward" in x:
        x = pd.concat(
            [pd.get_dummies(x.pop("ward"), prefix="ward", prefix_sep="=").drop(columns="ward=north"), x], axis=1
        )
    x = sm.add_constant(x.astype(float)).rename(columns={"const": "intercept"})
    if kind == "ridge":
        return sm.OLS(rows["y"], x).fit(**options)
    second = sorted(rows["y"].unique())[1]
    return sm.GLM((rows["y"] == second).astype(float), x, family=sm.families.Binomial()).fit(tol=1e-14, **options)


@pytest.mark.parametrize(("name", "how"), [("wards", "features"), ("diabetes", "labels")])
@pytest.mark.parametrize("cov", ["nonrobust", "HC0", "cluster"])
def test_coefficients_and_standard_errors_are_those_of_statsmodels(name: str, how: str, cov: Any) -> None:
    frame, kind = TABLES[name]()
    sites = deal(frame, 6, how, seed=1)
    result = Study(target="y", kind=kind, l2=0.0, evaluate=0.0, min_cell=1).run(
        sites, rules=SiteRules(by_the_clock=False, min_cell=1), engine="reference"
    )
    rows = pd.concat(sites.values(), ignore_index=True)
    options: dict[str, Any] = {"cov_type": cov}
    if cov == "cluster":
        options["cov_kwds"] = {"groups": np.repeat(np.arange(6), [len(table) for table in sites.values()])}
    expected = pooled_fit(rows, kind, **options)
    found = result.summary(cov=cov).to_frame()
    assert set(found.index) == set(expected.params.index)
    se = expected.bse[found.index]
    np.testing.assert_array_less(np.abs(found["coef"] - expected.params[found.index]) / se, 1e-6)
    np.testing.assert_allclose(found["se"], se, rtol=1e-5)
    assert (found["optimisation_error"] <= 1e-6 * found["se"]).all()


def test_without_hessians_there_are_no_standard_errors() -> None:
    frame, kind = TABLES["wards"]()
    rules = SiteRules(by_the_clock=False, allow_hessians=False)
    result = Study(target="y", kind=kind, evaluate=0.0).run(
        deal(frame, 3, "even", seed=1), rules=rules, engine="reference"
    )
    with pytest.raises(InvalidInput, match="Hessians"):
        result.summary()


@pytest.mark.parametrize("trainer", ["newton", "scaffold"])
def test_a_value_that_is_rare_at_one_site_only_needs_no_penalty(trainer: Any) -> None:
    """The site merges it into "(other)", which then is the value of no row, since other sites name it."""
    frame, kind = TABLES["wards"]()
    sites = deal(frame, 4, "even", seed=1)
    first = sites["site 0"]
    sites["site 0"] = first.drop(index=first.index[first["ward"] == "west"][3:]).reset_index(drop=True)
    study = Study(target="y", kind=kind, l2=0.0, evaluate=0.0, trainer=trainer)
    result = study.run(sites, engine="reference")
    assert "ward=(other)" in result.agreement.encoding.names
    expected = pooled_fit(pd.concat(sites.values(), ignore_index=True), kind)
    found = result.summary().to_frame()
    assert set(found.index) == set(expected.params.index)
    se = expected.bse[found.index]
    np.testing.assert_array_less(np.abs(found["coef"] - expected.params[found.index]) / se, 1e-6)
    np.testing.assert_allclose(found["se"], se, rtol=1e-5)
    assert "penalty" not in str(result.summary())


@pytest.mark.parametrize(("name", "size", "exactness"), [("diabetes", 1.0, 1e-9), ("made, rare", 1e-4, 1e-2)])
def test_certificates_say_how_far_a_model_is_from_the_pooled_one(name: str, size: float, exactness: float) -> None:
    """Of a linear regression exactly, else nearly; intercepts, which are large for rare outcomes, do not count."""
    frame, kind = TABLES[name]()
    sites = deal(frame, 3, "even", seed=1)
    result = Study(target="y", kind=kind, evaluate=0.0, l2=0.01).run(sites, engine="reference")
    problem = result.agreement.problem(pd.concat(sites.values(), ignore_index=True))
    optimum = problem.optimum()
    away = optimum + size * np.random.default_rng(0).normal(size=optimum.size)
    found = certify(closing_sums(problem, away), result.agreement)
    assert found.decrement == pytest.approx(problem.loss(away) - problem.loss(optimum), rel=exactness)
    off = np.linalg.norm((away - optimum)[:-1]) / np.linalg.norm(optimum[:-1])
    assert found.relative_error == pytest.approx(off, rel=exactness)
