"""Real tables through studies over Flower: the numbers of statsmodels on pooled rows."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedscaffold.federation import StudySettings
from fedscaffold.flower.study.run import LocalStudy
from tests.flower.study.studies import Deployment
from tests.inference.data_sets import DATA_SETS
from tests.inference.test_against_statsmodels import COVARIANCES, assert_equal, data, fitted
from tests.models.test_real_tables import ALL, table


def sites(name: str) -> tuple[dict[str, pd.DataFrame], dict[str, Any]]:
    """A table for each client, and the settings of a study of them."""
    frame, options = table(name)
    tables = {f"site-{client}": own.drop(columns="client") for client, own in frame.groupby("client")}
    return tables, {**options, "min_cell": 1, "l2": options.get("l2", 0.0)}


@pytest.mark.parametrize("name", ALL)
def test_studies_by_post_equal_statsmodels(name: str, tmp_path: Path) -> None:
    tables, settings = sites(name)
    policy = "[study]\nmin_rows = 1\nmin_cell = 1\nmin_sites = 2\n"
    deployed = Deployment(tmp_path, tables, policy=policy, **settings)
    with deployed.answering(tmp_path / "share"):
        result = deployed.conduct(tmp_path / "share")
    assert result.reached
    cov: Any
    for cov in COVARIANCES:
        assert_equal(result.summary(cov), fitted(name, cov))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in DATA_SETS if np.bincount(data(name).clients).min() >= 10])
def test_studies_of_real_processes_equal_statsmodels(name: str, tmp_path: Path) -> None:
    tables, settings = sites(name)
    files = {site: tmp_path / f"{site}.parquet" for site in tables}
    for site, own in tables.items():
        own.to_parquet(files[site], index=False)
    study = LocalStudy(tmp_path / "study", files, StudySettings(**settings), say=print)
    assert study.run().reached
    found, wanted = pd.read_parquet(study.out / "coefficients.parquet"), fitted(name, "nonrobust")
    params, se, p = (np.ravel(np.asarray(own), order="F") for own in (wanted.params, wanted.bse, wanted.pvalues))
    assert (np.abs(found["coef"] - params) / se).max() < 1e-6
    np.testing.assert_allclose(found["se"], se, rtol=1e-5)
    np.testing.assert_allclose(found["p"], p, rtol=0, atol=1e-6)
