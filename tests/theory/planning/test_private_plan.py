"""Plans under a privacy budget: they spend it, reach what they predict, and are near the best of a grid."""

import itertools
from typing import Any

import numpy as np
import pytest

import fedscaffold as fs
from fedscaffold.core.random.batches import Batches
from fedscaffold.privacy import RecordLevel, client_epsilons, noise_for
from fedscaffold.theory.planning.private.proposal import Proposal
from fedscaffold.theory.planning.private.search import PrivateSearch, Trial
from tests.theory.prediction.test_private import RECORDS, sample

DELTA = 1e-3


@pytest.mark.parametrize("kind", ["ridge", "logistic"])
def test_a_plan_spends_the_budget_and_reaches_what_it_predicts(kind: str) -> None:
    problem = sample(kind)
    plan = fs.plan(problem, epsilon=2.0, delta=DELTA, max_rounds=20, max_local_steps=8)
    spent = client_epsilons(problem, plan.method, plan.privacy, rounds=plan.rounds, delta=DELTA)
    assert 1.99 < spent.max() <= 2.0
    assert plan.rounds <= 20
    assert plan.method.uniform_local_steps <= 8
    trace = fs.run(problem, plan.method, rounds=plan.rounds, privacy=plan.privacy, repetitions=300)
    last = trace.mse[:, -1]
    error = last.std() / np.sqrt(last.size)
    assert abs(last.mean() - plan.predicted_mse) < 0.08 * plan.predicted_mse + 4.0 * error
    assert plan.predicted_mse < 0.1 * plan.curve[0]


def test_more_budget_buys_less_error() -> None:
    found = fs.plan(sample("logistic"), epsilon=[1.0, 8.0, 3.0], delta=DELTA, max_rounds=5)
    assert [one.epsilon for one in found.plans] == [1.0, 8.0, 3.0]
    errors = {one.epsilon: one.predicted_mse for one in found.plans}
    assert errors[1.0] > errors[3.0] > errors[8.0]
    axes = found.plot()
    assert axes.get_xscale() == axes.get_yscale() == "log"
    assert "ε = 8" in found.explain()


def test_what_a_budget_can_buy_a_larger_one_can_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the proposal for it is a bad one."""
    search = PrivateSearch(sample("ridge"), Batches(), DELTA, most_rounds=4, most_steps=2)
    first = search.plan(1.0)
    poor = Proposal(clip=first.privacy.clip, gamma=1e-6, steps=1)
    monkeypatch.setattr(search.proposer, "best", lambda noise: poor)
    assert search.plan(8.0).predicted_mse < first.predicted_mse


@pytest.mark.parametrize("batch_size", [None, pytest.param(30, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["ridge", "logistic"])
def test_the_curve_of_a_plan_is_the_prediction_from_all_records(kind: str, batch_size: int | None) -> None:
    """Also where the search looks at some of the records."""
    problem = many_records(kind)
    plan = fs.plan(problem, epsilon=2.0, delta=1e-5, batch_size=batch_size, max_rounds=6, max_local_steps=2)
    predicted = fs.theory.predict(
        problem, plan.method, batch_size=batch_size, sampling="without_replacement", privacy=plan.privacy,
        rounds=plan.rounds,
    )  # fmt: skip
    assert predicted.curve is not None
    np.testing.assert_allclose(plan.curve, predicted.curve, rtol=1e-6)
    assert plan.predicted_mse == plan.curve[-1]


def many_records(kind: str) -> Any:
    """Clients of different sizes with more records than a search looks at."""
    rng = np.random.default_rng(5)
    X = [rng.normal(size=(n, 3)) + 0.3 * rng.normal(size=3) for n in (5000, 1500, 2500)]
    z = [x @ (1.0 + 0.3 * rng.normal(size=3)) + rng.normal(size=len(x)) for x in X]
    return (
        fs.problems.Ridge(X, z, l2=0.05)
        if kind == "ridge"
        else fs.problems.Logistic(X, [np.sign(own) for own in z], l2=0.05)
    )


@pytest.mark.parametrize("kind", ["ridge", "logistic"])
def test_some_records_tell_what_all_of_them_do(kind: str) -> None:
    """The models of the search are compared with predictions from all records, the best settings' among them."""
    problem = many_records(kind)
    search = PrivateSearch(problem, Batches(), 1e-5, most_rounds=40, most_steps=4)
    for clip, gamma, H, T in ((2.0, 0.5, 1, 8), (1.0, 0.3, 2, 10), (4.0, 0.2, 1, 20)):
        trial = Trial(clip, gamma, H, T)
        exact, some = search.predicted(trial, 2.0), search.rehearsed(trial, 2.0)
        assert some == pytest.approx(exact, rel=0.15)
        pooled = search.proposer.error(Proposal(clip, gamma, H * T), lambda steps: search.noise.exact(2.0, steps))
        assert pooled == pytest.approx(exact, rel=0.4)


@pytest.mark.slow
@pytest.mark.parametrize("budget", [0.5, 2.0, 8.0])
@pytest.mark.parametrize("kind", ["ridge", "logistic"])
def test_a_plan_is_near_the_best_of_a_grid(kind: str, budget: float) -> None:
    """Measured by simulation both, over clip × γ × H × T."""
    problem = sample(kind)
    plan = fs.plan(problem, epsilon=budget, delta=DELTA, max_rounds=30)

    def measured(method: Any, rounds: int, privacy: Any) -> float:
        try:
            trace = fs.run(problem, method, rounds=rounds, privacy=privacy, repetitions=100, progress=False)
        except fs.Diverged:
            return np.inf
        return float(trace.mse[:, -1].mean())

    clips = np.geomspace(0.1, 6.0, 8)
    gammas = np.geomspace(0.02, 3.0, 9) / problem.smoothness(Batches())
    found = []
    for clip, gamma, H, T in itertools.product(clips, gammas, (1, 2, 4), (1, 2, 3, 5, 10, 30)):
        noise = noise_for(epsilon=budget, delta=DELTA, steps=H * T, records=RECORDS)
        method = fs.Scaffold(step_size=float(gamma), local_steps=H)
        found.append(measured(method, T, RecordLevel(clip=float(clip), noise_multiplier=noise)))
    assert measured(plan.method, plan.rounds, plan.privacy) < 1.5 * min(found)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"epsilon": 0.0, "delta": DELTA}, "epsilon must be a positive number"),
        ({"epsilon": 1.0, "delta": 1.0 / RECORDS}, "delta must be below 0.00667, one over the 150 records"),
        ({"epsilon": 1.0}, "epsilon requires delta"),
        ({"delta": DELTA, "target_mse": 1.0, "batch_size": 1}, "delta requires epsilon"),
        ({"epsilon": 1.0, "delta": DELTA, "target_mse": 1.0}, "cannot be combined with target_mse"),
        ({"epsilon": 1.0, "delta": DELTA, "batch_size": 5, "sampling": "with_replacement"}, "without_replacement"),
    ],
)
def test_nonsense_is_refused(asked: dict[str, Any], words: str) -> None:
    with pytest.raises(fs.InvalidInput, match=words):
        fs.plan(sample("ridge"), **asked)
