"""Plans against simulation, against a grid search, and their refusals."""

import re
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import fedscaffold as fs
from fedscaffold.core.types import Array

Problem = fs.problems.Ridge | fs.problems.Logistic


def mixed(
    kind: type[Problem], seed: int, *, n_clients: int, dim: int, equal: bool = True, l2: float = 0.05
) -> Problem:
    """Clients that differ in scale, model and, unless equal, in size and weight."""
    rng = np.random.default_rng(seed)
    sizes = np.full(n_clients, 60) if equal else rng.integers(20, 120, size=n_clients)
    X: list[Array] = [rng.normal(size=(n, dim)) * rng.uniform(0.5, 1.5, size=dim) for n in sizes]
    scores: list[Array] = [x @ rng.normal(size=dim) + rng.normal(size=len(x)) for x in X]
    y = scores if kind is fs.problems.Ridge else [np.where(score > 0, 1.0, -1.0) for score in scores]
    return kind(X, y, l2=l2, weights=None if equal else sizes)


def simulated_share(problem: Problem, plan: fs.Plan, batch_size: int, repetitions: int) -> tuple[float, float]:
    """Mean squared error after the plan's rounds over the target, and its standard error."""
    trace = fs.run(problem, plan.method, rounds=plan.rounds, batch_size=batch_size, repetitions=repetitions)
    last = trace.mse[:, -1] / plan.target_mse
    return float(last.mean()), float(last.std() / np.sqrt(repetitions))


@pytest.mark.parametrize(
    ("kind", "target", "equal"),
    [(fs.problems.Ridge, 0.03, True), (fs.problems.Logistic, 0.02, True), (fs.problems.Logistic, 0.03, False)],
)
def test_sharp_plans_reach_their_target_and_not_much_more(kind: type[Problem], target: float, equal: bool) -> None:
    problem = mixed(kind, 3, n_clients=5, dim=2, equal=equal)
    plan = fs.plan(problem, target_mse=target, batch_size=5, max_local_steps=64)
    share, error = simulated_share(problem, plan, 5, 2000)
    assert error < 0.03
    assert 0.5 < share < 1.05
    assert plan.predicted_mse == pytest.approx(share * target, rel=0.2)  # one or two rounds of large steps
    assert plan.gradients_per_client == plan.rounds * plan.method.uniform_local_steps
    text = plan.explain()
    assert f"{plan.rounds:,} rounds" in text
    assert ("no bias" in text) == (kind is fs.problems.Ridge)


def test_costs_move_the_plan() -> None:
    problem = mixed(fs.problems.Ridge, 4, n_clients=3, dim=2)
    dear_rounds = fs.plan(problem, target_mse=0.003, batch_size=5, max_local_steps=256, round_cost=1000.0)
    dear_gradients = fs.plan(problem, target_mse=0.003, batch_size=5, max_local_steps=256, round_cost=0.1)
    assert dear_rounds.rounds < dear_gradients.rounds
    assert dear_rounds.gradients_per_client > dear_gradients.gradients_per_client
    short = fs.plan(problem, target_mse=0.003, batch_size=5, max_local_steps=16)
    assert short.method.uniform_local_steps <= 16
    assert short.rounds > dear_rounds.rounds


def test_without_noise() -> None:
    problem = mixed(fs.problems.Logistic, 5, n_clients=3, dim=2)
    plan = fs.plan(problem, target_mse=1e-6, batch_size=None, max_local_steps=64, max_rounds=200)
    assert fs.run(problem, plan.method, rounds=plan.rounds).mse[0, -1] < 1.05e-6


