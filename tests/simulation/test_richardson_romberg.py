"""Richardson–Romberg: which chains it runs on which records, and what it removes."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import fedscaffold as fs
from benchmarks.richardson_romberg import (
    Estimate,
    measure,
    noise_factors,
    slope,
    squared_bias,
)
from fedscaffold.core.random.stream import Batches
from fedscaffold.core.types import Array
from fedscaffold.engines import Native
from fedscaffold.simulation import TailAverage
from fedscaffold.simulation.rounds import initial_state, open_rounds
from fedscaffold.simulation.setup import RunSetup
from fedscaffold.simulation.stages.richardson_romberg import latest_cut
from fedscaffold.simulation.stages.stationarity import truncation
from tests.samples import make

SCAFFOLD = fs.Scaffold(step_size=0.1, local_steps=6)
FEDAVG = fs.FedAvg(step_size=0.1, local_steps=5)


def tail_average(method: Any, problem: Any, first_step: int, rounds: int, discard: int, repetitions: int) -> Array:
    """A chain by hand, all iterates kept."""
    state = initial_state(problem, method, np.zeros((repetitions, problem.dim)))
    iterates = []
    setup = RunSetup(
        problem=problem, method=method, engine=Native(), theta=state.theta, batches=Batches(2), seed=5,
        first_step=first_step,
    )  # fmt: skip
    with open_rounds(setup) as step:
        for _ in range(rounds):
            state = step(state)
            iterates.append(state.theta)
    return np.mean(iterates[discard:], axis=0)


@pytest.mark.parametrize(("rounds", "discard"), [(7, 3), (95, 10), (130, 0)])
def test_scaffold_is_made_of_three_chains_that_share_records(rounds: int, discard: int) -> None:
    problem = make("logistic")
    found = fs.richardson_romberg(
        problem, SCAFFOLD, rounds=rounds, batch_size=2, seed=5, repetitions=2, discard=discard
    )
    half = fs.Scaffold(step_size=0.2, local_steps=3)
    chain = {"rounds": rounds, "discard": discard, "repetitions": 2}
    fine = tail_average(SCAFFOLD, problem, 0, **chain)
    coarse = (tail_average(half, problem, 0, **chain) + tail_average(half, problem, 3, **chain)) / 2
    np.testing.assert_allclose(found.fine, fine, rtol=1e-12)
    np.testing.assert_allclose(found.coarse, coarse, rtol=1e-12)
    np.testing.assert_allclose(found.theta, 2 * fine - coarse, rtol=1e-11)
    assert found.from_round == discard + 1
    assert found.gradients_per_client == 2 * 6 * rounds
    assert found.vectors_per_client == 6 * rounds
    error = found.theta - problem.optimum()
    np.testing.assert_allclose(found.mse(problem.optimum()), (error**2).sum(axis=1))


def test_fedavg_is_made_of_two_runs_with_the_same_seed() -> None:
    problem = make("ridge", weights=(1, 2, 3))
    found = fs.richardson_romberg(problem, FEDAVG, rounds=60, batch_size=2, seed=5, repetitions=3, discard=20)
    fine, coarse = (
        fs.run(
            problem, method, rounds=60, batch_size=2, seed=5, repetitions=3, record=(TailAverage(after=20),)
        ).average
        for method in (FEDAVG, replace(FEDAVG, step_size=0.2))
    )
    np.testing.assert_allclose(found.theta, 2 * fine - coarse, rtol=1e-11)
    assert found.gradients_per_client == 2 * 5 * 60
    assert found.vectors_per_client == 4 * 60


def test_the_cut_is_the_latest_of_all_chains_and_can_be_repeated_by_hand() -> None:
    problem = make("logistic", (20,) * 6, 3)
    common: dict[str, Any] = {"rounds": 400, "batch_size": 2, "repetitions": 4, "theta0": [9.0, -9.0, 9.0]}
    found = fs.richardson_romberg(problem, SCAFFOLD, **common)
    assert 10 < found.from_round < 200
    again = fs.richardson_romberg(problem, SCAFFOLD, discard=found.from_round - 1, **common)
    np.testing.assert_allclose(again.theta, found.theta, rtol=1e-10)
    early = fs.richardson_romberg(problem, SCAFFOLD, discard=0, **common)
    assert (
        early.mse(problem.optimum()).min() > 5 * found.mse(problem.optimum()).max()
    )  # the start left out matters


def test_a_run_that_still_moves_is_told() -> None:
    problem = make("logistic", (20,) * 6, 3)
    slow = fs.Scaffold(step_size=0.001, local_steps=2)
    with pytest.raises(fs.NotStationary, match=r"still move after half of the 60 rounds.*rounds=120"):
        fs.richardson_romberg(problem, slow, rounds=60, batch_size=2, theta0=[9.0, -9.0, 9.0])
    with pytest.raises(fs.NotStationary, match="rounds=20 or more"):
        fs.richardson_romberg(problem, SCAFFOLD, rounds=5, batch_size=2)


def test_truncation_of_vectors() -> None:
    rng = np.random.default_rng(0)
    noise: Array = rng.normal(size=(60, 3))
    assert truncation(noise) in range(11)  # 30 would be half
    hidden = noise.copy()
    hidden[:15, 2] += 20.0  # in one coordinate alone
    assert truncation(hidden) in range(15, 26)
    moving: Array = noise + np.arange(60.0)[:, None]
    assert truncation(moving) is None


def test_the_chain_that_takes_longest_sets_the_cut() -> None:
    rng = np.random.default_rng(0)
    quick, slow = rng.normal(size=(2, 60, 3)), rng.normal(size=(2, 60, 3))
    slow[:, :15] += 20.0
    assert latest_cut([slow, quick], 600) == latest_cut([quick, slow], 600) == truncation(slow.mean(axis=0))
    assert latest_cut([quick, quick], 600) < 15
    moving: Array = quick + np.arange(60.0)[:, None]
    with pytest.raises(fs.NotStationary):
        latest_cut([quick, moving], 600)


REFUSED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "odd": (fs.Scaffold(step_size=0.1, local_steps=5), {}, "local_steps must be even, got 5"),
    "unequal": (fs.Scaffold(step_size=0.1, local_steps=(2, 4, 6)), {}, "same local_steps for all clients"),
    "participation": (replace(SCAFFOLD, cohort=2), {}, "all clients in each round"),
    "other method": (fs.ProxSkip(step_size=0.1, communication_probability=0.5), {}, "not for ProxSkip"),
    "no method": (make("ridge"), {}, "method must be a method"),
    "discard": (SCAFFOLD, {"discard": 9}, "discard=9 leaves less than two of 10 rounds"),
    "negative discard": (SCAFFOLD, {"discard": -1}, "discard must be a whole number"),
    "rounds": (SCAFFOLD, {"rounds": 0}, "rounds must be"),
    "batch": (SCAFFOLD, {"batch_size": 0}, "batch_size must be"),
    "engine": (SCAFFOLD, {"engine": "cuda"}, "engine must be one of"),
    "theta0": (SCAFFOLD, {"theta0": [1.0]}, "theta0 must have shape"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    method, arguments, message = REFUSED[name]
    with pytest.raises(fs.InvalidInput, match=message):
        fs.richardson_romberg(make("ridge"), method, **{"rounds": 10, "batch_size": 1, **arguments})


def test_twice_the_step_size_may_diverge() -> None:
    problem = make("ridge", l2=1.0)
    with pytest.raises(fs.Diverged, match=r"step_size=2\.4"):
        fs.richardson_romberg(problem, replace(SCAFFOLD, step_size=1.2), rounds=500)


def test_progress_counts_all_chains() -> None:
    seen = list[tuple[int, int]]()
    fs.richardson_romberg(
        make("ridge"), SCAFFOLD, rounds=3, batch_size=1, discard=0, progress=lambda a, b: seen.append((a, b))
    )
    assert seen == sorted(seen)
    assert sorted(set(seen)) == [(k, 9) for k in range(10)]


@pytest.mark.parametrize("truth", [np.array([0.3, -0.1, 0.0, 0.2]), np.zeros(4), np.full(4, 3.0)])
def test_squared_bias_is_unbiased_and_its_error_right(truth: Array) -> None:
    rng = np.random.default_rng(1)
    found = [squared_bias(truth + rng.normal(size=(12, 4)), np.zeros(4)) for _ in range(3000)]
    values, errors = np.array(found).T
    spread = values.std()
    assert abs(values.mean() - truth @ truth) < 4 * spread / np.sqrt(3000)
    if not truth.all():  # the plain square would be too large by 4/12
        assert 4 * spread / np.sqrt(3000) < 0.1 * 4 / 12
    assert 0.9 < np.sqrt((errors**2).mean()) / spread < (1.1 if truth.any() else 1.25)  # see its docstring


def test_slope_of_a_power() -> None:
    gammas = [0.1, 0.2, 0.5]
    found = slope(gammas, [Estimate(3 * g**4, 0.1 * g**4) for g in gammas])
    assert found.value == pytest.approx(4.0)


def test_fedavg_without_noise_gains_an_order() -> None:
    """The limits of noise-free FedAvg are exact: squared bias of order 2 becomes 4."""
    problem = make("logistic", (12, 20, 9), 3, weights=(1, 3, 2))
    plain, better = [], []
    gammas = [0.02, 0.04, 0.08]
    for gamma in gammas:
        found = fs.richardson_romberg(
            problem, fs.FedAvg(step_size=gamma, local_steps=5), rounds=int(150 / gamma), discard=int(149 / gamma)
        )
        plain.append(Estimate(float(((found.fine - problem.optimum()) ** 2).sum()), 1e-9))
        better.append(Estimate(float(found.mse(problem.optimum()).item()), 1e-9))
    assert slope(gammas, plain).value == pytest.approx(2.0, abs=0.25)
    assert slope(gammas, better).value == pytest.approx(4.0, abs=0.5)
    assert plain[0].value > 50 * better[0].value


@pytest.mark.slow
def test_scaffold_small() -> None:
    """Single records on a small problem: less than a twentieth of the bias is left after extrapolation."""
    problem = make("logistic", (30,) * 12, 4, l2=0.05, seed=1)
    point = measure(problem, fs.Scaffold(step_size=0.3, local_steps=16), rounds=1500, repetitions=48)
    plain, extrapolated, other = point.measured
    assert plain.value > 10 * plain.error
    assert extrapolated.value + 3 * extrapolated.error < plain.value / 20
    assert other.value - 3 * other.error > extrapolated.value + 3 * extrapolated.error
    assert point.variances.extrapolated < 1.6 * point.variances.plain


@pytest.mark.slow
def test_noise_factors() -> None:
    """Two coarse chains that share all records cost hardly any variance, one about 2, independent ones about 6."""
    problem = make("logistic", (30,) * 12, 4, l2=0.05, seed=1)
    shared, one, independent = noise_factors(
        problem, fs.Scaffold(step_size=0.05, local_steps=16), rounds=1000, repetitions=400
    ).values()
    assert shared == pytest.approx(1.0, abs=0.15)
    assert one == pytest.approx(2.0, rel=0.25)
    assert independent == pytest.approx(6.0, rel=0.25)


def test_the_standard_error_knows_that_rounds_are_correlated() -> None:
    """With steps so short that a block of rounds resembles the next; as if independent, it would be half."""
    problem = make("ridge", (30,) * 4, 2, l2=0.1, seed=1)
    method = fs.Scaffold(step_size=0.01, local_steps=2)
    found = fs.richardson_romberg(problem, method, rounds=2000, batch_size=1, repetitions=100, discard=400)
    ratio = found.standard_error.mean(axis=0) / found.theta.std(axis=0, ddof=1)
    np.testing.assert_allclose(ratio, 1.0, atol=0.25)


@pytest.mark.slow
def test_standard_error_is_that_of_repetitions() -> None:
    problem = make("logistic", (30,) * 12, 4, l2=0.1, seed=1)
    for method in (SCAFFOLD, fs.FedAvg(step_size=0.05, local_steps=4)):
        found = fs.richardson_romberg(problem, method, rounds=2000, batch_size=1, repetitions=100, discard=300)
        ratio = found.standard_error.mean(axis=0) / found.theta.std(axis=0, ddof=1)
        np.testing.assert_allclose(ratio, 1.0, atol=0.35)


@pytest.mark.slow
def test_orders_on_the_papers_problem() -> None:
    """Scaffold at γH = 0.8, single records: squared bias of order 2, extrapolated 4."""
    problem = fs.problems.paper("classification", n_clients=100, informative=(2, 2))
    methods = [fs.Scaffold(step_size=0.8 / H, local_steps=H) for H in (8, 12, 16)]
    points = [measure(problem, method, rounds=1200, repetitions=32) for method in methods]
    gammas = [method.step_size for method in methods]
    plain = slope(gammas, [point.measured.plain for point in points])
    extrapolated = slope(gammas, [point.measured.extrapolated for point in points])
    assert plain.value == pytest.approx(1.8, abs=0.15)  # 2 as γ → 0
    assert abs(extrapolated.value - 4.15) < 3 * extrapolated.error  # 4 as γ → 0
    assert extrapolated.error < 0.35
    for point in points:
        assert point.measured.other.value > point.measured.plain.value  # the other pair makes it worse
        assert point.variances.extrapolated < 1.3 * point.variances.plain


@pytest.mark.slow
@pytest.mark.parametrize("H", [22, 32, 46])
def test_fifty_times_less_on_the_papers_problem(H: int) -> None:
    """Scaffold at γH = 3.2, γ = 0.145 to 0.07, single records."""
    problem = fs.problems.paper("classification", n_clients=100, informative=(2, 2))
    point = measure(problem, fs.Scaffold(step_size=3.2 / H, local_steps=H), rounds=400, repetitions=16)
    plain, extrapolated, other = point.measured
    assert extrapolated.value + 3 * extrapolated.error < plain.value / 50
    assert other.value > plain.value / 3
