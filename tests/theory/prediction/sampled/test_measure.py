"""Predictions that are measured: which, how right they are, and what they say of themselves."""

import warnings
from dataclasses import replace

import numpy as np
import pytest

import fedscaffold as fs
from benchmarks.random_problems import Case, random_case
from benchmarks.simulated_errors import simulate
from fedscaffold import FedAvg, Scaffold, theory
from fedscaffold.core.errors import NoPlateau, UnreliablePrediction
from fedscaffold.core.random.batches import Batches
from fedscaffold.problems import Logistic
from fedscaffold.theory.prediction import predict as predictor
from fedscaffold.theory.prediction.predict import measured_prediction, predict_setting
from fedscaffold.theory.prediction.reliability import GAUSSIAN
from fedscaffold.theory.prediction.sampled import measure
from fedscaffold.theory.prediction.sampled import plateau as sampled
from fedscaffold.theory.prediction.sampled.pace import rounds_to_forget
from fedscaffold.theory.prediction.sampled.rounds import SampledRounds
from fedscaffold.theory.prediction.setting import Setting, setting
from tests.samples import make


def setting_of(case: Case) -> Setting:
    return setting(case.problem, case.method, case.batches)


def wide(n_clients: int = 1) -> tuple[Logistic, FedAvg]:
    """Records that move the model far: the closure is 10 % off for one client."""
    rng = np.random.default_rng(1)
    X, y = 2.0 * rng.normal(size=(n_clients, 5, 2)), np.where(rng.random((n_clients, 5)) < 0.5, -1.0, 1.0)
    problem = Logistic(X, y, l2=0.02)
    return problem, FedAvg(step_size=1.2 / problem.smoothness(Batches(None)), local_steps=3)


def test_a_plateau_of_a_wide_cloud_is_that_of_the_method() -> None:
    """One client and FedAvg: plain SGD, seen after every tenth step."""
    case = random_case("logistic", 60_250)
    problem, gamma, optimum = case.problem, case.method.step_size, case.problem.optimum()
    assert (problem.n_clients, case.method.kind, case.batches.size) == (1, "fedavg", 1)
    rng, theta, squares = np.random.default_rng(5), np.tile(optimum, (4000, 1)), []
    for step in range(1600):
        chosen = rng.integers(problem.sizes[0], size=4000)
        x, y = problem.x[chosen], problem.y[chosen]
        slope = -y / (1.0 + np.exp(y * (x * theta).sum(axis=1)))
        theta = theta - gamma * (slope[:, None] * x + problem.l2 * theta)
        if step >= 600 and step % 10 == 9:
            squares.append(np.square(theta - optimum).sum(axis=1))
    each = np.mean(squares, axis=0)
    truth, error = each.mean(), each.std() / len(each) ** 0.5
    closure, found = predict_setting(setting_of(case), None), case.predict()
    assert error < 0.005 * truth
    assert abs(closure.mse - truth) > 0.1 * truth
    assert abs(found.mse - truth) < 0.02 * truth
    assert found.mse == pytest.approx(found.mse_variance_part + found.mse_bias_part)
    assert found.reliability.reliable
    assert "was measured" in found.reliability.reason


@pytest.mark.slow
@pytest.mark.parametrize("seed", [60_084, 60_177, 60_250, 60_196, 60_008])
def test_known_misses_of_the_closure_are_within_five_percent(seed: int) -> None:
    """Off by 13, 11, 17 and 31 %; of the last the closure has two fixed points."""
    case = random_case("logistic", seed)
    found, truth = case.predict(), simulate(case)
    assert abs(found.mse - truth.plateau) < 0.05 * truth.plateau + 3.0 * truth.plateau_error
    assert found.reliability.reliable


