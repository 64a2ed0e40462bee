"""The numbers that a plan states, each computed in another way."""

from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

import fedscaffold as fs
from fedscaffold.core.random.batches import Batches
from fedscaffold.problems import Logistic
from fedscaffold.theory.planning.linear_model import LinearModel
from fedscaffold.theory.prediction.moments import predict as sizes
from fedscaffold.theory.prediction.setting import setting
from tests.theory.planning.test_plan import mixed

PRICES: dict[str, Any] = {"round_cost": 30.0, "gradient_cost": 2.0}


@pytest.fixture(scope="module")
def problem() -> Any:
    return mixed(Logistic, 3, n_clients=5, dim=2)


@pytest.fixture(scope="module")
def plan(problem: Any) -> fs.Plan:
    return fs.plan(problem, target_mse=0.02, batch_size=5, **PRICES)


@pytest.mark.parametrize("local_steps", [pytest.param(3, marks=pytest.mark.slow), 40])
def test_with_as_many_clients_as_are_useful_noise_and_bias_are_equal(
    problem: Any, local_steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every client repeated k times: then there are k times as many clients and the same f.

    In short rounds a part of the bias falls as 1/N, in long ones hardly. Third cumulants are followed for few
    clients only, so they are left out for few and many alike.
    """
    monkeypatch.setattr(sizes, "LARGEST_STATE", 0)
    plan = fs.plan(problem, target_mse=0.02, batch_size=1, max_local_steps=local_steps, round_cost=1e4)
    assert plan.max_useful_clients is not None
    copies = round(plan.max_useful_clients / problem.n_clients)
    assert copies > 3
    many = problem.subset(np.tile(np.arange(problem.n_clients), copies))
    there = fs.theory.predict(many, plan.method, batch_size=1)
    assert there.mse_variance_part == pytest.approx(there.mse_bias_part, rel=0.05)


def test_rounds_of_one_local_step_have_no_bias_that_stays(problem: Any) -> None:
    """They are steps of all clients together, whose noise and its pull on the mean vanish with their number."""
    plan = fs.plan(problem, target_mse=0.02, batch_size=5, max_local_steps=1)
    assert plan.max_useful_clients == np.inf


def test_cost_and_communication_are_those_of_the_run(problem: Any, plan: fs.Plan) -> None:
    trace = fs.run(problem, plan.method, rounds=plan.rounds, batch_size=5)
    gradients, vectors = trace.gradients_per_client[0, -1], trace.vectors_per_client[-1]
    assert plan.gradients_per_client == gradients
    assert plan.cost == pytest.approx(plan.rounds * PRICES["round_cost"] + gradients * PRICES["gradient_cost"])
    assert f"computes {gradients:,.0f} gradients and exchanges {vectors:,.0f} vectors" in plan.explain()


def test_a_sample_of_many_clients_leads_to_the_plan_of_all_of_them() -> None:
    """Above 80 clients the search looks at 40: with twenty copies of each of five clients it must lose nothing."""
    few = mixed(fs.problems.Ridge, 4, n_clients=5, dim=2)
    many = few.subset(np.repeat(np.arange(5), 20))
    plan = fs.plan(many, target_mse=0.002, batch_size=5, max_local_steps=64)
    alone = fs.theory.predict(many, plan.method, batch_size=5, rounds=plan.rounds)
    assert alone.curve is not None
    assert 0.7 * plan.target_mse < alone.curve[-1] <= plan.target_mse
    assert plan.variance_part == pytest.approx(alone.mse_variance_part, rel=0.01)


def test_a_plan_on_a_sample_costs_what_one_on_all_clients_does() -> None:
    """With 84 clients the search looks at 40 of them, with 80 at all: the plans must be nearly the same."""
    few = mixed(fs.problems.Ridge, 4, n_clients=2, dim=1)
    of_all, of_some = (
        fs.plan(few.subset(np.repeat(np.arange(2), copies)), target_mse=1e-4, batch_size=2, max_local_steps=4)
        for copies in (40, 42)
    )
    assert of_some.cost == pytest.approx(of_all.cost, rel=0.1)
    assert of_some.method.step_size == pytest.approx(of_all.method.step_size, rel=0.2)


@pytest.mark.parametrize("batch_size", [None, 20])
def test_rounds_that_are_extrapolated_are_those_that_would_be_counted(batch_size: int | None) -> None:
    problem = mixed(fs.problems.Ridge, 4, n_clients=3, dim=1)
    model = LinearModel.of(setting(problem, fs.Scaffold(step_size=1.0, local_steps=1), Batches(batch_size)))
    _, plateau = model.outcome(0.005, 2, 0.0, 1)
    aim = 0.02 * float(problem.optimum() @ problem.optimum()) + plateau
    (extrapolated, _), (counted, _) = (model.outcome(0.005, 2, aim, most) for most in (32, 2000))
    assert 100 < counted < 2000
    assert extrapolated == pytest.approx(counted, rel=0.02)


def test_what_a_plan_looks_like(plan: fs.Plan) -> None:
    text = repr(plan)
    assert max(map(len, text.splitlines())) < 80
    assert f"rounds: {plan.rounds}" in text
    assert f"<td>{plan.rounds}</td>" in plan._repr_html_()
    own = Figure().subplots()
    assert plan.plot(own) is own
    lines = {line.get_label(): line.get_ydata() for line in own.get_lines()}
    np.testing.assert_array_equal(lines["predicted"], plan.curve)
    assert set(np.asarray(lines["target"])) == {plan.target_mse}


def test_certified_plans_have_no_curve_to_draw() -> None:
    problem = mixed(fs.problems.Ridge, 6, n_clients=4, dim=2, l2=1.0)
    plan = fs.plan(problem, target_mse=0.5, batch_size=30, mode="certified")
    with pytest.raises(fs.InvalidInput, match="mode='sharp'"):
        plan.plot()
