"""The linear model as the search asks it: rounds to an aim, and the best step size on the grid."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import fedscaffold as fs
from benchmarks.random_problems import random_case
from fedscaffold.core.random.batches import Batches
from fedscaffold.theory.planning import curve_model, linear_model, stability
from fedscaffold.theory.planning.curve_model import CurveModel
from fedscaffold.theory.planning.linear_model import Correction, LinearModel
from fedscaffold.theory.planning.request import PlanRequest
from fedscaffold.theory.planning.search import GRID, LinearSearch, descend, place
from fedscaffold.theory.planning.stability import Stability
from fedscaffold.theory.planning.tries import Tries
from fedscaffold.theory.prediction.predict import measured_prediction, predict_setting
from fedscaffold.theory.prediction.setting import setting
from tests.samples import make
from tests.theory.planning.test_plan import mixed


@pytest.fixture(scope="module")
def problem() -> Any:
    return mixed(fs.problems.Ridge, 4, n_clients=3, dim=2)


@pytest.fixture
def model(problem: Any) -> LinearModel:
    return LinearModel.of(setting(problem, fs.Scaffold(step_size=1.0, local_steps=1), Batches(2)))


@pytest.fixture
def request_to_plan(problem: Any) -> PlanRequest:
    return PlanRequest(
        problem=problem, batches=Batches(2), optimum=problem.optimum(), target=0.1, most_local_steps=64,
        most_rounds=500, round_cost=100.0, gradient_cost=1.0,
    )  # fmt: skip


@pytest.mark.parametrize("share", [0.5, 0.1, 0.02])
@pytest.mark.parametrize("correction", [None, Correction(mean=1.5, noise=1.2, at=2e-4)])
def test_rounds_are_those_of_counting_one_by_one(
    model: LinearModel, share: float, correction: Correction | None
) -> None:
    gamma, H, first = 2e-4, 6, float(model.optimum @ model.optimum)
    found = model.trajectory(gamma, H)
    assert found is not None
    of_mean, of_noise = (1.0, 1.0) if correction is None else correction.factors(gamma)
    aim = share * first + of_noise * float(found.variances[-1])
    errors = [first]
    while errors[-1] > aim:
        t = len(errors)
        errors.append(
            of_mean * float(found.squares(t)[t - 1]) + of_noise * float(found.variance_at(np.array([t]))[0])
        )
    rounds, plateau = model.outcome(gamma, H, aim, 4000, correction)
    assert math.ceil(rounds) == len(errors) - 1
    part = math.log(errors[-2] / aim) / math.log(errors[-2] / errors[-1])
    assert rounds == pytest.approx(len(errors) - 2 + part, rel=1e-9)
    assert plateau == pytest.approx(of_noise * float(found.variances[-1]))


def test_noise_by_round_is_exact_at_powers_of_two(model: LinearModel) -> None:
    found = model.trajectory(0.02, 6)
    assert found is not None
    t = 2 ** np.arange(found.variances.size - 1)
    np.testing.assert_allclose(found.variance_at(t), found.variances[:-1], rtol=1e-9)
    assert found.variance_at(np.array([10**9]))[0] == found.variances[-1]


def test_what_diverges_has_no_trajectory(model: LinearModel) -> None:
    assert model.trajectory(10.0 / model.largest, 6) is None
    assert model.outcome(10.0 / model.largest, 6, 1.0, 100) == (math.inf, math.inf)


def test_the_linear_model_is_asked_once_for_a_step_size(model: LinearModel, request_to_plan: PlanRequest) -> None:
    """A search with another correction takes what it can from the search before."""
    aim = 0.1 * float(model.optimum @ model.optimum)
    best = LinearSearch(model, request_to_plan, aim).cheapest()
    asked = len(model.known)
    again = LinearSearch(model, request_to_plan, aim, Correction(mean=1.02, noise=1.02, at=best.gamma)).around(
        best
    )
    assert again.cost <= 1.1 * best.cost
    assert len(model.known) - asked < asked / 2


def test_the_best_step_size_is_the_best_of_the_grid(model: LinearModel, request_to_plan: PlanRequest) -> None:
    aim = 0.1 * float(model.optimum @ model.optimum)
    gamma, rounds = LinearSearch(model, request_to_plan, aim).best_step_size(8)
    every = {k: model.outcome(GRID**k, 8, aim, 500)[0] for k in range(-80, 6)}
    assert rounds == min(every.values())
    assert gamma == GRID ** min(every, key=lambda k: every[k])


@pytest.mark.parametrize("start", [-9, 0, 11])
def test_strides_lead_downhill(start: int) -> None:
    assert descend(lambda k: (k - 4.2) ** 2 if k < 8 else math.inf, start, (6, 3, 1)) == 4


def test_places_are_not_above_the_step_size() -> None:
    assert place(GRID**-7) == -7
    assert place(1.01 * GRID**-7) == -7
    assert place(0.99 * GRID**-7) == -8


def test_a_try_corrects_the_linear_model_to_what_the_sharp_one_says(
    model: LinearModel, request_to_plan: PlanRequest
) -> None:
    """Of a sharp predictor whose mean is twice and whose noise three times the linear model's."""
    gamma, H = 2e-4, 6

    def parts(gamma: float, H: int, rounds: int) -> tuple[Any, Any]:
        found = [model.parts(gamma, H, t) or (math.nan, math.nan) for t in range(1, rounds + 1)]
        start = float(model.optimum @ model.optimum)
        return np.array([start, *(2.0 * m for m, _ in found)]), np.array([0.0, *(3.0 * n for _, n in found)])

    sharp: Any = SimpleNamespace(parts=parts, stability=None, exact=False)
    tries = Tries(request_to_plan, sharp, model, aim=float(np.add(*parts(gamma, H, 10))[10]))
    candidate = tries.ask(gamma, H, 10)
    assert candidate is not None
    assert candidate.T == 10
    assert (tries.correction.mean, tries.correction.noise) == pytest.approx((2.0, 3.0))
    assert tries.correction.at == gamma


