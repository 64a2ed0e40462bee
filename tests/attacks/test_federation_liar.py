"""A client that lies, and honest clients that look as if they did."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedscaffold as fs
from benchmarks.federation_attacks import DIRECTIONS, LIES, Clients, Lie, distances
from fedscaffold.federation import ClientUpdate, RoundRules, TrainRequest
from fedscaffold.federation.messages import Reply
from fedscaffold.federation.server.checks import STATES_DIFFER, excess, limits, weighted_median
from tests.federation.federation import Federation
from tests.samples import make

METHOD = fs.Scaffold(step_size=0.1, local_steps=5)


@pytest.mark.parametrize("n", [10, 5])
def test_pushes_of_one_client_do_not_add_up(n: int) -> None:
    """Without a limit on control variates the same pushes carry θ ever further away."""
    lie = LIES["away from the optimum"]
    limited = distances(Clients(n, 0.0, 1), rounds=60, lie=lie)[0]
    free = distances(Clients(n, 0.0, 1), rounds=60, lie=lie, states=False)[0]
    assert limited[59] < 1.2 * limited[39]
    assert free[59] > 1.3 * free[39]
    assert free[59] > 3.0 * limited[59]


def test_a_lie_in_one_round_is_small() -> None:
    quiet, once = distances(Clients(10, 0.0, 1), rounds=30, late=[Lie(way) for way in DIRECTIONS.values()])
    assert max(once) < 3.0 * float(np.sqrt(np.mean(np.square(quiet[-15:]))))


@pytest.mark.parametrize("lie", ["always the same", "away from the optimum, after a first step of 0"])
def test_a_lie_in_every_round_does_no_more_than_honest_work_on_extreme_rows(lie: str) -> None:
    """Which no server can tell from a client that has such rows: no rule can do better that leaves it alone."""
    extreme = []
    for way in np.concatenate([np.eye(5), -np.eye(5)]):
        clients = Clients(10, 1.0, 2)
        clients.extreme_rows(way)
        extreme.append(distances(clients, rounds=30, factor=None)[0][-1])
    assert distances(Clients(10, 1.0, 2), rounds=30, lie=LIES[lie])[0][-1] < 1.1 * max(extreme)


def test_a_control_variate_that_grew_in_the_first_round_is_taken_back(tmp_path: Path) -> None:
    """All updates are long there, and what one client pushed would stay for ever if its updates were shortened
    alone.
    """
    problem = make("ridge", (20,) * 6, 3)

    def event(request: TrainRequest, work: Callable[[], Reply]) -> Reply | None:
        reply = work()
        assert isinstance(reply, ClientUpdate)
        if request.client == 0:
            theta = request.server.theta[0]
            lie = 2.0 * theta - reply.vector if request.round == 0 else theta
            return replace(reply, vector=np.asarray(lie))
        return reply

    federations = [
        Federation(tmp_path / str(backup), problem, METHOD, batch_size=None, backup=backup, event=event,
                   rules=RoundRules())
        for backup in (True, False)
    ]  # fmt: skip
    optimum = problem.subset([1, 2, 3, 4, 5]).optimum()
    limited, free = (np.linalg.norm(f.run(40).server.theta[0] - optimum) for f in federations)
    assert limited < 0.7 * free
    first = federations[0]
    states = [first.backup.load(first.config, first.ledger, c).xi[0, 0] for c in range(6)]
    found = excess(np.array(states), problem.weights, STATES_DIFFER * 1.75, least=0.0)
    assert all(share > 0.99 for share, _ in found.values())


@pytest.mark.parametrize(
    "method", [METHOD, fs.TwoSidedScaffold(step_size=0.1, local_steps=5, server_step_size=1.0)]
)
def test_an_honest_client_whose_state_is_limited_is_told_so(tmp_path: Path, method: Any) -> None:
    """It goes on from the state that counts, also when server and clients restart; Σ w ξ = 0."""
    x, y = _one_is_different(9.0)
    problem = fs.problems.Ridge(x, y, l2=0.1)
    federation = Federation(tmp_path, problem, method, batch_size=None, rules=RoundRules())
    for rounds in (5, 10, 30):
        federation.run(rounds)
        federation.restart_server()
    limited = [client for result in federation.results for client in result.limited]
    assert set(limited) == {0}
    states = [federation.backup.load(federation.config, federation.ledger, c) for c in range(10)]
    correction = [method.correction(state, federation.ledger.server, None)[0, 0] for state in states]
    assert np.abs(problem.weights @ np.array(correction)).max() < 1e-13
    federation.run(31)
    for client in range(10):
        own = federation.client_states()[0][0, client]
        there = federation.backup.load(federation.config, federation.ledger, client)[0][0, 0]
        np.testing.assert_array_equal(own, there)


@pytest.mark.parametrize("n", [5, pytest.param(10, marks=pytest.mark.slow)])
@pytest.mark.parametrize("seed", [1, 2])
def test_an_honest_client_with_three_and_a_half_times_the_usual_control_variate_counts(
    tmp_path: Path, n: int, seed: int
) -> None:
    x, y = _one_is_different(3.5, n=n, seed=seed)
    problem = fs.problems.Ridge(x, y, l2=0.1)
    federation = Federation(tmp_path, problem, METHOD, batch_size=None, rules=RoundRules())
    federation.run(60)
    assert not any(result.refused or result.limited for result in federation.results)
    error = np.linalg.norm(federation.ledger.server.theta[0] - problem.optimum())
    assert error < 1e-3 * np.linalg.norm(problem.optimum())


def _one_is_different(factor: float, *, n: int = 10, seed: int = 1) -> tuple[Any, Any]:
    """Rows with which the first client's control variate is so many times as far from the others' mean as is
    usual.
    """
    clients = Clients(n, 1.0, seed)
    true, least, most = clients.y[0].copy(), 0.0, 1e3
    for _ in range(50):
        middle = (least + most) / 2
        clients.y[0] = true + middle * clients.x[0].sum(axis=1)
        gradients = clients.gradients(clients.pooled())
        lengths = np.linalg.norm(gradients - gradients[1:].mean(axis=0), axis=1)
        least, most = (middle, most) if lengths[0] < factor * np.median(lengths[1:]) else (least, middle)
    return clients.x, clients.y


@pytest.mark.parametrize("seed", range(4))
def test_clients_of_two_kinds_are_not_limited(seed: int) -> None:
    """Three and two that differ much more from one another than among themselves."""
    rng = np.random.default_rng(seed)
    states = np.array([[0.0, 0.0]] * 3 + [[5.0, 1.0]] * 2) + 0.05 * rng.normal(size=(5, 2))
    weights = np.full(5, 0.2)
    states -= weights @ states
    assert not excess(states, weights, STATES_DIFFER * 1.75, least=0.0)


def test_what_one_client_pulls_all_others_by_says_nothing_about_what_is_usual() -> None:
    """With five clients the others' control variates are a quarter of one that is far out, whatever it is."""
    rng = np.random.default_rng(1)
    states = rng.normal(size=(5, 4))
    states[0] = 1e6
    weights = np.full(5, 0.2)
    states -= weights @ states
    share, back = excess(states, weights, STATES_DIFFER * 1.75, least=0.0)[0]
    others = states[1:] - states[1:].mean(axis=0)
    usual = np.linalg.norm(others, axis=1).max()  # at most a quarter of the others is further away
    moved = states[0] + back - states[1:].mean(axis=0)
    np.testing.assert_allclose(np.linalg.norm(moved), STATES_DIFFER * 1.75 * (1 + 2 / 3) * usual, rtol=1e-9)
    assert share < 1e-4


