"""Plans at the edges: no noise, clients that stand out among many, single rounds, a few records."""

from typing import Any

import numpy as np
import pytest

import fedscaffold as fs
from benchmarks.plans import plan_case
from fedscaffold.core.errors import OutOfReach
from fedscaffold.core.random.batches import Batches
from fedscaffold.problems import Logistic, Ridge
from fedscaffold.theory.planning.linear_model import representatives
from fedscaffold.theory.planning.stability import Stability
from fedscaffold.theory.prediction.setting import setting
from tests.theory.planning.test_plan import mixed, simulated_share


def test_a_plan_without_noise() -> None:
    problem = mixed(Logistic, 5, n_clients=3, dim=2)
    n = int(problem.sizes.min())
    whole = Logistic(
        [problem.x[a : a + n] for a in problem.offsets[:-1]],
        [problem.y[a : a + n] for a in problem.offsets[:-1]],
        l2=0.1,
    )
    plan = fs.plan(whole, target_mse=1e-3, batch_size=n, sampling="without_replacement", max_local_steps=64)
    assert 0.5e-3 < fs.run(whole, plan.method, rounds=plan.rounds).mse[0, -1] < 1.05e-3


@pytest.mark.parametrize("l2", [0.0, 1e-8])
def test_a_plan_where_a_model_fits_all_records(l2: float) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3, 9, 3))
    problem = Ridge(X, X @ rng.normal(size=3), l2=l2)
    plan = fs.plan(problem, target_mse=1e-3, batch_size=1)
    share, error = simulated_share(problem, plan, 1, 4000)
    assert error < 0.15  # a heavy-tailed product of random matrices
    assert share < 1.05 + 3 * error


def crowd(loud: str) -> Ridge:
    rng = np.random.default_rng(3)
    X = rng.normal(size=(100, 20, 2))
    weights = np.ones(100)
    if loud == "weight":
        weights[37] = 0.83 / 0.17 * 99
    else:
        X[37] *= 10.0
    y = np.einsum("cnd,d->cn", X, np.array([1.0, -1.0])) + X[..., 0] * rng.normal(size=(100, 1)) * 0.2
    return Ridge(X, y + 0.3 * rng.normal(size=(100, 20)), l2=0.05, weights=weights)


@pytest.mark.parametrize("loud", ["weight", "features"])
def test_a_client_that_stands_out_is_seen_among_many(loud: str) -> None:
    problem = crowd(loud)
    target = 0.02 * float(problem.optimum() @ problem.optimum())
    plan = fs.plan(problem, target_mse=target, batch_size=4, max_local_steps=128)
    share, error = simulated_share(problem, plan, 4, 400)
    assert error < 0.06
    assert 0.5 < share < 1.05 + 2 * error


def test_clients_that_stand_for_all_carry_their_weights_and_noise() -> None:
    rng = np.random.default_rng(0)
    w = rng.uniform(0.5, 1.5, size=500)
    w /= w.sum()
    curvatures, slopes = rng.uniform(size=(500, 1)) * np.ones(2), rng.normal(size=(500, 2))
    curvatures[123] *= 100.0
    noise = rng.uniform(size=(500, 1, 1)) * np.eye(2)
    noise[77] *= 30.0
    clients, weights, own = representatives(w, curvatures, slopes, noise)
    assert {77, 123} <= set(clients)
    assert clients.size < 100
    assert weights.sum() == pytest.approx(1.0)
    traces = np.trace(noise, axis1=1, axis2=2)
    assert weights * own @ traces[clients] == pytest.approx(w**2 @ traces)


def test_a_round_is_saved_where_rounds_are_dear() -> None:
    problem = mixed(Ridge, 4, n_clients=4, dim=2)
    plan = fs.plan(problem, target_mse=0.005, batch_size=5, max_local_steps=64, round_cost=1000)
    assert plan.rounds == 1


def test_two_clients_of_two_records_reach_the_target_and_no_less() -> None:
    problem = Logistic([[[1.0], [-0.5]], [[0.7], [1.2]]], [[1.0, 1.0], [-1.0, 1.0]], l2=0.05)
    target = 0.2 * float(problem.optimum() @ problem.optimum())
    plan = fs.plan(problem, target_mse=target, batch_size=1)
    share, error = simulated_share(problem, plan, 1, 4000)
    assert error < 0.05
    assert 0.5 < share < 1.1


def test_a_plan_keeps_away_from_steps_whose_noise_feeds_on_itself() -> None:
    """One client of 150 has features ten times as large, and single records: its own steps limit the step size."""
    case = plan_case(14)
    plan = fs.plan(case.problem, progress=False, **case.request)
    share, error = simulated_share(case.problem, plan, 1, 40)
    assert share < 1.05 + 2 * error
    longer = plan_case(22)  # ridge, 150 clients: a long round would grow to 1e25
    plan = fs.plan(longer.problem, progress=False, **longer.request)
    share, error = simulated_share(longer.problem, plan, 1, 20)
    assert error < 0.15
    assert 0.4 < share < 1.05 + 2 * error


def test_noise_that_feeds_on_itself_limits_step_sizes_exactly() -> None:
    """For one feature and single records the second moment grows by mean (1 − γx²)² in a step."""
    x = np.array([0.3, 1.0, 2.0, 0.7])
    problem = Ridge([x[:, None]], [x], l2=0.0)
    found = Stability.of(setting(problem, fs.Scaffold(step_size=1.0, local_steps=1), Batches(1)))
    assert found is not None
    expected = [np.mean((1.0 - gamma * x**2) ** 2) for gamma in found.gammas]
    np.testing.assert_allclose(found.growth, expected, rtol=1e-9)
    assert found.growth[-1] < 1.0 < found.growth[-2]
    assert found.limit(1) > found.limit(1000)
    largest = 2.0 * np.mean(x**2) / np.mean(x**4)  # where the mean is 1
    assert found.limit(100_000) == pytest.approx(largest / 1.5, rel=0.1)


def test_rounds_are_extrapolated_where_noise_overshoots() -> None:
    case = plan_case(19)
    plan = fs.plan(case.problem, progress=False, **case.request)
    assert plan.predicted_mse <= plan.target_mse


def test_refusals_of_plans_are_of_a_kind_of_their_own() -> None:
    problem = mixed(Ridge, 7, n_clients=4, dim=2)
    options: dict[str, Any] = {"target_mse": 1e-9, "batch_size": 5, "max_rounds": 20, "max_local_steps": 8}
    for mode in ("sharp", "first_order"):
        with pytest.raises(OutOfReach):
            fs.plan(problem, mode=mode, **options)


@pytest.mark.parametrize("seed", [3011, 3019])
def test_curvatures_on_the_way_may_be_too_large_for_a_step_size(seed: int) -> None:
    """Logistic clients of which one has features ten times as large: at θ = 0 it is far more curved than at θ*."""
    case = plan_case(seed)
    plan = fs.plan(case.problem, progress=False, **case.request)
    assert plan.predicted_mse <= plan.target_mse
