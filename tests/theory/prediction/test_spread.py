"""Covariances over many rounds at once, against one round after another."""

import numpy as np
import pytest

from fedscaffold.core.types import Array
from fedscaffold.theory.prediction.many_clients.spread import SpreadOfRounds


@pytest.mark.parametrize("points", [1, 6])
def test_traces_of_many_rounds_are_those_of_single_ones(points: int) -> None:
    """Noise on straight lines between the rounds at which it is found, and constant after the last of them."""
    rng, d = np.random.default_rng(0), 3
    size = points * d
    A = rng.normal(size=(size, size))
    A *= 0.97 / np.abs(np.linalg.eigvals(A)).max()

    def noise() -> Array:
        x = rng.normal(size=(size, size))
        return x @ x.T

    found, later = {t: noise() for t in (0, 1, 2, 4, 24, 100)}, noise()
    P, theta, traces = np.zeros((size, size)), np.tile(np.eye(d), points), [0.0]
    spread = SpreadOfRounds(A, d)
    places = list(found)
    for t in range(900):
        if t in found:
            spread.found(t, found[t])
        before = max(place for place in places if place <= t)
        after = min((place for place in places if place > t), default=None)
        W = found[before] if t == before else later
        if after is not None:
            W = found[before] + (t - before) / (after - before) * (found[after] - found[before])
        P = A @ P @ A.T + W
        traces.append(float(np.trace(theta @ P @ theta.T)))
    np.testing.assert_allclose(spread.traces(900, later), traces, rtol=1e-10)
    np.testing.assert_allclose(spread.traces(50, later), traces[:51], rtol=1e-10)


def test_a_guess_goes_on_with_the_last_noise() -> None:
    rng, d, points = np.random.default_rng(1), 2, 5
    A, W = 0.3 * rng.normal(size=(10, 10)), np.eye(10)
    spread, P, theta = SpreadOfRounds(A, d), np.zeros((10, 10)), np.tile(np.eye(d), points)
    spread.found(0, W)
    for _ in range(13):
        P = A @ P @ A.T + W
    np.testing.assert_allclose(spread.guess(13), theta @ P @ theta.T)
