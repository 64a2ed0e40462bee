"""Plans under a privacy budget: they spend it, reach what they predict, and are near the best of a grid."""

import itertools
from typing import Any

import numpy as np
import pytest

import fedscaffold as fs
from fedscaffold.core.random.stream import Batches
from fedscaffold.privacy import RecordLevel, client_epsilons, noise_for
from tests.planning.problems import simulated_share

DELTA, RECORDS = 1e-3, 150


def sample(kind: str, records: int = RECORDS) -> Any:
    """Build three clients of equal size."""
    rng = np.random.default_rng(5)
    X = rng.normal(size=(3, records, 2)) + 0.3 * rng.normal(size=(3, 1, 2))
    z = np.einsum("cnd,cd->cn", X, 1.0 + 0.3 * rng.normal(size=(3, 2))) + rng.normal(size=X.shape[:2])
    return fs.problems.Ridge(X, z, l2=0.05) if kind == "ridge" else fs.problems.Logistic(X, np.sign(z), l2=0.05)


@pytest.mark.parametrize(
    ("kind", "batch_size"),
    [("ridge", None), ("logistic", None), pytest.param("logistic", 30, marks=pytest.mark.slow)],
)
def test_a_plan_spends_the_budget_and_reaches_what_it_predicts(kind: str, batch_size: int | None) -> None:
    problem = sample(kind)
    plan = fs.plan(problem, epsilon=2.0, delta=DELTA, batch_size=batch_size, max_rounds=20, max_local_steps=8)
    assert plan.privacy is not None
    spent = client_epsilons(
        problem, plan.method, plan.privacy, rounds=plan.rounds, delta=DELTA, batch_size=batch_size
    )
    assert 1.99 < spent.max() <= 2.0
    assert plan.rounds <= 20
    assert plan.method.uniform_local_steps <= 8
    share, error = simulated_share(problem, plan, 300)
    assert abs(share - 1.0) < 4.0 * np.hypot(error, plan.standard_error / plan.predicted_mse)
    assert plan.curve is not None
    assert plan.predicted_mse < 0.2 * plan.curve[0]
    assert "(2, 0.001)-differentially private" in plan.explain()


def test_more_budget_buys_less_error() -> None:
    found = fs.plan(sample("logistic"), epsilon=[1.0, 8.0, 3.0], delta=DELTA, max_rounds=5)
    assert [one.epsilon for one in found.plans] == [1.0, 8.0, 3.0]
    errors = {one.epsilon: one.predicted_mse for one in found.plans}
    assert errors[1.0] > errors[3.0] > errors[8.0]
    axes = found.plot()
    assert axes.get_xscale() == axes.get_yscale() == "log"
    assert "ε = 8" in found.explain()


def test_a_search_on_some_records_serves_all_of_them() -> None:
    problem = sample("logistic", 5000)
    plan = fs.plan(problem, epsilon=0.5, delta=1e-5, max_rounds=10, max_local_steps=2)
    share, error = simulated_share(problem, plan, 40)
    assert abs(share - 1.0) < 4.0 * np.hypot(error, plan.standard_error / plan.predicted_mse)
    for factor in (0.4, 2.5):  # neither clip nor step size is far from its best
        for changed in ({"clip": factor}, {"step_size": factor}):
            assert plan.privacy is not None
            privacy = RecordLevel(
                clip=plan.privacy.clip * changed.get("clip", 1.0), noise_multiplier=plan.privacy.noise_multiplier
            )
            method = fs.Scaffold(
                step_size=plan.method.step_size * changed.get("step_size", 1.0),
                local_steps=plan.method.local_steps,
            )
            trace = fs.run(problem, method, rounds=plan.rounds, privacy=privacy, repetitions=20)
            assert trace.mse[:, -1].mean() > 0.85 * plan.predicted_mse


@pytest.mark.slow
@pytest.mark.parametrize("budget", [0.5, 2.0, 8.0])
@pytest.mark.parametrize("kind", ["ridge", "logistic"])
def test_a_plan_is_near_the_best_of_a_grid(kind: str, budget: float) -> None:
    """Measured by simulation both, over clip × γ × H × T."""
    problem = sample(kind)
    plan = fs.plan(problem, epsilon=budget, delta=DELTA, max_rounds=30)
    best = np.inf
    clips = np.geomspace(0.1, 6.0, 7)
    gammas = np.geomspace(0.02, 3.0, 8) / problem.smoothness(Batches())
    for clip, gamma, H, T in itertools.product(clips, gammas, (1, 4), (1, 3, 10, 30)):
        noise = noise_for(epsilon=budget, delta=DELTA, steps=H * T, records=RECORDS)
        privacy = RecordLevel(clip=float(clip), noise_multiplier=noise)
        try:
            method = fs.Scaffold(step_size=float(gamma), local_steps=H)
            trace = fs.run(problem, method, rounds=T, privacy=privacy, repetitions=100, progress=False)
        except fs.Diverged:
            continue
        best = min(best, float(trace.mse[:, -1].mean()))
    assert plan.predicted_mse < 1.3 * best


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"epsilon": 0.0, "delta": DELTA}, "epsilon must be a positive number"),
        ({"epsilon": 1.0, "delta": 1.0 / RECORDS}, "delta must be below 0.00667, one over the 150 records"),
        ({"epsilon": 1.0}, "epsilon requires delta"),
        ({"epsilon": 1.0, "delta": DELTA, "target_mse": 1.0}, "cannot be combined with target_mse"),
        ({"epsilon": 1.0, "delta": DELTA, "batch_size": 5, "sampling": "with_replacement"}, "without_replacement"),
    ],
)
def test_rejections(asked: dict[str, Any], words: str) -> None:
    with pytest.raises(fs.InvalidInput, match=words):
        fs.plan(sample("ridge"), **asked)
