"""Plans that also choose the method, and plans for averages, against simulation."""

from typing import Any

import numpy as np
import pytest

import fedscaffold as fs
from fedscaffold.core.errors import OutOfReach
from fedscaffold.problems import Logistic, Ridge
from fedscaffold.theory import METHODS, MethodChoice, MethodPlan
from fedscaffold.theory.planning.foresight import average_errors
from fedscaffold.theory.planning.pattern import Outcome, pattern_search
from tests.theory.planning.test_plan import mixed

TARGET, BATCH = 0.02, 5


@pytest.fixture(scope="module")
def problem() -> Any:
    return mixed(Ridge, 3, n_clients=3, dim=1)


@pytest.fixture(scope="module")
def chosen(problem: Any) -> MethodChoice:
    return fs.plan(problem, target_mse=TARGET, batch_size=BATCH, methods="all", max_local_steps=32)


def simulated(problem: Any, plan: MethodPlan, target: float, repetitions: int) -> tuple[float, float]:
    """Mean squared error of the last iterate, or of the average, over the target, and its standard error."""
    record: Any = ("mse",) if plan.after is None else (fs.simulation.TailAverage(after=plan.after),)
    trace = fs.run(
        problem, plan.method, rounds=plan.rounds, batch_size=BATCH, repetitions=repetitions, record=record
    )
    last = plan.after is None
    errors = trace.mse[:, -1] if last else np.square(trace.average - problem.optimum()).sum(axis=1)
    return float(errors.mean() / target), float(errors.std() / np.sqrt(repetitions) / target)


def test_every_method_is_planned_or_says_why_not(chosen: MethodChoice) -> None:
    named = {plan.name for plan in chosen.plans} | set(chosen.refused)
    assert named == set(METHODS)
    assert len(chosen.plans) >= 5
    costs = [plan.cost for plan in chosen.plans]
    assert costs == sorted(costs)
    text = chosen.explain()
    assert text.startswith(f"Run {chosen.best}.")
    assert all(name in text for name in named - {chosen.best.name})


@pytest.mark.parametrize("name", METHODS)
def test_plans_of_every_method_reach_the_target_and_not_much_more(
    problem: Any, chosen: MethodChoice, name: str
) -> None:
    plans = {plan.name: plan for plan in chosen.plans}
    if name not in plans:
        pytest.skip(chosen.refused[name])
    share, error = simulated(problem, plans[name], TARGET, 1500)
    assert error < 0.06
    assert 0.3 < share < 1.05 + 2 * error
    predicted = plans[name].predicted_mse / TARGET
    assert share < 1.2 * predicted
    if plans[name].after is None:  # averages of the first rounds have less noise than those of stationary ones
        assert share > 0.8 * predicted


def test_costs_are_those_of_the_run(problem: Any, chosen: MethodChoice) -> None:
    for plan in chosen.plans:
        if plan.name == "proxskip":
            continue  # its rounds are random
        trace = fs.run(problem, plan.method, rounds=plan.rounds, batch_size=BATCH)
        gradients, vectors = trace.gradients_per_client[0, -1], trace.vectors_per_client[-1]
        assert plan.gradients_per_client == pytest.approx(gradients, rel=0.01)
        assert plan.cost == pytest.approx(50.0 * vectors + gradients, rel=0.01)


@pytest.mark.slow
def test_averages_are_cheaper_where_noise_is_what_costs() -> None:
    problem = mixed(Ridge, 5, n_clients=3, dim=2)
    names = ("scaffold", "scaffold_average")
    target = 2e-3
    found = fs.plan(problem, target_mse=target, batch_size=1, methods=names, round_cost=0.1, max_local_steps=32)
    by_name = {plan.name: plan for plan in found.plans}
    average = by_name["scaffold_average"]
    assert average.cost < 0.8 * by_name["scaffold"].cost
    assert average.after is not None
    record = (fs.simulation.TailAverage(after=average.after),)
    trace = fs.run(problem, average.method, rounds=average.rounds, batch_size=1, repetitions=300, record=record)
    errors = np.square(trace.average - problem.optimum()).sum(axis=1)
    assert 0.4 * target < errors.mean() < 1.1 * target


def test_what_cannot_be_foreseen_is_refused_with_a_reason() -> None:
    problem = mixed(Logistic, 3, n_clients=400, dim=2)
    found = fs.plan(problem, target_mse=0.02, batch_size=5, methods=("fedavg", "proxskip"), max_local_steps=16)
    assert [plan.name for plan in found.plans] == ["fedavg"]
    assert "800" in found.refused["proxskip"]
    with pytest.raises(OutOfReach, match="proxskip"):
        fs.plan(problem, target_mse=0.02, batch_size=5, methods="proxskip")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"methods": "sgd"}, "methods must be"),
        ({"methods": ()}, "at least one"),
        ({"methods": "all", "mode": "certified"}, "methods requires mode='sharp'"),
        ({"methods": "scaffold_unequal"}, "its machine's affair"),
        ({"methods": ("fedavg", "richardson_romberg")}, "share their draws"),
    ],
)
def test_refusals(problem: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(fs.InvalidInput, match=message):
        fs.plan(problem, target_mse=TARGET, batch_size=BATCH, **options)


def test_the_error_of_an_average_of_equal_models_is_theirs() -> None:
    """A mean that rests at 2 and noise of long-run variance 3: 4 + 3/n, but no more noise than one model has."""
    errors, after = average_errors(np.full(101, 4.0), np.full(101, 1.0), 3.0)
    n = np.arange(1, 101)
    np.testing.assert_allclose(errors, 4.0 + np.minimum(3.0 / n, 1.0))
    assert after[-1] == 0


def test_a_pattern_search_finds_the_bottom_of_a_valley() -> None:
    def ask(gamma: float, H: int, most: float) -> Outcome:
        cost = 10.0 + np.log(gamma * H / 3.0) ** 2 + 0.1 * np.log(H / 12.0) ** 2
        return Outcome(gamma, H, 1 if cost < 40.0 else None, cost, cost)

    found = pattern_search(ask, 1e-4, 1, 1000)
    assert found.cost < 10.02
    assert found.gamma * found.H == pytest.approx(3.0, rel=0.2)
