"""Plans at the edges: no noise, clients that stand out among many, single rounds, a few records."""

import numpy as np
import pytest

import fedscaffold as fs
from fedscaffold.problems import Logistic, Ridge
from fedscaffold.theory.planning.linear_model import representatives
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
    hessians, slopes = rng.uniform(size=(500, 1, 1)) * np.eye(2), rng.normal(size=(500, 2))
    hessians[123] *= 100.0
    clients, weights, own = representatives(w, hessians, slopes)
    assert 123 in clients
    assert clients.size < 100
    assert weights.sum() == pytest.approx(1.0)
    assert weights @ own == pytest.approx(w @ w)


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