@pytest.mark.slow
@pytest.mark.parametrize("seed", [60_084, 60_177, 60_196, 60_245])
def test_known_misses_of_curves_are_within_five_percent(seed: int) -> None:
    """Off by 16, 14, 250 % and, in the last, by a factor of 700."""
    case = random_case("logistic", seed)
    found, truth = case.predict(rounds=30), simulate(case)
    assert found.curve is not None
    apart = np.abs(found.curve - truth.curve)
    assert (apart < 0.05 * np.array(truth.curve) + 3.0 * np.array(truth.curve_errors)).all()


def test_the_same_call_gives_the_same_bits_and_leaves_global_draws_alone() -> None:
    problem, method = wide()
    np.random.seed(3)  # noqa: NPY002
    drawn = np.random.random()  # noqa: NPY002
    np.random.seed(3)  # noqa: NPY002
    one, other = (theory.predict(problem, method, batch_size=1, rounds=8) for _ in range(2))
    assert one.mse == other.mse
    assert one.curve is not None
    assert other.curve is not None
    assert one.curve.tolist() == other.curve.tolist()
    assert np.random.random() == drawn  # noqa: NPY002


def test_a_longer_measured_curve_begins_with_the_shorter_one(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, method = wide()
    curves = [theory.predict(problem, method, batch_size=1, rounds=rounds).curve for rounds in (3, 20, 300)]
    for curve in curves[:2]:
        assert curve is not None
        assert curves[2] is not None
        assert curve.tolist() == curves[2][: curve.size].tolist()
    assert curves[2] is not None
    assert curves[2][-1] == pytest.approx(theory.predict(problem, method, batch_size=1).mse, rel=1e-3)


@pytest.mark.parametrize("kind", ["ridge", "logistic"])
def test_what_the_closure_gets_right_is_not_drawn(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "sampled_plateau", None)
    problem, method = make(kind, (6, 9), 2), Scaffold(step_size=0.02, local_steps=4)  # type: ignore[arg-type]
    s = setting(problem, method, Batches(2))
    closure, found = predict_setting(s, 10), measured_prediction(s, 10)
    assert found.mse == closure.mse
    assert found.curve is not None
    assert closure.curve is not None
    assert found.curve.tolist() == closure.curve.tolist()


def test_a_narrow_plateau_with_a_curve_in_doubt_keeps_its_plateau() -> None:
    """From far away single records move the model much; on the plateau hardly."""
    case = random_case("logistic", 60_143)
    closure, found = predict_setting(setting_of(case), 10), case.predict(rounds=10)
    assert closure.curve is not None
    assert found.curve is not None
    assert found.mse == closure.mse
    assert np.abs(found.curve / closure.curve - 1.0).max() > 0.1
    assert "the curve was measured" in found.reliability.reason


def test_without_a_budget_the_closure_remains_and_says_what_it_leaves_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampled, "BUDGET", 1e4)
    problem, method = wide()
    closure = predict_setting(setting(problem, method, Batches(1)), None)
    with pytest.warns(UnreliablePrediction):
        found = theory.predict(problem, method, batch_size=1)
    assert found.mse == closure.mse
    assert found.reliability == closure.reliability


def test_a_rough_measurement_corrects_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "ROUGH", 1e-6)
    problem, method = wide()
    s = setting(problem, method, Batches(1))
    assert measured_prediction(s, None).mse == predict_setting(s, None).mse


def test_rounds_that_still_drift_count_as_less_reliable() -> None:
    problem, method = wide()
    s = setting(problem, method, Batches(1))
    closure = predict_setting(s, None)
    steady = sampled.sampled_plateau(s, rounds_to_forget(s), closure.bias, closure.bias_xi, 1)
    assert steady is not None
    assert "later rounds" not in measure.corrected(closure, replace(steady, drift=0.0)).reliability.reason
    drifting = measure.corrected(closure, replace(steady, drift=0.02)).reliability
    assert drifting.neglected == pytest.approx(200.0 * steady.error + 2.0)
    assert "later rounds differ from earlier ones" in drifting.reason


