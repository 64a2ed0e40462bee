"""The compiled loss derivatives, read off a single local step."""

import numpy as np
import pytest
from scipy.special import expit

from fedscaffold.core.random.stream import Batches
from fedscaffold.core.types import Array
from fedscaffold.engines import Native
from fedscaffold.problems import Logistic, Ridge


def derivative(problem: Ridge | Logistic) -> Array:
    """ℓ' of each client's only record x = (z, 1), at θ = (1, 0): the second coordinate of θ − γg is −γℓ'(z)."""
    with Native().open(problem, Batches(), seed=0) as local_sgd:
        theta = np.array([[1.0, 0.0]])
        local = local_sgd(theta, np.zeros((1, 1, 2)), step_size=1.0, local_steps=1, round=0)
    return -local[0, :, 1]


def records(z: Array) -> Array:
    return np.stack([z, np.ones_like(z)], axis=-1)[:, None, :]


@pytest.mark.parametrize("label", [-1.0, 1.0])
def test_logistic_at_any_margin(label: float) -> None:
    rng = np.random.default_rng(0)
    z = np.concatenate([np.linspace(-800, 800, 3001), rng.uniform(-40, 40, 3000), rng.normal(size=3000) * 1e-3])
    y = np.full(z.size, label)
    found = derivative(Logistic(records(z), y[:, None], l2=0.0))
    # Below e^-700 only "almost nothing" is asked for.
    np.testing.assert_allclose(found, -y * expit(-y * z), rtol=1e-13, atol=1e-300)


def test_ridge_is_exact() -> None:
    rng = np.random.default_rng(0)
    z, y = rng.normal(size=(2, 1000)) * 100
    np.testing.assert_array_equal(derivative(Ridge(records(z), y[:, None])), z - y)
