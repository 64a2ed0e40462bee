"""The predictor against simulation.

A prediction passes when it is within the tolerance of what was measured and the measurement's standard error is at
most a third of the tolerance. Seeds are fixed. Over seeds, a right prediction of one number fails by chance in
0.3 % of cases at most, and one of the 100 rounds of a right curve, measured to a quarter of the tolerance, in 1 %.
"""

import time

import numpy as np
import pytest

import fedscaffold as fs
from fedscaffold import FedAvg, Scaffold, problems, theory
from fedscaffold.core.random.batches import Batches, Sampling
from fedscaffold.core.types import Array
from fedscaffold.problems import Logistic, Ridge
from fedscaffold.theory.prediction.reliability import measured_anyway
from tests.samples import KINDS, Kind, make
from tests.theory.measured import Measured, curve, plateau
from tests.theory.prediction.test_expansion import curved

TOLERANCE = {"ridge": 0.03, "logistic": 0.05}
METHODS: tuple[type[Scaffold], type[FedAvg]] = (Scaffold, FedAvg)


def paper(kind: Kind, n_clients: int) -> Ridge | Logistic:
    return problems.paper("regression" if kind == "ridge" else "classification", n_clients=n_clients)


def in_paper(method: type[Scaffold | FedAvg]) -> Scaffold | FedAvg:
    return method(step_size=0.05, local_steps=100)


def assert_within(found: Array | float, measured: Measured, tolerance: float) -> None:
    assert (measured.error <= tolerance / 3 * measured.value).all(), "not measured well enough to tell"
    np.testing.assert_allclose(found, measured.value, rtol=tolerance)


def check_paper(
    kind: Kind, method: type[Scaffold | FedAvg], n_clients: int, repetitions: int, rounds: int
) -> None:
    problem, chosen = paper(kind, n_clients), in_paper(method)
    found = theory.predict(problem, chosen, batch_size=10, rounds=100)
    assert found.curve is not None
    assert found.curve.shape == (101,)
    start = problem.optimum() + found.bias
    level = plateau(problem, chosen, batch_size=10, repetitions=repetitions, rounds=rounds, start=start)
    assert_within(found.mse, level.mse, TOLERANCE[kind])
    way = curve(problem, chosen, batch_size=10, repetitions=repetitions, rounds=100)
    assert_within(found.curve, way, 0.10)


@pytest.mark.parametrize(
    ("kind", "method"),
    [
        ("ridge", Scaffold),
        pytest.param("logistic", FedAvg, marks=pytest.mark.slow),
        pytest.param("ridge", FedAvg, marks=pytest.mark.slow),
        pytest.param("logistic", Scaffold, marks=pytest.mark.slow),
    ],
)
def test_papers_setting_with_ten_clients(kind: Kind, method: type[Scaffold | FedAvg]) -> None:
    check_paper(kind, method, n_clients=10, repetitions=180, rounds=140)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "n_clients", "repetitions", "rounds"),
    [(Scaffold, 100, 200, 250), (FedAvg, 100, 100, 250), (Scaffold, 1000, 200, 100), (FedAvg, 1000, 30, 150)],
)
@pytest.mark.parametrize("kind", KINDS)
def test_papers_setting(
    kind: Kind, method: type[Scaffold | FedAvg], n_clients: int, repetitions: int, rounds: int
) -> None:
    check_paper(kind, method, n_clients, repetitions, rounds)


def check_bias(gamma_H_L: float, H: int, *, rounds: int, repetitions: int) -> None:
    problem = curved(clients=10)
    L = problem.smoothness(Batches(None))
    method = Scaffold(step_size=gamma_H_L / (H * L), local_steps=H)
    with measured_anyway():
        found = theory.predict(problem, method, batch_size=1)
    level = plateau(
        problem, method, batch_size=1, repetitions=repetitions, rounds=rounds, start=problem.optimum(), after=150
    )
    size = np.linalg.norm(level.bias.value)
    assert np.linalg.norm(level.bias.error) <= 0.05 * size, "not measured well enough to tell"
    assert np.linalg.norm(found.bias - level.bias.value) <= 0.15 * size
    first_order = theory.expansion(problem, method, batch_size=1).bias
    assert np.linalg.norm(first_order) < 0.5 * size


@pytest.mark.parametrize("gamma_H_L", [1.0, 3.0])
def test_bias_of_logistic_regression_with_single_records(gamma_H_L: float) -> None:
    check_bias(gamma_H_L, 10, rounds=800, repetitions=200)


@pytest.mark.slow
@pytest.mark.parametrize(("gamma_H_L", "H", "rounds"), [(0.3, 10, 8000), (1.0, 40, 1500), (3.0, 40, 800)])
def test_bias_of_logistic_regression_in_small_and_long_rounds(gamma_H_L: float, H: int, rounds: int) -> None:
    check_bias(gamma_H_L, H, rounds=rounds, repetitions=400)


@pytest.mark.parametrize(
    "sampling", [pytest.param("with_replacement", marks=pytest.mark.slow), "without_replacement"]
)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", KINDS)
def test_weights_and_unequal_sizes(kind: Kind, method: type[Scaffold | FedAvg], sampling: Sampling) -> None:
    problem = make(kind, (30, 12, 55, 20, 9), 3, weights=(3.0, 1.0, 2.0, 1.0, 0.5), seed=7)
    chosen = method(step_size=0.1, local_steps=20)
    found = theory.predict(problem, chosen, batch_size=3, sampling=sampling)
    level = plateau(
        problem,
        chosen,
        batch_size=3,
        repetitions=400,
        rounds=400,
        start=problem.optimum() + found.bias,
        sampling=sampling,
    )
    assert_within(found.mse, level.mse, TOLERANCE[kind])


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_cost(kind: Kind) -> None:
    for n_clients, seconds in ((1000, 5.0), (10_000, 60.0)):
        problem = paper(kind, n_clients)
        begin = time.perf_counter()
        theory.predict(problem, in_paper(Scaffold), batch_size=10)
        assert time.perf_counter() - begin < seconds


@pytest.mark.parametrize("kind", ["ridge", "logistic"])
def test_an_intercept_without_penalty(kind: Kind) -> None:
    """Plateau with an n_unpenalised last feature, within three standard errors and two percent."""
    problem = make(kind, (20, 15, 25), 3, l2=0.5, n_unpenalised=1)
    method = Scaffold(step_size=0.05, local_steps=10)
    predicted = theory.predict(problem, method, batch_size=2).mse
    penalised = theory.predict(make(kind, (20, 15, 25), 3, l2=0.5), method, batch_size=2).mse
    measured = fs.run(problem, method, rounds=3000, batch_size=2, repetitions=120).plateau()
    assert measured is not None
    assert measured.standard_error < 0.007 * measured.mean
    assert abs(predicted - measured.mean) < 3 * measured.standard_error + 0.02 * measured.mean
    assert abs(penalised - measured.mean) > 0.2 * measured.mean