def test_few_clients_as_they_are_have_the_variances_of_the_reduced_system(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = make("logistic", (9, 6, 12), 3)
    model = LinearModel.of(setting(problem, fs.Scaffold(step_size=1e-6, local_steps=1), Batches(2)))
    whole = model.trajectory(0.2, 20)
    monkeypatch.setattr(linear_model, "FEW_CLIENTS", 0)
    monkeypatch.setattr(linear_model, "COARSE", 1e-8)
    model.known.clear()
    reduced = model.trajectory(0.2, 20)
    assert whole is not None
    assert reduced is not None
    shared = min(whole.variances.size, reduced.variances.size)
    np.testing.assert_allclose(whole.variances[:shared], reduced.variances[:shared], rtol=1e-6)
    np.testing.assert_allclose(whole.variances[-1], reduced.variances[-1], rtol=1e-3)


def test_step_sizes_looked_at_together_grow_as_each_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    base = setting(make("ridge", (9, 6, 12), 3), fs.Scaffold(step_size=1e-6, local_steps=1), Batches(1))
    together = Stability.of(base)
    monkeypatch.setattr(stability, "AT_ONCE", 1)
    alone = Stability.of(base)
    assert together is not None
    assert alone is not None
    np.testing.assert_allclose(together.growth, alone.growth, rtol=1e-12)
    np.testing.assert_array_equal(together.gammas, alone.gammas)
    assert together.growth[-1] < 1.0 < together.growth[-2]


def test_a_plan_is_verified_by_what_is_measured() -> None:
    """Tries are many, and take the approximation as it is."""
    case = random_case("logistic", 60_250)
    s = setting(case.problem, case.method, case.batches)
    model = CurveModel(s, None)
    tried, verified = model.predict(s.gamma, s.H), model.predict(s.gamma, s.H, 5)
    assert tried is not None
    assert verified is not None
    assert tried.variance + tried.bias == pytest.approx(predict_setting(s, None).mse)
    assert verified.variance + verified.bias == pytest.approx(measured_prediction(s, None).mse)
    assert tried.variance + tried.bias < 0.9 * (verified.variance + verified.bias)


def test_a_plan_in_no_doubt_is_believed_from_its_own_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """And one in doubt is not: where third cumulants change it by more than a little, or leave out much."""
    s = setting(make("logistic", (30, 30, 30), 2), fs.Scaffold(step_size=0.1, local_steps=5), Batches(5))
    model = CurveModel(s, None)
    asked: list[int] = []

    def drawn(of: Any, rounds: int) -> Any:
        asked.append(rounds)
        return predict_setting(of, rounds)

    monkeypatch.setattr(curve_model, "measured_prediction", drawn)
    sure = model.predict(s.gamma, s.H, 3)
    assert sure is not None
    assert asked == []
    alone = predict_setting(s, 3).curve
    assert sure.curve is not None
    assert alone is not None
    np.testing.assert_allclose(sure.curve, alone)
    monkeypatch.setattr(curve_model, "CURVES_DIFFER", 0.0)
    assert model.predict(s.gamma, s.H, 3) is not None
    monkeypatch.setattr(curve_model, "CURVES_DIFFER", 0.02)
    monkeypatch.setattr(curve_model, "MUCH", 0.0)
    assert model.predict(s.gamma, s.H, 3) is not None
    assert asked == [3, 3]
