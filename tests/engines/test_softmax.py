"""Several classes: records are read for up to ten of them at a time."""

from typing import Any

import numpy as np
import pytest

import fedscaffold as fs
from fedscaffold.engines import Native
from tests.samples import weighted


@pytest.mark.parametrize("n_classes", [2, 3, 6, 23])
@pytest.mark.parametrize("batch_size", [1, 11, None])
def test_any_number_of_classes(n_classes: int, batch_size: int | None) -> None:
    rng = np.random.default_rng(n_classes)
    X = [rng.normal(size=(n, 7)) for n in (12, 31, 19)]
    y = [rng.integers(n_classes, size=len(x)) for x in X]
    problem = fs.problems.Multinomial(X, y, n_classes=n_classes, l2=0.05, n_unpenalised=1)
    settings: Any = {"rounds": 3, "batch_size": batch_size, "repetitions": 2}
    method = fs.Scaffold(step_size=0.3, local_steps=9)
    wanted = fs.run(problem, method, engine="reference", **settings)
    found = fs.run(problem, method, engine=Native(), **settings)
    np.testing.assert_allclose(found.theta, wanted.theta, rtol=0, atol=1e-10)
    np.testing.assert_allclose(found.control_variates, wanted.control_variates, rtol=0, atol=1e-10)


@pytest.mark.parametrize(("dtype", "gap"), [("float64", 1e-10), ("float32", 1e-5)])
def test_a_single_weighted_record(dtype: Any, gap: float) -> None:
    """Its classes are side by side in a vector."""
    problem = weighted("multinomial", (12, 31, 19), 5)
    method = fs.Scaffold(step_size=0.1, local_steps=20)
    found, wanted = (
        fs.run(problem, method, rounds=3, batch_size=1, engine=engine).theta
        for engine in (Native(dtype=dtype), "reference")
    )
    np.testing.assert_allclose(found, wanted, rtol=0, atol=gap)


def test_margins_that_differ_by_more_than_the_exponential_reaches() -> None:
    """Shares are 0 or 1 there, and never NaN."""
    X, y = np.array([[[3e3], [-3e3]]]), np.array([[0, 1]])
    problem = fs.problems.Multinomial(X, y, n_classes=3, l2=0.1)
    method = fs.FedAvg(step_size=1.0, local_steps=5)
    found, wanted = (
        fs.run(problem, method, rounds=2, batch_size=2, engine=engine).theta for engine in ("native", "reference")
    )
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-10)