CERTIFIED = [  # kind, seed, clients, features, batch, target as a share of the start
    (fs.problems.Ridge, 6, 4, 2, 30, 0.3),
    (fs.problems.Ridge, 21, 10, 3, 20, 0.1),
    (fs.problems.Ridge, 22, 2, 2, 10, 0.5),
    (fs.problems.Logistic, 23, 4, 2, 30, 0.5),
    (fs.problems.Ridge, 25, 6, 4, 5, 0.05),
    (fs.problems.Logistic, 27, 3, 3, 30, 0.5),
    pytest.param(fs.problems.Ridge, 24, 40, 2, 30, 0.02, marks=pytest.mark.slow),
    pytest.param(fs.problems.Logistic, 26, 10, 2, 60, 0.2, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("kind", "seed", "n_clients", "dim", "batch_size", "fraction"), CERTIFIED)
def test_certified_plans_never_miss(
    kind: type[Problem], seed: int, n_clients: int, dim: int, batch_size: int, fraction: float
) -> None:
    problem = mixed(kind, seed, n_clients=n_clients, dim=dim, l2=1.0)
    target = fraction * float(problem.optimum() @ problem.optimum())
    plan = fs.plan(problem, target_mse=target, batch_size=batch_size, mode="certified")
    assert plan.predicted_mse <= target
    trace = fs.run(problem, plan.method, rounds=plan.rounds, batch_size=batch_size, repetitions=20)
    assert trace.mse[:, -1].mean() <= target
    assert trace.mse[:, 0].mean() > target


def test_certified_plans_explain_themselves_and_cost_more_than_sharp_ones() -> None:
    problem = mixed(fs.problems.Ridge, 6, n_clients=4, dim=2, l2=1.0)
    target = 0.3 * float(problem.optimum() @ problem.optimum())
    plan = fs.plan(problem, target_mse=target, batch_size=30, mode="certified")
    assert "Theorem 4.9" in plan.explain()
    assert fs.plan(problem, target_mse=target, batch_size=30).cost <= plan.cost


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target_mse": 0.0}, "target_mse must be a positive number"),
        ({"mode": "hopeful"}, "mode must be .*'certified'"),
        ({"max_rounds": 0}, "max_rounds must be"),
        ({"max_local_steps": 1.5}, "max_local_steps must be"),
        ({"round_cost": -1.0}, "round_cost must be"),
        ({"round_cost": 0.0, "gradient_cost": 0.0}, "cannot both be 0"),
        ({"batch_size": 0}, "batch_size must be"),
        ({"mode": "certified", "max_rounds": 1}, "above max_rounds=1"),
        ({"target_mse": 1e3}, "nothing to run"),
    ],
)
def test_refusals(options: dict[str, object], message: str) -> None:
    problem = mixed(fs.problems.Ridge, 7, n_clients=4, dim=2)
    arguments: dict[str, object] = {"target_mse": 0.1, "batch_size": 5, **options}
    with pytest.raises(fs.InvalidInput, match=message):
        fs.plan(problem, **arguments)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("fraction", "max_rounds", "max_local_steps", "message"),
    [
        (0.01, 2, 8, r"the rounds bind.* allow about (?P<rounds>\d+) rounds"),
        (0.001, 10, 1, r"the local steps bind.* allow about (?P<steps>\d+) local steps"),
        (0.01, 20, 4, r"lifting either is enough; allow about \d+ rounds, or about (?P<steps>\d+) local steps"),
        (
            0.001,
            2,
            4,
            r"both must be lifted; .* (?P<rounds>\d+) rounds and (?P<steps>[\d,]+) local steps",
        ),
    ],
)
def test_out_of_reach_says_which_limit_binds_and_what_would_do(
    fraction: float, max_rounds: int, max_local_steps: int, message: str
) -> None:
    problem = mixed(fs.problems.Ridge, 7, n_clients=4, dim=2)
    target = fraction * float(problem.optimum() @ problem.optimum())
    with pytest.raises(fs.InvalidInput, match="out of reach") as refused:
        fs.plan(problem, target_mse=target, batch_size=5, max_rounds=max_rounds, max_local_steps=max_local_steps)
    advice = re.search(message, str(refused.value))
    assert advice, refused.value
    said = {name: int(number.replace(",", "")) for name, number in advice.groupdict().items()}
    rounds, steps = said.get("rounds", max_rounds), said.get("steps", max_local_steps)
    followed = fs.plan(problem, target_mse=target, batch_size=5, max_rounds=rounds, max_local_steps=steps)
    assert followed.rounds <= rounds
    assert followed.method.uniform_local_steps <= steps
    share, error = simulated_share(problem, followed, 5, 2000)
    assert error < 0.03
    assert share < 1.05