def test_gaussian_clouds_are_measured_where_margins_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of problems with many features third cumulants are not followed, and nothing else says what is left out."""
    monkeypatch.setattr(measure, "follows_skewness", lambda s: False)
    problem, method = wide()
    s = setting(problem, method, Batches(1))
    gaussian = replace(predict_setting(s, None), reliability=GAUSSIAN)
    assert measure.margin_variance(s, gaussian.cov_theta) > measure.WIDE
    found = measure.measured(s, gaussian, None)
    assert found is not None
    assert "was measured" in found.reliability.reason
    monkeypatch.setattr(sampled, "BUDGET", 1e4)
    left = measure.measured(s, gaussian, None)
    assert left is not None
    assert left.mse == gaussian.mse
    assert left.reliability.neglected > GAUSSIAN.neglected
    assert "spread widely" in left.reliability.reason
    narrow = setting(problem, FedAvg(step_size=method.step_size / 100, local_steps=3), Batches(1))
    assert measure.margin_variance(narrow, np.zeros((2, 2))) < measure.WIDE
    exact = replace(gaussian, cov_theta=np.zeros((2, 2)))
    assert measure.measured(narrow, exact, None) is exact


def test_margin_variance_is_that_of_many_drawn_rounds() -> None:
    """Of all records, weighted by ‖x‖² ℓ'², after a round from a cloud around θ* with ξ*."""
    s, count = setting(make("logistic", (4, 6), 2), Scaffold(step_size=0.05, local_steps=6), Batches(1)), 20_000
    draw, cov = SampledRounds(s, 5), 1e-3 * np.array([[2.0, 0.5], [0.5, 1.0]])
    begin = np.random.default_rng(0).multivariate_normal(s.optimum, cov, size=count).T
    local = np.repeat(begin[None, :, None], 2, axis=2)
    for _ in range(s.H):
        local = local - s.gamma * draw.gradient(local, np.repeat(-s.gradients.T[None, :, :, None], count, axis=3))
    found = 0.0
    for c in range(2):
        rows = slice(int(draw.problem.offsets[c]), int(draw.problem.offsets[c + 1]))
        x, y = draw.problem.x[rows], draw.problem.y[rows]
        spread = (x @ local[0, :, c]).var(axis=1)
        weight = np.square(x).sum(axis=1) * np.square(draw.problem.d1(x @ s.optimum, y))
        found += s.problem.weights[c] * float(weight @ spread) / float(weight.sum())
    assert measure.margin_variance(s, cov) == pytest.approx(found, rel=0.1)
    assert measure.margin_variance(s, np.zeros((2, 2))) < 0.9 * found


def test_a_plateau_that_the_closure_does_not_find_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, method = wide()
    usual = theory.predict(problem, method, batch_size=1, rounds=12)

    def refuse(s: Setting, rounds: int | None) -> theory.Prediction:
        raise NoPlateau("no plateau found")

    monkeypatch.setattr(predictor, "predict_setting", refuse)
    found = theory.predict(problem, method, batch_size=1, rounds=12)
    assert found.mse == pytest.approx(usual.mse, rel=0.03)
    assert found.curve is not None
    assert usual.curve is not None
    np.testing.assert_allclose(found.curve, usual.curve, rtol=0.06)
    monkeypatch.setattr(sampled, "BUDGET", 1e4)
    with pytest.raises(fs.InvalidInput, match="no plateau found"):
        theory.predict(problem, method, batch_size=1)


@pytest.mark.slow
def test_sixty_heavy_tailed_features_are_not_refused() -> None:
    case = random_case("logistic", 60_108)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UnreliablePrediction)
        found = case.predict()
    truth = simulate(case)
    assert found.mse == pytest.approx(truth.plateau, rel=0.03)


def test_what_diverges_without_noise_is_still_refused() -> None:
    problem, _ = wide()
    l2 = 0.02
    with pytest.raises(fs.InvalidInput, match="does not contract"):
        theory.predict(problem, FedAvg(step_size=2.5 / l2, local_steps=3), batch_size=1)
