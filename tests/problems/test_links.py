"""The links σ, softmax and its logarithm against SciPy, over all that float64 can hold."""

import numpy as np
import pytest
from scipy import special

from fedscaffold.core.types import Array
from fedscaffold.problems.base import expit, log_softmax, softmax


def test_expit() -> None:
    z = np.concatenate(
        [np.linspace(-700, 700, 20_001), np.linspace(-1, 1, 1001), [-np.inf, np.inf, -800.0, 800.0]]
    )
    np.testing.assert_allclose(expit(z), special.expit(z), rtol=1e-15, atol=1e-300)
    assert np.isnan(expit(np.array([np.nan]))).all()


@pytest.mark.parametrize("scale", [1e-3, 1.0, 50.0, 1e5])
def test_softmax_and_its_logarithm(scale: float) -> None:
    z: Array = scale * np.random.default_rng(0).normal(size=(2000, 7))
    np.testing.assert_allclose(softmax(z), special.softmax(z, axis=1), rtol=1e-14, atol=1e-300)
    np.testing.assert_allclose(log_softmax(z), special.log_softmax(z, axis=1), rtol=1e-14, atol=1e-15)


def test_rows_with_infinite_margins() -> None:
    z = np.array([[0.0, -np.inf, 1.0], [-np.inf, -np.inf, 0.0]])
    np.testing.assert_allclose(softmax(z), special.softmax(z, axis=1), rtol=1e-15)
    np.testing.assert_allclose(log_softmax(z), special.log_softmax(z, axis=1), rtol=1e-15)
