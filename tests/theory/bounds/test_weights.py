"""Bounds for clients of unequal weight, against the exact plateau of ridge problems, which `predict` gives."""

import dataclasses
from typing import Any

import numpy as np
import pytest

import fedscaffold as fs
from fedscaffold.problems import Ridge
from fedscaffold.theory import constants
from fedscaffold.theory.bounds import ScaffoldBounds, complexity


def lopsided(n_clients: int, heaviest: float) -> Ridge:
    """Equal clients of which one has most of the weight; gradients are θ ± 1, so noise is the same everywhere."""
    x, y = np.ones((n_clients, 2, 1)), np.tile([0.0, 2.0], (n_clients, 1))
    rest = (1.0 - heaviest) / (n_clients - 1)
    return Ridge(x, y, weights=np.r_[heaviest, np.full(n_clients - 1, rest)])


def test_the_design_effect_is_n_times_the_sum_of_squared_weights() -> None:
    problem = lopsided(200, 0.9)
    assert constants(problem, batch_size=1).design_effect == pytest.approx(200 * (0.81 + 0.01 / 199))
    equal = fs.problems.RidgeStream(n_clients=5, dim=2)
    assert constants(equal, batch_size=1).design_effect == pytest.approx(1.0)


@pytest.mark.parametrize("proof", ["sharp", "paper"])
def test_one_client_of_most_weight_is_not_two_hundred_clients(proof: Any) -> None:
    """As if weights were equal, the bound is below what the method reaches; with them it is above."""
    problem = lopsided(200, 0.9)
    known = constants(problem, batch_size=1)
    setting: dict[str, Any] = {"step_size": 0.005, "local_steps": 2, "n_clients": 200}
    reached = fs.theory.predict(problem, fs.Scaffold(step_size=0.005, local_steps=2), batch_size=1).mse
    equal = dataclasses.replace(known, design_effect=1.0)
    found, as_if_equal = (
        ScaffoldBounds(each, **setting, proof=proof).stationary_covariance() for each in (known, equal)
    )
    assert found.holds
    assert as_if_equal.holds
    assert as_if_equal.value < reached <= found.value


@pytest.mark.parametrize("seed", range(12))
def test_bounds_hold_with_random_weights(seed: int) -> None:
    rng = np.random.default_rng(seed)
    N, d, H = int(rng.integers(2, 9)), int(rng.integers(1, 4)), int(rng.integers(1, 12))
    scale = rng.uniform(0.5, 1.5, size=(N, 1, 1))
    x = scale * rng.normal(size=(N, 10, d))
    y = x @ rng.normal(size=d) + rng.normal(size=(N, 10))
    problem = Ridge(x, y, l2=float(rng.uniform(0.5, 4)), weights=rng.dirichlet(np.full(N, 0.3)) + 1e-9)
    known = constants(problem, batch_size=2)
    gamma = 0.9 * min(1 / (24 * (known.L + known.mu)), known.mu / (4 * known.L * max(known.zeta2, 1e-9))) / H
    found = fs.theory.predict(problem, fs.Scaffold(step_size=gamma, local_steps=H), batch_size=2)
    bound = ScaffoldBounds(known, step_size=gamma, local_steps=H, n_clients=N).stationary_covariance()
    if bound.holds:
        assert found.mse <= bound.value
    crude = ScaffoldBounds(known, step_size=gamma, local_steps=H, n_clients=N).stationary_mse()
    assert crude.holds
    assert found.mse <= crude.value
    assert ScaffoldBounds(known, step_size=gamma / 50, local_steps=H, n_clients=N).stationary_covariance().holds


def test_certified_settings_reach_their_target_with_weights() -> None:
    problem = lopsided(20, 0.7)
    known = constants(problem, batch_size=1)
    optimum = problem.optimum()
    target = 0.05 * float(optimum @ optimum)
    plan = complexity(known, target=target, n_clients=20, squared_error=float(optimum @ optimum))
    method = fs.Scaffold(step_size=plan.step_size, local_steps=plan.local_steps)
    curve = fs.theory.predict(problem, method, batch_size=1, rounds=plan.rounds).curve
    assert curve is not None
    assert curve[-1] <= plan.bound.value <= target
