"""Predictions at the edges: no noise, single records, strong feedback of noise, long horizons, many features."""

import warnings

import numpy as np
import pytest

import fedscaffold as fs
from benchmarks.random_problems import largest_step_size, random_case
from benchmarks.ridge_moments import ExactRidge
from fedscaffold import FedAvg, Scaffold, theory
from fedscaffold.core.errors import UnreliablePrediction
from fedscaffold.core.random.batches import Batches
from fedscaffold.core.types import Array
from fedscaffold.problems import Logistic, Ridge
from fedscaffold.theory.prediction import predict as predictor
from fedscaffold.theory.prediction import setting as settings
from fedscaffold.theory.prediction.moments import predict as sizes
from fedscaffold.theory.prediction.sampled import plateau as drawn
from tests.samples import Kind, make

SCAFFOLD = Scaffold(step_size=0.1, local_steps=5)


def realisable(l2: float) -> Ridge:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3, 9, 3))
    return Ridge(X, X @ rng.normal(size=3), l2=l2)


def predicted_curve(
    problem: Ridge | Logistic, method: Scaffold | FedAvg, rounds: int, batch_size: int | None
) -> Array:
    return curve_of(theory.predict(problem, method, batch_size=batch_size, rounds=rounds))


def curve_of(found: theory.Prediction) -> Array:
    assert found.curve is not None
    return found.curve


@pytest.mark.parametrize("kind", ["ridge", "logistic"])
@pytest.mark.parametrize("method", [Scaffold, FedAvg])
def test_all_records_without_replacement_are_the_run_without_noise(
    kind: Kind, method: type[Scaffold | FedAvg]
) -> None:
    problem, chosen = make(kind, (9, 9, 9), 3), method(step_size=0.1, local_steps=5)
    whole = theory.predict(problem, chosen, batch_size=9, sampling="without_replacement", rounds=10)
    mse = fs.run(problem, chosen, rounds=10, engine="reference", progress=False).mse[0]
    np.testing.assert_allclose(curve_of(whole), mse, rtol=1e-3)


@pytest.mark.parametrize("l2", [0.0, 1e-8])
def test_records_that_a_model_fits_have_no_plateau_but_zero(l2: float) -> None:
    problem = realisable(l2)
    found = theory.predict(problem, SCAFFOLD, batch_size=1, rounds=10)
    exact = ExactRidge(problem, 0.1, 5, Batches(1), True)
    np.testing.assert_allclose(curve_of(found), exact.curve(10), rtol=2e-3)
    assert found.mse < 1e-15
    with pytest.raises(fs.InvalidInput, match="no plateau found"):
        theory.predict(problem, Scaffold(step_size=0.6, local_steps=5), batch_size=1)


@pytest.mark.parametrize("kind", [Ridge, Logistic])
def test_clients_of_one_record_have_no_noise(kind: type[Ridge | Logistic]) -> None:
    problem = kind(np.random.default_rng(1).normal(size=(3, 1, 2)), np.ones((3, 1)), l2=0.1)
    found = theory.predict(problem, SCAFFOLD, batch_size=1, rounds=10)
    mse = fs.run(problem, SCAFFOLD, rounds=10, engine="reference", progress=False).mse[0]
    np.testing.assert_allclose(curve_of(found), mse, rtol=2e-3)
    assert found.mse == 0.0


MANY_SINGLE_RECORDS = [  # γ times the smoothness, H, E‖θ − θ*‖² of 400 runs of 400 rounds, and the tolerance
    (1.9, 10, 0.0949, 0.05),
    (0.3, 100, 0.002895, 0.06),
]


@pytest.mark.parametrize(("share", "H", "simulated", "tolerance"), MANY_SINGLE_RECORDS)
def test_bias_of_many_clients_with_single_records(
    share: float, H: int, simulated: float, tolerance: float
) -> None:
    """Ten clients of four records, each eight times over: margins spread so far that three points are too few."""
    rng = np.random.default_rng(0)
    X, y = 2.0 * rng.normal(size=(10, 4, 2)), np.where(rng.random((10, 4)) < 0.5, -1.0, 1.0)
    problem = Logistic(np.repeat(X, 8, axis=0), np.repeat(y, 8, axis=0), l2=0.01)
    gamma = share / problem.smoothness(Batches(None))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnreliablePrediction)
        found = theory.predict(problem, Scaffold(step_size=gamma, local_steps=H), batch_size=1)
    assert found.mse == pytest.approx(simulated, rel=tolerance)


