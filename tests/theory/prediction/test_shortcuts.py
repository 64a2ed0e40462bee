"""What makes predictions fast, against the slow way."""

import numpy as np
import pytest

import fedscaffold as fs
from fedscaffold import FedAvg, Scaffold, theory
from fedscaffold.core.random.batches import Batches
from fedscaffold.core.types import Array
from fedscaffold.problems import Logistic
from fedscaffold.theory.client_blocks import list_blocks
from fedscaffold.theory.prediction.clouds import margins
from fedscaffold.theory.prediction.clouds.margins import MarginAverages
from fedscaffold.theory.prediction.curve import curve_parts
from fedscaffold.theory.prediction.many_clients import mean_rounds
from fedscaffold.theory.prediction.moments.curve import small_curve
from fedscaffold.theory.prediction.moments.local_round import LocalRound, RoundMap, Start
from fedscaffold.theory.prediction.moments.noiseless import noiseless_steps
from fedscaffold.theory.prediction.moments.skewed_margins import SkewedMargins
from fedscaffold.theory.prediction.setting import Setting, setting
from fedscaffold.theory.prediction.stationary import solve_stationary
from tests.samples import make


def without_noise(H: int) -> Setting:
    method = Scaffold(step_size=0.3, local_steps=H)
    return setting(make("logistic", (9, 6, 9), 2), method, Batches(None))


def test_without_noise_means_follow_every_gradient() -> None:
    s = without_noise(40)
    rng = np.random.default_rng(0)
    theta, ahead = rng.normal(size=2), 0.1 * rng.normal(size=(3, 2))
    local = np.tile(s.optimum + theta, (3, 1))
    for _ in range(40):
        slopes = np.stack([s.problem.client_gradients(model)[c] for c, model in enumerate(local)])
        local = local - 0.3 * (slopes - s.gradients + ahead)
    found, _ = noiseless_steps(s, list_blocks(s.problem), theta, ahead)
    np.testing.assert_allclose(found, local - s.optimum, rtol=1e-11, atol=1e-13)


def test_without_noise_the_end_of_a_round_depends_on_its_beginning_as_differences_say() -> None:
    s, step = without_noise(40), 1e-5
    theta, ahead = np.array([0.5, -0.3]), np.zeros((3, 2))

    def end(of_theta: Array, of_ahead: Array) -> Array:
        return noiseless_steps(s, list_blocks(s.problem), theta + of_theta, ahead + of_ahead)[0]

    _, B = noiseless_steps(s, list_blocks(s.problem), theta, ahead)
    for j, one in enumerate(step * np.eye(2)):
        by_theta = (end(one, 0.0 * ahead) - end(-one, 0.0 * ahead)) / (2.0 * step)
        by_ahead = (end(0.0 * one, one + 0.0 * ahead) - end(0.0 * one, 0.0 * ahead - one)) / (2.0 * step)
        np.testing.assert_allclose(B[:, :, j], by_theta, atol=2e-3)
        np.testing.assert_allclose(B[:, :, 2 + j], by_ahead, atol=2e-3 * np.abs(by_ahead).max())


@pytest.mark.parametrize("method", [Scaffold, FedAvg])
def test_two_thousand_local_steps_without_noise_end_where_the_run_does(method: type[Scaffold | FedAvg]) -> None:
    problem, chosen = make("logistic", (9, 6), 2, l2=0.01), method(step_size=0.5, local_steps=2000)
    found = theory.predict(problem, chosen, batch_size=None, rounds=4)
    mse = fs.run(problem, chosen, rounds=4, engine="reference", progress=False).mse[0]
    assert found.curve is not None
    np.testing.assert_allclose(found.curve, mse, rtol=1e-3)


def test_a_record_far_out_does_not_change_how_others_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups of margins of like spread have the means that all of them have with the most points."""
    rng = np.random.default_rng(1)
    problem = make("logistic", (9,), 2)
    assert isinstance(problem, Logistic)
    z, y = 2.0 * rng.normal(size=(1, 3, 400)), np.where(rng.random((1, 1, 400)) < 0.5, -1.0, 1.0)
    spread = rng.uniform(1e-3, 1.0, size=z.shape) ** 3 * 6.0
    spread[0, 0, 0] = 9.0
    skewness = rng.uniform(-0.5, 0.5, size=z.shape)
    plain = MarginAverages(problem, quadratic=False)
    skewed = SkewedMargins(problem, list_blocks(problem), Batches(1))
    labels = np.broadcast_to(y, z.shape)
    grouped = [*plain._over_margins(z, spread, y), *skewed.over_margins(z, spread, skewness, labels)]
    monkeypatch.setattr(margins, "WORTH_GROUPING", np.inf)
    alike = [*plain._over_margins(z, spread, y), *skewed.over_margins(z, spread, skewness, labels)]
    for one, other in zip(grouped, alike, strict=True):
        np.testing.assert_allclose(one.mean(), other.mean(), atol=5e-4 * np.abs(other).max())
    for one, other in zip(grouped[:2], alike[:2], strict=True):
        np.testing.assert_allclose(one, other, atol=2e-3)


def test_a_curve_of_one_round_takes_one_look_at_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    s = setting(make("logistic", (9, 6), 2), Scaffold(step_size=0.1, local_steps=3), Batches(2))
    look, looks = LocalRound.__call__, 0

    def counted(self: LocalRound, start: Start) -> RoundMap:
        nonlocal looks
        looks += 1
        return look(self, start)

    monkeypatch.setattr(LocalRound, "__call__", counted)
    one = np.add(*small_curve(s, LocalRound(s, skew=False), 1))
    assert looks == 1
    np.testing.assert_array_equal(one, np.add(*small_curve(s, LocalRound(s, skew=False), 5))[:2])


def test_rounds_near_the_plateau_need_not_be_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """A curve of many clients whose paths are only found where they may have changed is that with all of them."""
    rng = np.random.default_rng(2)
    X = rng.normal(size=(80, 12, 3))
    y = np.where(X @ rng.normal(size=3) + rng.normal(size=(80, 12)) > 0.0, 1.0, -1.0)
    s = setting(Logistic(X, y, l2=0.1), Scaffold(step_size=0.2, local_steps=10), Batches(2))
    state = solve_stationary(s)
    find, finds = mean_rounds.sweeps, 0

    def counted(*arguments: object) -> object:
        nonlocal finds
        finds += 1
        return find(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(mean_rounds, "sweeps", counted)
    some, fewer = curve_parts(s, state, 60), finds
    monkeypatch.setattr(mean_rounds.Settled, "distance", lambda *_: np.inf)
    finds = 0
    every = curve_parts(s, state, 60)
    assert fewer < 0.6 * finds
    np.testing.assert_allclose(np.add(*some), np.add(*every), rtol=2e-3)
