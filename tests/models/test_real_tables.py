"""Real tables through `fs.fit` and a study in one process: the numbers of statsmodels on pooled rows."""

from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedscaffold as fs
from tests.inference.data_sets import DATA_SETS
from tests.inference.test_against_statsmodels import COVARIANCES, assert_equal, data, fitted

FAST = ("grunfeld", "spector", "committee", "scotland")
ALL = [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in DATA_SETS]


@cache
def table(name: str) -> tuple[pd.DataFrame, dict[str, Any]]:
    """The rows with a column of clients, and the options that a fit needs."""
    given = data(name)
    frame = pd.DataFrame(given.X[:, :-1], columns=[f"c{j}" for j in range(given.X.shape[1] - 1)])
    classes = given.kind in ("logistic", "multinomial")
    frame["target"] = given.y.astype(np.int64) if classes else given.y
    if given.kind == "poisson":
        frame["target"] = given.y.round()
    options: dict[str, Any] = {"target": "target", "kind": "logistic" if classes else given.kind, "l2": 0.0}
    if given.offset is not None:
        frame["exposure"] = np.exp(given.offset)
        options["exposure"] = "exposure"
    return frame.assign(client=given.clients), options


@pytest.mark.parametrize("name", ALL)
def test_fits_equal_statsmodels(name: str) -> None:
    frame, options = table(name)
    fit = fs.fit(frame, client="client", min_rows=1, **options)
    assert fit.reached
    cov: Any
    for cov in COVARIANCES:
        assert_equal(fit.summary(cov), fitted(name, cov))


@pytest.mark.parametrize("name", ALL)
def test_studies_equal_statsmodels(name: str) -> None:
    frame, options = table(name)
    tables = {str(site): own.drop(columns="client") for site, own in frame.groupby("client")}
    study = fs.federation.Study(evaluate=0.0, min_cell=1, **options)
    result = study.run(tables, engine="reference")
    assert result.reached
    cov: Any
    for cov in COVARIANCES:
        assert_equal(result.summary(cov), fitted(name, cov))
