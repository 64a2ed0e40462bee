"""When a target counts as reached, the cheapest candidate, and fits, on curves whose answer is known."""

import numpy as np
import pytest
from scipy.stats import linregress
from scipy.stats import t as student

from fedscaffold.benchmarking import Cost, Curve, best, cheapest, fit_line, growth, holds_from
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array


@pytest.mark.parametrize(
    ("mean", "target", "expected"),
    [
        ([4, 2, 1, 1, 1], 1.0, 2),
        ([4, 2, 1, 1], 1.0, None),  # not known yet to be kept until round 4
        ([4, 2, 1, 9, 9, 1, 1, 1, 1, 1, 1], 1.0, 5),  # below by chance at round 2
        ([4, 2, 1, 1.1, 0.8], 1.0, 2),  # above at round 3, below on average
        ([4, 2, 1, 1.1, 1.0], 1.0, None),  # above on average
        ([1, 5, 5], 1.0, 0),
        ([4, 3, 2, 2, 2], 1.0, None),
        ([4, 1, np.inf], 1.0, None),
    ],
)
def test_when_a_target_is_reached(mean: list[float], target: float, expected: int | None) -> None:
    assert holds_from(np.array(mean, dtype=np.float64), target) == expected


def curve(name: str, mean: list[float], steps: int, *, n: int = 10, diverged: bool = False) -> Curve:
    errors: Array = np.array(mean, dtype=np.float64)
    rounds = np.arange(errors.size, dtype=np.float64)
    return Curve(
        name=name, method={"local_steps": steps}, n_clients=n, mse=np.stack([errors * 0.5, errors * 1.5]),
        gradients=steps * rounds, vectors=2 * rounds, bits=128 * rounds, diverged=diverged,
    )  # fmt: skip


def test_the_cheapest_in_rounds_and_in_gradients() -> None:
    few_rounds = curve("a", [9, 1, 1, 1], 100)
    few_gradients = curve("a", [9, 9, 9, 1, 1, 1, 1], 10)
    other = curve("b", [9, 9, 9], 1)
    in_rounds, in_gradients, *none = cheapest([few_rounds, few_gradients, other], [1.0])
    assert (in_rounds.rounds, in_rounds.gradients, in_rounds.vectors) == (1, 100.0, 2.0)
    assert (in_gradients.rounds, in_gradients.gradients, in_gradients.vectors) == (3, 30.0, 6.0)
    assert [cost.rounds for cost in none] == [None, None]
    assert [cost.name for cost in none] == ["b", "b"]


def test_equal_rounds_are_decided_by_gradients() -> None:
    found = cheapest([curve("a", [9, 1, 1], 100), curve("a", [9, 1, 1], 50)], [1.0])
    assert found[0].gradients == 50.0


def test_the_best_at_the_end_is_not_one_that_diverged() -> None:
    found = best([curve("a", [9, 0.1], 1, diverged=True), curve("a", [9, 3], 2), curve("a", [9, 4], 3)])
    assert [each.method["local_steps"] for each in found] == [2]


def test_a_line_is_scipys() -> None:
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=8), generator.normal(size=8)
    fit, other = fit_line(x, y), linregress(x, y)
    assert (fit.slope, fit.intercept) == pytest.approx((other.slope, other.intercept), rel=1e-12)
    assert (fit.high - fit.low) / 2 == pytest.approx(student.ppf(0.975, 6) * other.stderr, rel=1e-12)
    assert fit.misfit == pytest.approx(np.std(y - other.intercept - other.slope * x), rel=1e-12)


def test_intervals_cover_as_often_as_they_say() -> None:
    """95 % of 2,000 intervals from five points; three standard errors are 1.5 %."""
    generator = np.random.default_rng(1)
    x = np.array([1.0, 2.0, 4.0, 5.0, 9.0])
    fits = [fit_line(x, 3.0 * x + generator.normal(size=5)) for _ in range(2000)]
    assert np.mean([fit.low <= 3.0 <= fit.high for fit in fits]) == pytest.approx(0.95, abs=0.015)


def test_a_weighted_line_minimises_weighted_residuals() -> None:
    x, y, w = np.array([0.0, 1.0, 2.0, 3.0]), np.array([1.0, 2.0, 2.0, 9.0]), np.array([1.0, 1.0, 1.0, 1e-6])
    fit, unweighted = fit_line(x, y, w), fit_line(x[:3], y[:3])
    assert fit.slope == pytest.approx(unweighted.slope, abs=1e-5)


def test_two_points_are_too_few() -> None:
    with pytest.raises(InvalidInput, match="three points"):
        fit_line(np.arange(2.0), np.arange(2.0))


def test_growth_recognises_both_laws() -> None:
    costs = []
    for target in (1e-1, 1e-2, 1e-3, 1e-4):
        for name, rounds in (("log", 10 - 5 * np.log10(target)), ("power", 10 * target**-0.5)):
            costs.append(
                Cost(
                    name=name,
                    n_clients=8,
                    target=target,
                    cheapest_in="rounds",
                    rounds=round(rounds),
                    gradients=1.0,
                )
            )
    costs += [
        Cost(name="log", n_clients=n, target=1e-9, cheapest_in="gradients", rounds=5, gradients=1e6 / n)
        for n in (10, 100, 1000)
    ]
    assert {(each.what, each.at, each.points) for each in growth(costs) if each.name == "log"} == {
        ("gradients by clients", 1e-9, 3), ("rounds, logarithmic", 8, 4), ("rounds, power", 8, 4),
    }  # fmt: skip
    fits = {(each.name, each.what): each.fit for each in growth(costs)}
    assert fits["log", "gradients by clients"].slope == pytest.approx(-1.0)
    assert fits["log", "rounds, logarithmic"].slope == pytest.approx(5.0)
    assert fits["log", "rounds, logarithmic"].misfit < 0.02 < fits["log", "rounds, power"].misfit
    assert fits["power", "rounds, power"].slope == pytest.approx(0.5, abs=0.01)
    assert fits["power", "rounds, power"].misfit < 0.02 < fits["power", "rounds, logarithmic"].misfit
