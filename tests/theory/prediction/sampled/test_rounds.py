"""Drawn rounds against pseudo-code, and against exact means of ridge."""

import numpy as np
import pytest

from benchmarks.ridge_moments import ExactRidge
from fedscaffold import FedAvg, Scaffold
from fedscaffold.core.random.batches import Batches, Sampling
from fedscaffold.theory.prediction.moments.local_round import LocalRound
from fedscaffold.theory.prediction.moments.state import at_rest, start_of, transition
from fedscaffold.theory.prediction.sampled.curve import sampled_curve, with_known_mean
from fedscaffold.theory.prediction.sampled.pace import rounds_to_forget
from fedscaffold.theory.prediction.sampled.plateau import SampledPlateau, sampled_plateau
from fedscaffold.theory.prediction.sampled.rounds import Replicas, SampledRounds
from fedscaffold.theory.prediction.setting import Setting, setting
from tests import naive
from tests.samples import Kind, make, tables

METHODS = [Scaffold, FedAvg]
SIZES = (3, 6, 2)
SINGLE = Batches(1)


def chosen(
    kind: Kind,
    method: type[Scaffold | FedAvg] = Scaffold,
    *,
    gamma: float = 0.3,
    H: int = 4,
    batches: Batches = SINGLE,
    sizes: tuple[int, ...] = SIZES,
) -> Setting:
    return setting(make(kind, sizes, 2, weights=(0.5, 0.2, 0.3)), method(step_size=gamma, local_steps=H), batches)


@pytest.mark.parametrize("sampling", ["with_replacement", "without_replacement"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", ["ridge", "logistic"])
def test_drawn_rounds_are_those_of_the_pseudo_code(
    kind: Kind, method: type[Scaffold | FedAvg], sampling: Sampling
) -> None:
    s = chosen(kind, method, batches=Batches(2, sampling))
    draw, again, rounds, replicas = SampledRounds(s, 7), SampledRounds(s, 7), 3, 4
    rows = np.array([[again.records(replicas) for _ in range(s.H)] for _ in range(rounds)])
    now = Replicas.at(s, np.zeros(2), np.zeros((3, 2)), replicas)
    for _ in range(rounds):
        now = draw(now)
    X, y = tables(kind, SIZES, 2)
    clients = naive.Clients(
        kind, [x.tolist() for x in X], [v.tolist() for v in y], 0.1, list(map(float, s.problem.weights))
    )
    begin = [0, 3, 9]

    def indices(repetition: int, t: int, c: int, h: int) -> list[int]:
        return [int(row) - begin[c] for row in rows[t, h, :, c, repetition]]

    oracle = naive.scaffold if method is Scaffold else naive.fedavg
    for replica in range(replicas):
        found = oracle(clients, indices, gamma=s.gamma, H=s.H, T=rounds, theta=[0.0, 0.0], repetition=replica)
        np.testing.assert_allclose(now.theta[0, :, replica], found.theta, rtol=1e-11)
        if now.xi is not None:
            np.testing.assert_allclose(now.xi[0, :, :, replica].T, found.control_variates, rtol=1e-9, atol=1e-12)


def test_batches_without_replacement_are_all_equally_likely() -> None:
    s = chosen("logistic", batches=Batches(3, "without_replacement"), sizes=(5, 3, 4))
    rows = np.sort(SampledRounds(s, 1).records(60_000), axis=0)
    assert (np.diff(rows, axis=0) > 0).all()
    for client, (begin, count) in enumerate([(0, 10), (5, 1), (8, 4)]):
        sets, seen = np.unique(rows[:, client], axis=1, return_counts=True)
        assert sets.shape == (3, count)
        assert sets.min() == begin
        np.testing.assert_allclose(seen / 60_000, 1 / count, rtol=0.06)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("gamma", "H"), [(0.3, 4), (0.05, 1), (0.6, 60)])
def test_rounds_to_forget_are_those_of_the_slowest_eigenvalue(
    method: type[Scaffold | FedAvg], gamma: float, H: int
) -> None:
    s = chosen("ridge", method, gamma=gamma, H=H)
    rest = at_rest(s, np.zeros(2), np.zeros((3, 2)), skew=False)
    A, _ = transition(s, LocalRound(s, skew=False, step_by_step=H)(start_of(s, rest)))
    radius = np.abs(np.linalg.eigvals(A)).max()
    assert rounds_to_forget(s) == pytest.approx(1.0 / (1.0 - radius), rel=0.02)


def test_long_rounds_forget_slowly_through_their_control_variates() -> None:
    assert rounds_to_forget(chosen("ridge", gamma=0.4, H=500)) > 100.0
    assert rounds_to_forget(chosen("ridge", FedAvg, gamma=0.4, H=500)) < 1.1


def test_a_method_that_does_not_contract_never_forgets() -> None:
    assert rounds_to_forget(chosen("ridge", gamma=50.0, H=2)) == np.inf
    assert rounds_to_forget(chosen("ridge", gamma=50.0, H=2000)) == np.inf


def settled(s: Setting) -> SampledPlateau:
    found = sampled_plateau(s, rounds_to_forget(s), np.zeros(2), np.zeros_like(s.gradients), 3)
    assert found is not None
    return found


@pytest.mark.parametrize("method", METHODS)
def test_plateau_and_curve_of_ridge_are_exact_within_their_standard_errors(
    method: type[Scaffold | FedAvg],
) -> None:
    s = chosen("ridge", method)
    found = settled(s)
    exact = ExactRidge(s.problem, s.gamma, s.H, s.batches, method is Scaffold)  # type: ignore[arg-type]
    assert 0.0 < found.error <= 0.005
    assert found.drift == 0.0
    assert abs(found.mse / exact.plateau() - 1.0) < 4.0 * found.error
    assert np.trace(found.second) == pytest.approx(found.mse)
    way = sampled_curve(s, rounds_to_forget(s), found, exact.plateau(), 3)
    expected = exact.curve(way.values.size - 1)
    assert (np.abs(way.values / expected - 1.0) < 4.5 * way.errors + 1e-12).all()
    assert way.errors.max() < 0.02


def test_a_run_on_the_plateau_beside_it_takes_the_noise_from_a_curve() -> None:
    rng = np.random.default_rng(0)
    common = rng.normal(size=4000) ** 2
    values = np.stack([common + 3.0 + 0.1 * rng.normal(size=4000), rng.normal(size=4000) + 5.0])
    found = with_known_mean(values, np.stack([common, common]), 1.0)
    np.testing.assert_allclose(found.values, [4.0, 5.0], atol=0.05)
    assert abs(found.values[0] - 4.0) < 5.0 * 0.1 / 4000**0.5
    np.testing.assert_allclose(found.errors * found.values, np.array([0.1, 1.0]) / 4000**0.5, rtol=0.1)


def test_what_takes_too_long_is_not_drawn() -> None:
    s = chosen("ridge", gamma=1e-6, H=1)
    assert sampled_plateau(s, rounds_to_forget(s), np.zeros(2), np.zeros_like(s.gradients), 3) is None