def test_the_limit_allows_few_rows_to_differ_and_a_majority_anything() -> None:
    rng = np.random.default_rng(2)
    states, size = rng.normal(size=(20, 3)), STATES_DIFFER * 1.75
    states[0] = 8.0
    few_rows = np.full(20, 1.0)
    few_rows[0] = 0.2
    assert 0 in excess(states, np.ones(20) / 20, size, least=0.0)
    assert not excess(states, few_rows / few_rows.sum(), size, least=0.0)
    most_rows = np.full(20, 1.0)
    most_rows[0] = 25.0
    assert 0 not in excess(states, most_rows / most_rows.sum(), size, least=0.0)


@pytest.mark.parametrize("owner", [0, 1, 2])
def test_a_start_at_one_clients_own_optimum_gets_nobody_refused(tmp_path: Path, owner: int) -> None:
    """That client does not move; what it does is not what is usual."""
    problem = make("ridge", (26, 19, 24), 3, weights=(1.0, 3.5, 1.0))  # one has most of the weight
    federation = Federation(tmp_path, problem, METHOD, batch_size=None, rules=RoundRules())
    shutil.rmtree(tmp_path / "server")
    federation.theta0 = problem.subset([owner]).optimum()
    federation.restart_server()
    federation.run(60)
    assert all(not result.refused for result in federation.results)
    assert all(result.counted == (0, 1, 2) for result in federation.results)
    error = np.linalg.norm(federation.ledger.server.theta[0] - problem.optimum())
    assert error < 1e-2 * np.linalg.norm(federation.theta0 - problem.optimum())


def test_honest_clients_of_very_different_sizes_reach_the_pooled_optimum(tmp_path: Path) -> None:
    """Small clients differ more, which their weights allow."""
    sizes = (200, 150, 4, 6, 100, 3)
    problem = make("ridge", sizes, 3, weights=sizes)
    federation = Federation(tmp_path, problem, METHOD, batch_size=None, rules=RoundRules())
    federation.run(80)
    start = np.linalg.norm(problem.optimum())
    assert np.linalg.norm(federation.ledger.server.theta[0] - problem.optimum()) < 1e-3 * start


def test_limits_respect_weights() -> None:
    lengths: Any = np.array([1.0, 1.0, 1.0, 8.0])
    assert limits(lengths, np.full(4, 0.25), 2.0, least=1.0)[3] == 2.0
    few_rows = np.array([0.33, 0.33, 0.33, 0.01])
    assert limits(lengths, few_rows, 2.0, least=1.0)[3] > 8.0
    many_rows = np.array([0.05, 0.05, 0.05, 0.85])
    assert weighted_median(lengths, many_rows) == 8.0
