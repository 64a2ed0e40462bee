"""Sums over local steps by a few nodes, for rounds of any length."""

import numpy as np
import pytest

from fedscaffold.theory.prediction.local_steps import steps


@pytest.mark.parametrize("H", [1, 2, 7, 100, 1024, 100_000])
@pytest.mark.parametrize("gamma", [0.001, 0.05, 0.5, 0.9])
@pytest.mark.parametrize("tolerance", [1e-4, 1e-6])
def test_all_powers_of_eigenvalues_and_of_their_products_are_followed(
    gamma: float, H: int, tolerance: float
) -> None:
    s = steps(gamma, H, 0.1, 1.8, tolerance)
    h = (
        np.arange(H)
        if H < 2000
        else np.unique([*np.geomspace(1, H, 500), *np.linspace(1, H, 500)]).astype(int) - 1
    )
    every_step = s.rates[None, :] ** h[:, None] @ s.fit  # values at these steps from values at the nodes
    g = 1.0 - gamma * np.linspace(0.1, 1.8, 12)
    rates = np.concatenate([[1.0], g, (g[:, None] * g[None, :]).ravel()])
    found = every_step @ rates ** s.nodes[:, None].astype(float)
    np.testing.assert_allclose(found, rates ** h[:, None], atol=30 * tolerance)


def test_noise_that_falls_is_followed_to_its_end() -> None:
    s = steps(0.05, 100, 0.5, 1.8, 1e-6)
    h = np.arange(100)
    every_step = s.rates[None, :] ** h[:, None] @ s.fit
    slowest = (1.0 - 0.05 * 0.5) ** 2.0
    assert slowest**99 < 0.01
    for g in 1.0 - 0.05 * np.linspace(0.5, 1.8, 12):
        found = every_step @ g ** (2.0 * s.nodes)
        assert np.abs(found / slowest**h - g ** (2.0 * h) / slowest**h).max() < 1e-5