def test_noise_binds_no_more_with_a_larger_batch() -> None:
    problem = mixed(fs.problems.Ridge, 7, n_clients=4, dim=2)
    limits = {"target_mse": 1e-9, "max_rounds": 20, "max_local_steps": 8}
    with pytest.raises(fs.InvalidInput, match=r"noise binds.*larger batches"):
        fs.plan(problem, batch_size=5, **limits)  # type: ignore[call-overload]
    plan = fs.plan(problem, batch_size=None, **limits)  # type: ignore[call-overload]
    assert fs.run(problem, plan.method, rounds=plan.rounds).mse[0, -1] < 1.05e-9


def test_certified_plans_hold_with_weights() -> None:
    problem = mixed(fs.problems.Ridge, 8, n_clients=4, dim=2, l2=1.0, equal=False)
    target = 0.1 * float(problem.optimum() @ problem.optimum())
    plan = fs.plan(problem, target_mse=target, batch_size=5, mode="certified")
    trace = fs.run(problem, plan.method, rounds=plan.rounds, batch_size=5, repetitions=20)
    assert trace.mse[:, -1].mean() <= target < trace.mse[:, 0].mean()


@pytest.mark.slow
def test_twenty_four_plans() -> None:
    """At least 90 % between 0.5 and 1.05 times the target; none of these problems served to build the planner."""
    shares = []
    for seed in range(12):
        kind = (fs.problems.Ridge, fs.problems.Logistic)[seed % 2]
        n_clients, dim = (6, 15, 40, 120)[seed % 4], (3, 8, 12)[seed % 3]
        problem = mixed(
            kind, 100 + seed, n_clients=n_clients, dim=dim, equal=seed % 5 > 0, l2=(0.02, 0.1)[seed % 2]
        )
        start = float(problem.optimum() @ problem.optimum())
        for fraction in (0.05, 0.003):
            batch_size = (1, 4, 16)[seed % 3]
            plan = fs.plan(problem, target_mse=fraction * start, batch_size=batch_size)
            share, error = simulated_share(problem, plan, batch_size, 800)
            assert error < 0.05
            shares.append(share)
    inside = [0.5 <= share <= 1.05 for share in shares]
    assert np.mean(inside) >= 0.9, shares


@pytest.mark.slow
@pytest.mark.parametrize("kind", [fs.problems.Ridge, fs.problems.Logistic])
def test_no_grid_point_is_much_cheaper(kind: type[Problem]) -> None:
    problem = mixed(kind, 200, n_clients=10, dim=5)
    target = 0.02 * float(problem.optimum() @ problem.optimum())
    plan = fs.plan(problem, target_mse=target, batch_size=5)
    best = np.inf
    for local_steps in (1, 2, 4, 8, 16, 32, 64, 128, 256):
        for step_size in np.geomspace(0.002, 0.3, 12):
            try:
                method = fs.Scaffold(step_size=float(step_size), local_steps=local_steps)
                trace = fs.run(
                    problem, method, rounds=min(3000, 8000 // local_steps), batch_size=5, repetitions=100
                )
            except fs.Diverged:
                continue
            below = np.flatnonzero(trace.mse.mean(axis=0) <= target)
            if below.size:
                best = min(best, float(below[0]) * (100.0 + local_steps))
    assert plan.cost <= 1.3 * best


@pytest.mark.parametrize("mode", ["sharp", "first_order", "certified"])
def test_a_given_optimum_gives_the_same_plan(mode: Any) -> None:
    problem = mixed(fs.problems.Ridge, 6, n_clients=4, dim=2, l2=1.0)
    optimum = problem.optimum()
    arguments: dict[str, Any] = {"target_mse": 0.3 * float(optimum @ optimum), "batch_size": 30, "mode": mode}
    found = fs.plan(problem, **arguments)
    kind = fs.problems.Ridge
    with patch.object(kind, "optimum", autospec=True, side_effect=kind.optimum) as asked:
        assert fs.plan(problem, optimum=optimum, **arguments) == found
    assert asked.call_count == (1 if mode == "certified" else 0)  # of theory.constants
    with pytest.raises(fs.InvalidInput, match="not where the gradient vanishes"):
        fs.plan(problem, optimum=optimum + 1e-4, **arguments)
    with pytest.raises(fs.InvalidInput, match=r"must have shape \(2,\)"):
        fs.plan(problem, optimum=np.zeros(3), **arguments)
