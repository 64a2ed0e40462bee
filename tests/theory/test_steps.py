"""Sums over local steps by a few nodes, for rounds of any length."""

import numpy as np
import pytest

from fedscaffold.theory.steps import steps


@pytest.mark.parametrize("H", [1, 2, 7, 100, 1024, 100_000])
@pytest.mark.parametrize("gamma", [0.001, 0.05, 0.5])
def test_constants_and_all_rates_are_followed(gamma: float, H: int) -> None:
    s = steps(gamma, H, largest=1.8)
    h = np.arange(H)
    every_step = s.rates[None, :] ** h[:, None] @ s.fit  # values at all steps from values at the nodes
    np.testing.assert_allclose(
        every_step @ np.ones(s.nodes.size), 1.0, rtol=1e-5
    )  # rounding, as rates are close together
    for rate in s.rates:
        np.testing.assert_allclose(every_step @ rate ** s.nodes.astype(float), rate**h, atol=1e-5)
