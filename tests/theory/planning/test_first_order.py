"""First-order plans: the model against runs, and what it leaves out."""

from typing import Any

import numpy as np
import pytest

import fedscaffold as fs
from fedscaffold.theory.planning import first_order
from fedscaffold.theory.prediction.local_steps import curvature
from tests.problems.test_multinomial import rows
from tests.samples import KINDS, Kind, make, systems


def test_the_path_without_noise_is_that_of_runs_on_ridge() -> None:
    problem = make("ridge", (9, 14, 6, 20), 4, weights=[1, 2, 3, 1], n_unpenalised=1)
    theta = problem.optimum()
    trace = fs.run(problem, fs.Scaffold(step_size=0.1, local_steps=7), rounds=30)
    cur = curvature(problem.client_hessians(theta), 0.1, 7)
    slopes = problem.client_gradients(theta)
    for T in (1, 5, 30):
        aim = float(trace.mse[0, T]) * (1 + 1e-9)
        found = first_order.noiseless_path(problem.weights, cur, slopes, theta, 0.7, aim, 40)
        assert found is not None
        np.testing.assert_allclose(found, trace.mse[0, : T + 1], rtol=1e-9)
    last = float(trace.mse[0, 30])
    assert first_order.noiseless_path(problem.weights, cur, slopes, theta, 0.7, last, 29) is None


@pytest.mark.parametrize("kind", KINDS)
def test_the_noise_of_a_plan_is_what_the_predictor_says_for_small_steps(kind: Kind) -> None:
    problem = make(kind, (30,) * 20, 4, l2=0.3)
    plan = fs.plan(problem, target_mse=2.5e-5, batch_size=2, mode="first_order", max_rounds=10**5)
    assert plan.variance_part is not None
    assert 0.9e-5 < plan.variance_part <= 1e-5
    small = fs.Scaffold(step_size=plan.method.step_size, local_steps=5)
    sharp = fs.theory.predict(problem, small, batch_size=2)
    assert sharp.mse_variance_part == pytest.approx(plan.variance_part, rel=0.03)


def test_the_noise_of_a_plan_is_exact_for_large_steps_on_averaged_gradients() -> None:
    """With features ±1 the noise does not depend on θ; with H = 1 the variance is γ²c/(1 − (1 − γλ)²)."""
    rng = np.random.default_rng(0)
    x = rng.choice([-1.0, 1.0], size=(5, 40, 1))
    problem = fs.problems.Ridge(x, 3.0 * x[..., 0] + rng.normal(size=(5, 40)), l2=0.5)
    plan = fs.plan(problem, target_mse=1.0, batch_size=2, mode="first_order", max_local_steps=1)
    gamma, lam = plan.method.step_size, 1.5
    assert gamma == pytest.approx(1 / lam)
    products = (x[..., 0] * problem.y.reshape(5, 40)).var(axis=1) / 2
    exact = gamma**2 * products.sum() / 25 / (1 - (1 - gamma * lam) ** 2)
    assert plan.variance_part == pytest.approx(exact, rel=1e-9)
    predicted = fs.theory.predict(problem, plan.method, batch_size=2)
    assert predicted.mse_variance_part == pytest.approx(exact, rel=1e-6)


def wide(kind: str, seed: int) -> fs.problems.Ridge | fs.problems.Logistic | fs.problems.Multinomial:
    if kind == "multinomial":
        return fs.problems.Multinomial(*rows(3, 5, (40, 25, 60), seed=seed), l2=0.05)
    rng = np.random.default_rng(seed)
    sizes = rng.integers(15, 60, size=8)
    return make("ridge" if kind == "ridge" else "logistic", sizes.tolist(), 70, l2=0.05, seed=seed)


@pytest.mark.parametrize(
    "seed", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("batch_size", [None, 8])
@pytest.mark.parametrize("kind", ["ridge", "logistic", "multinomial"])
def test_plans_reach_small_targets(kind: str, batch_size: int | None, seed: int) -> None:
    """The mean of 20 runs, which is known to about 5 %, is at most the target, and not far below it."""
    problem = wide(kind, seed)
    optimum = problem.optimum()
    plan = fs.plan(problem, target_mse=1e-3 * float(optimum @ optimum), batch_size=batch_size, mode="first_order")
    runs = 1 if batch_size is None else 20
    trace = fs.run(problem, plan.method, rounds=plan.rounds, batch_size=batch_size, repetitions=runs, seed=seed)
    measured = float(trace.mse[:, -1].mean())
    assert 0.1 * plan.target_mse < measured <= 1.05 * plan.target_mse
    assert plan.max_useful_clients is None
    assert "first-order model" in plan.explain()


def test_many_clients_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = make("ridge", (10,) * 60, 5, l2=0.1)
    optimum = problem.optimum()
    hessians, slopes = problem.client_hessians(optimum), problem.client_gradients(optimum)
    everyone = first_order.sampled_clients(problem, optimum)
    for found, expected in zip(everyone, (problem.weights, hessians, slopes), strict=True):
        np.testing.assert_array_equal(found, expected)
    monkeypatch.setattr(first_order, "LARGEST", 25 * 20)  # numbers: of twenty Hessians, or of ten clients' records
    weights, few_hessians, few_slopes = first_order.sampled_clients(problem, optimum)
    chosen = np.linspace(0, 59, 20).round().astype(int)
    np.testing.assert_array_equal(few_hessians, hessians[chosen])
    np.testing.assert_array_equal(few_slopes, slopes[chosen])
    np.testing.assert_allclose(weights, 1 / 20, rtol=1e-15)
    plan = fs.plan(problem, target_mse=1e-3, batch_size=None, mode="first_order")
    assert fs.run(problem, plan.method, rounds=plan.rounds).mse[0, -1] < 2e-3


def test_out_of_reach() -> None:
    problem = make("ridge", (10,) * 6, 5, l2=0.01)
    with pytest.raises(fs.InvalidInput, match="out of reach within 2 local steps a round and 3 rounds"):
        fs.plan(problem, target_mse=1e-6, batch_size=2, mode="first_order", max_local_steps=2, max_rounds=3)
    other: Any = systems()
    with pytest.raises(fs.InvalidInput, match="gradients of single records, which linear_sa lacks"):
        fs.plan(other, target_mse=1e-3, batch_size=2)
    with pytest.raises(fs.InvalidInput, match="Hessians and noise of the problem, which linear_sa lacks"):
        fs.plan(other, target_mse=1e-3, batch_size=2, mode="first_order")
