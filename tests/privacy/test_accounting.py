"""What noise protects, against dp-accounting used by hand and against the definition of δ for Gaussians."""

import math
from itertools import pairwise
from typing import Any

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting import rdp
from scipy.stats import norm

import fedscaffold as fs
from fedscaffold.privacy import (
    ClientLevel,
    NoisySteps,
    RecordLevel,
    client_epsilons,
    composed_epsilon,
    epsilon,
    noise_for,
)

WHOLE = [  # noise multiplier, δ, steps
    *[(2.0, 1e-5, 1), (10.0, 1e-5, 10), (20.0, 1e-3, 50), (40.0, 1e-4, 100), (100.0, 1e-6, 1000)],
    *[(1.0, 1e-2, 3), (0.5, 1e-5, 1), (300.0, 1e-9, 20_000), (15.0, 1e-3, 7), (6.0, 1e-2, 400)],
]
BATCHES = [  # noise multiplier, δ, steps, batch, records
    *[(4.0, 1e-4, 500, 100, 1000), (2.0, 1e-5, 100, 10, 1000), (8.0, 1e-4, 50, 30, 100), (3.0, 1e-3, 1, 5, 500)],
    *[(5.0, 1e-5, 2000, 50, 5000), (1.5, 1e-6, 300, 1, 10_000), (20.0, 1e-3, 1000, 99, 100)],
    *[(6.0, 1e-4, 20, 2, 7), (2.5, 1e-3, 10, 64, 640), (10.0, 1e-6, 5000, 200, 20_000)],
]


@pytest.mark.parametrize(("noise", "delta", "steps"), WHOLE)
def test_steps_on_all_records_are_one_gaussian_mechanism(noise: float, delta: float, steps: int) -> None:
    found = epsilon(noise_multiplier=noise, delta=delta, steps=steps)
    assert found == pytest.approx(dp.get_epsilon_gaussian(noise / 2.0 / math.sqrt(steps), delta), rel=1e-9)
    removed = epsilon(noise_multiplier=noise, delta=delta, steps=steps, adjacency="remove")
    assert removed == pytest.approx(dp.get_epsilon_gaussian(noise / math.sqrt(steps), delta), rel=1e-9)
    # the definition: δ(ε) = P(N(0,1) > εs − 1/2s) − e^ε P(N(0,1) > εs + 1/2s) with s the noise per change
    s = noise / 2.0 / math.sqrt(steps)
    tail = norm.sf(found * s - 0.5 / s) - math.exp(found + norm.logsf(found * s + 0.5 / s))
    assert tail == pytest.approx(delta, rel=1e-6)


@pytest.mark.parametrize(("noise", "delta", "steps", "batch", "records"), BATCHES)
def test_batches_without_replacement(noise: float, delta: float, steps: int, batch: int, records: int) -> None:
    accountant = rdp.RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_ONE)
    event = dp.SampledWithoutReplacementDpEvent(records, batch, dp.GaussianDpEvent(noise / 2.0))
    accountant.compose(dp.SelfComposedDpEvent(event, steps))
    own = min(accountant.get_epsilon(delta), dp.get_epsilon_gaussian(noise / 2.0 / math.sqrt(steps), delta))
    found = epsilon(noise_multiplier=noise, delta=delta, steps=steps, batch_size=batch, records=records)
    assert found == pytest.approx(own, rel=1e-9)


def test_a_batch_of_all_records_is_no_sample() -> None:
    whole = epsilon(noise_multiplier=9.0, delta=1e-3, steps=20, records=100)
    assert epsilon(noise_multiplier=9.0, delta=1e-3, steps=20, records=100, batch_size=100) == whole


@pytest.mark.parametrize(("budget", "more"), [
    (0.5, {}), (8.0, {}), *(pytest.param(b, {"batch_size": 10}, marks=pytest.mark.slow) for b in (0.5, 8.0)),
])  # fmt: skip
def test_noise_for_spends_the_budget_and_no_more(budget: float, more: dict[str, int]) -> None:
    setting = {"delta": 1e-3, "steps": 200, "records": 200, **more}
    noise = noise_for(epsilon=budget, **setting)  # type: ignore[arg-type]
    assert 0.999 * budget <= epsilon(noise_multiplier=noise, **setting) <= budget  # type: ignore[arg-type]


