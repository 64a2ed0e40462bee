"""Truncation and standard errors on series whose truth is known."""

import numpy as np
import pytest

import fedscaffold as fs
from fedscaffold.core.types import Array
from fedscaffold.simulation.stages.stationarity import autocorrelation_time, plateau, stationary_from


def autoregression(phi: float, shape: tuple[int, int], seed: int) -> Array:
    """Stationary, mean 0, autocorrelation time (1 + φ)/(1 − φ)."""
    noise = np.random.default_rng(seed).standard_normal(shape)
    series = np.empty(shape)
    series[:, 0] = noise[:, 0] / np.sqrt(1 - phi**2)
    for t in range(1, shape[1]):
        series[:, t] = phi * series[:, t - 1] + noise[:, t]
    return series


@pytest.mark.parametrize("phi", [0.0, 0.5, 0.9])
def test_autocorrelation_time(phi: float) -> None:
    # the estimate's relative standard deviation is below 4 % at this length (simulated)
    assert autocorrelation_time(autoregression(phi, (20, 5000), 1)) == pytest.approx(
        (1 + phi) / (1 - phi), rel=0.16
    )


@pytest.mark.parametrize("phi", [0.0, 0.5, 0.9])
def test_the_plateau_is_within_its_standard_error(phi: float) -> None:
    transient = 50 * np.exp(-np.arange(400) / 15)
    scores = []
    for seed in range(100):
        series: Array = autoregression(phi, (3, 400), seed) + transient
        start = stationary_from(series)
        if start is not None:
            assert start >= 15
            found = plateau(series, start)
            scores.append(found.mean / found.standard_error)
    assert len(scores) > 90
    # 100 scores of standard deviation about 1.1: their root mean square leaves this range once in 10,000
    assert 0.75 < np.sqrt(np.mean(np.square(scores))) < 1.5


def test_what_still_moves_is_not_stationary() -> None:
    rounds: Array = np.arange(101.0)
    assert stationary_from(np.exp(-rounds / 3.0)[None]) is None
    assert stationary_from(np.exp(-rounds / 60.0)[None]) is None
    assert stationary_from(rounds[None]) is None
    assert stationary_from(np.full((1, 101), np.inf)) is None
    assert stationary_from(np.ones((2, 5))) is None  # too short to tell


def test_a_constant_is_stationary_and_exact() -> None:
    series = np.ones((2, 50))
    assert stationary_from(series) == 0
    assert plateau(series, 0).standard_error == 0.0


def test_on_a_run() -> None:
    problem = fs.problems.paper("classification", n_clients=10)
    trace = fs.run(problem, fs.Scaffold(step_size=0.05, local_steps=50), rounds=150, batch_size=10, repetitions=10)
    found = trace.plateau()
    assert found is not None
    assert found.from_round == trace.stationary_from()
    assert 10 < found.from_round < 75
    assert found.mean == pytest.approx(trace.mse[:, 100:].mean(), abs=5 * found.standard_error)
    short = fs.run(problem, fs.Scaffold(step_size=0.001, local_steps=5), rounds=30, batch_size=10)
    assert short.plateau() is None
