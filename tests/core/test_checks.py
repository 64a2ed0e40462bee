"""Numbers that are refused, at the ends of what is allowed; how much noise a batch has."""

from itertools import combinations
from typing import Any

import numpy as np
import pytest

import fedscaffold as fs
from fedscaffold import InvalidInput
from fedscaffold.core import checks
from fedscaffold.core.random.stream import Batches


def test_seeds_have_sixty_four_bits() -> None:
    assert checks.seed_number("seed", 2**64 - 1) == 2**64 - 1
    for refused in (2**64, -1, 1.5, True, "1"):
        with pytest.raises(InvalidInput, match="seed must be"):
            checks.seed_number("seed", refused)


@pytest.mark.parametrize("value", [0.0, -1.0, np.nan, np.inf, True, "1"])
def test_what_is_not_positive(value: object) -> None:
    with pytest.raises(InvalidInput, match="gamma must be a positive number"):
        checks.positive("gamma", value)


def test_zero_is_not_negative() -> None:
    assert checks.not_negative("l2", 0) == 0.0
    with pytest.raises(InvalidInput, match="at least 0"):
        checks.not_negative("l2", -1e-300)


@pytest.mark.parametrize("value", [np.int32(3), np.uint8(3), np.int64(3), 3])
def test_numbers_come_back_as_pythons_own(value: object) -> None:
    """NumPy's would overflow: np.uint8(100) * 3 is 44."""
    assert type(checks.whole_number("rounds", value, least=1)) is int
    assert type(checks.seed_number("seed", value)) is int
    assert type(checks.positive("step_size", value)) is float
    assert type(checks.not_negative("l2", np.float32(0.5))) is float
    assert type(Batches(value).size) is int  # type: ignore[arg-type]


def test_every_number_of_a_method_or_an_engine_is_kept_converted() -> None:
    one: Any = np.int16(1)
    half: Any = np.float32(0.5)
    made: list[Any] = [
        fs.Scaffold(step_size=half, local_steps=one, cohort=one),
        fs.FedAvg(step_size=one, local_steps=one, participation=half),
        fs.TwoSidedScaffold(step_size=half, local_steps=one, server_step_size=half),
        fs.FedLin(step_size=half, local_steps=one),
        fs.ProxSkip(step_size=half, communication_probability=half),
        fs.ServerOptimizer(
            method=fs.FedAvg(step_size=half, local_steps=one), optimizer="sgd", learning_rate=half,
            options={"momentum": half},
        ),
        fs.engines.Native(threads=one),
        fs.engines.Jax(clients_at_once=one),
        fs.engines.Ray(shards=one, snapshot_every=one),
        fs.simulation.TailAverage(after=one),
        fs.models.FitSettings(tolerance=half, max_exchanges=one, dispersion=half),
    ]  # fmt: skip
    for item in made:
        for name, value in vars(item).items():
            assert not isinstance(value, np.generic), f"{type(item).__name__}.{name}"
    assert made[5].options == (("momentum", 0.5),)
    several: Any = fs.Scaffold(step_size=half, local_steps=[one, one]).local_steps
    assert all(type(steps) is int for steps in several)


@pytest.mark.parametrize("engine", ["native", "reference"])
def test_numpys_integers_give_the_numbers_of_pythons(engine: str) -> None:
    """batch_size=np.uint8(100) with the third local step once drew from position 44."""
    problem = fs.problems.RidgeStream(n_clients=3, dim=2)
    method = fs.Scaffold(step_size=0.1, local_steps=4)
    plain = fs.run(problem, method, rounds=2, batch_size=100, seed=1, engine=engine)
    given: dict[str, Any] = {
        "rounds": np.uint8(2), "batch_size": np.uint8(100), "seed": np.int32(1), "repetitions": np.int8(1)
    }  # fmt: skip
    same = fs.run(problem, method, engine=engine, **given)
    assert plain.theta.tobytes() == same.theta.tobytes()


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (np.ma.masked_equal([1.0, 2.0], 2.0), "masked"),
        ([np.ma.masked_equal([1.0, 2.0], 2.0)], "masked"),
        ([1.0, 1j], "complex"),
        (np.array([1.0, 1j], dtype=object), "complex"),
        ([10**400], "too large"),
        (["1"], "type"),
        (np.array(["1"], dtype=object), "text"),
        (np.array(["2020-01-01"], dtype="M8[D]"), "type"),
        ([[1.0], [1.0, 2.0]], "inhomogeneous"),
    ],
)
def test_what_are_no_numbers(value: object, why: str) -> None:
    with pytest.raises((TypeError, ValueError), match=why):
        checks.numbers(value)


@pytest.mark.parametrize("value", [10**400, -(10**400), [10**5000], np.ones(3), None, "x" * 1000, b"1", object()])
def test_refusals_are_one_short_line(value: object) -> None:
    for check in (checks.positive, checks.not_negative, checks.seed_number):
        with pytest.raises(InvalidInput, match="number") as refused:
            check("number", value)
        assert len(str(refused.value)) < 200
    with pytest.raises(InvalidInput, match="mode must be one of") as refused:
        checks.choice("mode", value, ("a", "b"))
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize("size", [1, 3, 7])
def test_the_noise_of_a_batch_is_that_of_all_batches(size: int) -> None:
    """The variance of the mean over all subsets of seven numbers, over that of one number."""
    values = np.random.default_rng(0).normal(size=7)
    subsets = np.array([np.mean(subset) for subset in combinations(values, size)])
    without = Batches(size, "without_replacement").noise_factor(7)
    assert without * values.var() == pytest.approx(subsets.var(), abs=1e-15)
    assert Batches(size).noise_factor(7) == pytest.approx(1.0 / size)
    assert Batches().noise_factor(7) == 0.0
