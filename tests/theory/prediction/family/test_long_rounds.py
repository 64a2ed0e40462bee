"""Long rounds: noise at a few nodes instead of every step, and neighbouring numbers of steps taken together."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import fedscaffold as fs
from fedscaffold.core.random.batches import Batches
from fedscaffold.problems import Ridge
from fedscaffold.theory.prediction.family import stationary_law
from fedscaffold.theory.prediction.family.family_setting import family_setting
from fedscaffold.theory.prediction.family.linear_method import MOST_COUNTS, grouped_counts
from fedscaffold.theory.prediction.family.local_law import relinearised
from fedscaffold.theory.prediction.family.predict_family import error_curve
from tests.planning.problems import mixed

METHODS: dict[str, Any] = {
    "a cohort": fs.Scaffold(step_size=0.02, local_steps=150, cohort=2),
    "exchanged gradients": fs.FedLin(step_size=0.02, local_steps=150, correction_gradients="minibatch"),
    "steps of their own": fs.Scaffold(step_size=0.02, local_steps=[150, 80, 20]),
}


@pytest.mark.parametrize("name", METHODS)
def test_nodes_say_what_every_step_says(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    s = family_setting(mixed(Ridge, 3, n_clients=3, dim=2), METHODS[name], Batches(2, "with_replacement"))
    asked: list[bool] = []

    def noticed(setting: Any, *arguments: Any) -> Any:
        asked.append(setting.step_by_step)
        return relinearised(setting, *arguments)

    monkeypatch.setattr(stationary_law, "relinearised", noticed)
    at_nodes = error_curve(s, 6)
    monkeypatch.setattr(stationary_law, "LONG_ROUND", 10**6)
    step_by_step = error_curve(s, 6)
    assert set(asked) == {False, True}
    np.testing.assert_allclose(at_nodes, step_by_step, rtol=1e-6)
    without_noise = error_curve(replace(s, factors=np.zeros(3)), 6)  # which is not what the above compares
    assert np.abs(step_by_step[1:] / without_noise[1:] - 1.0).max() > 0.05


def test_noise_that_fades_slowly_is_followed_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """With γ near the largest that is stable, noise that feeds noise fades more slowly than 1 − γG does."""
    x = np.array([[1.0]] * 9 + [[6.0]])
    problem = Ridge([x], [np.linspace(-1.0, 1.0, 10)], l2=0.0)
    squares = np.square(x[:, 0])
    gamma = 0.95 * 2.0 * squares.mean() / np.square(squares).mean()
    method = fs.FedAvg(step_size=float(gamma), local_steps=300)
    s = family_setting(problem, method, Batches(1, "with_replacement"))
    found = error_curve(s, 4)
    monkeypatch.setattr(stationary_law, "BETWEEN_NODES", np.inf)
    by_nodes = error_curve(s, 4)
    y, theta = problem.y, float(problem.optimum()[0])
    mean, square, expected = -theta, theta**2, [theta**2]
    for _ in range(4):
        for _ in range(300):
            slope, shift = 1.0 - gamma * squares, gamma * x[:, 0] * (y - x[:, 0] * theta)
            square = (slope**2).mean() * square + 2.0 * (slope * shift).mean() * mean + (shift**2).mean()
            mean = slope.mean() * mean + shift.mean()
        expected.append(square)
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    assert np.abs(by_nodes / expected - 1.0).max() > 0.01


def test_numbers_of_steps_that_go_together_keep_mean_and_powers() -> None:
    h = np.arange(1, 2000)
    p = 0.995**h / (0.995**h).sum()
    values, shares = grouped_counts(h, p)
    assert values.size < MOST_COUNTS
    assert shares.sum() == pytest.approx(1.0, abs=1e-12)
    assert values @ shares == pytest.approx(float(h @ p), rel=1e-12)
    for base in (-0.5, 0.5, 0.9, 0.99, 0.999):
        assert (shares @ base**values) == pytest.approx(float(p @ base**h), rel=1e-4)


def test_few_numbers_of_steps_stay_as_they_are() -> None:
    values, shares = grouped_counts(np.arange(1, MOST_COUNTS + 1), np.full(MOST_COUNTS, 1 / MOST_COUNTS))
    assert values.size == MOST_COUNTS
    assert shares[0] == 1 / MOST_COUNTS