def test_each_client_has_a_budget_of_its_own() -> None:
    X = [np.ones((n, 2)) for n in (20, 40)]
    problem = fs.problems.Ridge(X, [np.ones(20), np.ones(40)])
    method = fs.Scaffold(step_size=0.1, local_steps=5)
    records = RecordLevel(clip=1.0, noise_multiplier=8.0)
    setting = {"delta": 1e-2, "rounds": 3}
    found = client_epsilons(problem, method, records, batch_size=4, **setting)  # type: ignore[arg-type]
    own = [epsilon(noise_multiplier=8.0, delta=1e-2, steps=15, batch_size=4, records=n) for n in (20, 40)]
    assert found.tolist() == own
    assert own[0] > own[1]
    clients = ClientLevel(clip=1.0, noise_multiplier=8.0)
    both = client_epsilons(problem, method, clients, **setting)  # type: ignore[arg-type]
    assert both.tolist() == [epsilon(noise_multiplier=8.0, delta=1e-2, steps=3)] * 2


def test_clipping_without_noise_protects_nothing() -> None:
    assert epsilon(noise_multiplier=0.0, delta=1e-3, steps=1) == math.inf


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"epsilon": 0.0}, "epsilon must be a positive number"),
        ({"epsilon": -1.0}, "epsilon must be a positive number"),
        ({"delta": 0.0}, "delta must be a positive number"),
        ({"delta": 0.01}, "delta must be below 0.01, one over the 100 that are protected; got 0.01"),
        ({"delta": 1.0, "records": None}, "delta must be below 1; got 1.0"),
        ({"steps": 0}, "steps must be a whole number of at least 1"),
        ({"batch_size": 10, "sampling": "with_replacement"}, "pass sampling='without_replacement'"),
        ({"batch_size": 10, "adjacency": "remove"}, "pass adjacency='replace'"),
        ({"batch_size": 10, "records": None}, "records is required when batch_size is given"),
        ({"batch_size": 101}, "cannot be drawn from 100"),
    ],
)
def test_nonsense_is_refused(wrong: dict[str, object], words: str) -> None:
    setting = {"epsilon": 1.0, "delta": 1e-3, "steps": 10, "records": 100, **wrong}
    with pytest.raises(fs.InvalidInput, match=words.replace("(", r"\(")):
        noise_for(**setting)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [{"clip": 0.0}, {"clip": math.inf}, {"noise_multiplier": -1.0}])
def test_clips_and_noise_are_checked(wrong: dict[str, float]) -> None:
    for level in (RecordLevel, ClientLevel):
        with pytest.raises(fs.InvalidInput, match="must be a"):
            level(**{"clip": 1.0, "noise_multiplier": 1.0, **wrong})  # type: ignore[arg-type]


def test_random_numbers_of_steps_have_no_budget() -> None:
    problem = fs.problems.Ridge(np.ones((2, 5, 2)), np.ones((2, 5)))
    method = fs.ProxSkip(step_size=0.1, communication_probability=0.1)
    with pytest.raises(fs.InvalidInput, match="random number of local steps"):
        client_epsilons(problem, method, RecordLevel(clip=1.0, noise_multiplier=1.0), rounds=3, delta=1e-2)


@pytest.mark.parametrize("batches", [{}, {"batch_size": 1, "records": 1000}, {"batch_size": 999, "records": 1000}])
def test_more_noise_never_costs_more_however_little_or_much_there_is(batches: dict[str, Any]) -> None:
    noise = [10.0**k for k in (-323, -300, -170, -160, -80, -20, -8, -4, -2, -1, 0, 1, 2, 4, 8, 12, 100, 160, 308)]
    found = [epsilon(noise_multiplier=z, delta=1e-5, steps=10, **batches) for z in noise]
    assert found[0] == np.inf
    assert found[-1] < 1e-9
    assert all(more >= less for more, less in pairwise(found))
    assert composed_epsilon([NoisySteps(z, 10) for z in noise[-12:]], delta=1e-5) >= found[-12]


@pytest.mark.parametrize("seed", range(15))
def test_random_settings_are_those_of_dp_accounting(seed: int) -> None:
    """Steps on all records are never below the exact δ, and never above Rényi divergences."""
    rng = np.random.default_rng(seed)
    noise, delta, steps = 10.0 ** rng.uniform(-2, 4), 10.0 ** rng.uniform(-12, -1), int(10.0 ** rng.uniform(0, 6))
    found = epsilon(noise_multiplier=noise, delta=delta, steps=steps)
    mean = 2.0 * np.sqrt(steps) / noise
    second = np.exp(min(found + norm.logcdf(-mean / 2 - found / mean), 700.0))
    assert norm.cdf(mean / 2 - found / mean) - second <= delta * (1 + 1e-6) + 1e-15
    accountant = rdp.RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_ONE)
    accountant.compose(dp.GaussianDpEvent(noise / 2.0), steps)
    assert found <= accountant.get_epsilon(delta) * (1 + 1e-9)
    if 1e-9 <= found <= 1e9:
        assert noise_for(epsilon=found, delta=delta, steps=steps) == pytest.approx(noise, rel=1e-4)