@pytest.mark.parametrize("way", ["step by step", "at once"])
@pytest.mark.parametrize("kind", ["ridge", "logistic"])
def test_a_longer_curve_begins_with_the_shorter_one(kind: Kind, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if way == "at once":
        monkeypatch.setattr(sizes, "LARGEST_STATE", 0)
    problem, method = make(kind, (6, 9, 4), 2), Scaffold(step_size=0.3, local_steps=4)
    curves = [predicted_curve(problem, method, rounds, 1) for rounds in (24, 25, 30)]
    for curve in curves[:2]:
        np.testing.assert_allclose(curve, curves[2][: curve.size], rtol=1e-12)


@pytest.mark.parametrize(
    "X", [[[[1.0, 2.0, 3.0]], [[0.5, 1.0, 4.0]]], [[[1.0], [2.0], [3.0]], [[0.5], [1.0], [4.0]]]]
)
def test_without_noise_the_curve_is_the_run_also_far_from_the_optimum(X: list[list[list[float]]]) -> None:
    table = np.array(X)
    problem = Logistic(table, np.ones(table.shape[:2]), l2=1e-3)
    method = Scaffold(step_size=1.0 / problem.smoothness(Batches(None)), local_steps=100)
    mse = fs.run(problem, method, rounds=12, engine="reference", progress=False).mse[0]
    np.testing.assert_allclose(predicted_curve(problem, method, 12, None), mse, rtol=0.01)


@pytest.mark.parametrize("share", [0.8, 0.95, 0.99])
def test_a_plateau_is_found_up_to_the_limit_of_mean_squares(share: float) -> None:
    rng = np.random.default_rng(0)
    problem = Ridge(rng.standard_t(2.5, size=(3, 10, 2)), rng.normal(size=(3, 10)), l2=0.1)
    limit = largest_step_size(problem, Scaffold, 5, Batches(1))
    exact = ExactRidge(problem, share * limit, 5, Batches(1), True).plateau()
    found = theory.predict(problem, Scaffold(step_size=share * limit, local_steps=5), batch_size=1)
    assert found.mse == pytest.approx(exact, rel=1e-3)
    with pytest.raises(fs.InvalidInput, match="no plateau found"):
        theory.predict(problem, Scaffold(step_size=1.02 * limit, local_steps=5), batch_size=1)


def test_acceleration_finds_the_plateau_of_larger_problems_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "LARGEST_STATE", 0)
    test_a_plateau_is_found_up_to_the_limit_of_mean_squares(0.8)


@pytest.mark.parametrize("seed", range(6))
def test_ridge_curves_are_exact_on_random_problems(seed: int) -> None:
    case = random_case("ridge", 900 + seed)
    found, exact = case.predict(rounds=20), case.exact()
    np.testing.assert_allclose(curve_of(found), exact.curve(20), rtol=5e-3)
    assert found.mse == pytest.approx(exact.plateau(), rel=5e-3)
    assert found.reliability.neglected == 0.0


def test_an_unreliable_prediction_warns_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawn, "BUDGET", 1e4)  # nanoseconds: too few to measure it instead
    rng = np.random.default_rng(0)
    problem = Logistic(2.0 * rng.normal(size=(3, 4, 2)), np.where(rng.random((3, 4)) < 0.5, -1.0, 1.0), l2=0.01)
    gamma = 1.9 / problem.smoothness(Batches(None))
    with pytest.warns(UnreliablePrediction, match="fourth"):
        found = theory.predict(problem, Scaffold(step_size=gamma, local_steps=10), batch_size=1)
    assert not found.reliability.reliable
    assert "fourth" in found.reliability.reason
    sure = theory.predict(problem, Scaffold(step_size=0.02 * gamma, local_steps=2), batch_size=4)
    assert sure.reliability.neglected < 1.0
    assert "reliability" in repr(sure)


@pytest.mark.parametrize("kind", ["ridge", "logistic"])
def test_fewer_passes_for_many_clients_change_little(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    problem, method = make(kind, (12,) * 80, 4, l2=0.2), Scaffold(step_size=0.1, local_steps=20)
    quick = theory.predict(problem, method, batch_size=1)
    monkeypatch.setattr(settings, "SETTLED_MANY", 1e-7)
    slow = theory.predict(problem, method, batch_size=1)
    assert quick.mse == pytest.approx(slow.mse, rel=3e-3)
    assert quick.mse != slow.mse


def test_too_many_features_are_refused_with_an_estimate_and_a_way_out() -> None:
    rng = np.random.default_rng(0)
    problem = Ridge(rng.normal(size=(3, 4, 1000)), rng.normal(size=(3, 4)), l2=0.1)
    with pytest.raises(fs.InvalidInput, match=r"1,000 features .* minutes; use theory.expansion"):
        theory.predict(problem, Scaffold(step_size=2e-3, local_steps=100), batch_size=1)


def test_many_features_of_clients_alike_are_not_refused() -> None:
    """What a prediction takes depends on how much curvatures differ, not on features alone."""
    rng = np.random.default_rng(0)
    problem = Ridge(rng.normal(size=(2, 240, 200)) / 14.0, rng.normal(size=(2, 240)), l2=0.1)
    s = settings.setting(problem, Scaffold(step_size=0.05, local_steps=100), Batches(10))
    predictor.check_affordable(s)


def test_without_noise_no_cumulants_are_followed() -> None:
    """They are zero, and following them made long rounds take a minute."""
    case = random_case("logistic", 60_171)
    s = settings.setting(case.problem, case.method, case.batches)
    assert s.H == 2000
    assert not s.noisy
    assert sizes.small_round(s).skewed is None
    run = fs.run(case.problem, case.method, rounds=2, engine="reference", progress=False).mse[0]
    np.testing.assert_allclose(curve_of(case.predict(rounds=2)), run, atol=1e-12 * run[0])
