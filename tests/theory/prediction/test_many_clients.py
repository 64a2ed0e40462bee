"""Predictions for many clients: the fast way, with a sample of clients, against the slow one with all of them."""

from dataclasses import replace

import numpy as np
import pytest

import fedscaffold as fs
from fedscaffold import FedAvg, Scaffold
from fedscaffold.core.random.batches import Batches
from fedscaffold.core.types import Array
from fedscaffold.problems import Logistic, Ridge
from fedscaffold.theory.client_blocks import ClientBlock, list_blocks
from fedscaffold.theory.prediction import round_noise, stationary
from fedscaffold.theory.prediction.clouds.margins import MarginAverages, RecordProducts, record_products
from fedscaffold.theory.prediction.curve import curve_parts
from fedscaffold.theory.prediction.many_clients.client_sample import draw, inclusion, sample_clients
from fedscaffold.theory.prediction.many_clients.first_guess import guess_pulls
from fedscaffold.theory.prediction.moments.curve import small_curve
from fedscaffold.theory.prediction.moments.predict import small_round
from fedscaffold.theory.prediction.plateau import PlateauState, linear_start, squared_parts
from fedscaffold.theory.prediction.setting import Setting, setting
from fedscaffold.theory.prediction.stationary import solve_stationary
from tests.samples import Kind, make

SCAFFOLD = Scaffold(step_size=0.1, local_steps=20)


def heavy_clients(kind: type[Ridge | Logistic], weights: Array | None = None) -> Ridge | Logistic:
    """Two hundred clients with features of very different lengths."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 12, 3)) * rng.lognormal(sigma=0.4, size=(200, 1, 1)) / 2.0
    y = X @ np.ones(3) + rng.normal(size=(200, 12))
    return kind(X, y if kind is Ridge else np.where(y > 0, 1.0, -1.0), l2=0.1, weights=weights)


def slowly(s: Setting, monkeypatch: pytest.MonkeyPatch) -> PlateauState:
    """The stationary law from passes over all clients, far more precise than usual."""
    with monkeypatch.context() as patch:
        patch.setattr(stationary, "MANY_CLIENTS", 10**9)
        return solve_stationary(replace(s, tolerance=1e-9, settled=1e-8))


@pytest.mark.parametrize("kind", [Ridge, Logistic])
@pytest.mark.parametrize("method", [SCAFFOLD, FedAvg(step_size=0.1, local_steps=5)])
@pytest.mark.parametrize("heavy_weight", [False, True])
def test_a_sample_of_clients_is_as_good_as_all(
    kind: type[Ridge | Logistic], method: Scaffold | FedAvg, heavy_weight: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = np.concatenate([[0.9], np.full(199, 0.1 / 199)]) if heavy_weight else None
    s = setting(heavy_clients(kind, weights), method, Batches(1))
    drawn: list[int] = []
    settled = stationary.settle

    def counted(sub: Setting, state: PlateauState) -> PlateauState:
        drawn.append(sub.clients.size)
        return settled(sub, state)

    monkeypatch.setattr(stationary, "settle", counted)
    quick = solve_stationary(s)
    assert min(drawn) < 200  # tried, and used where it was precise enough
    slow = slowly(s, monkeypatch)
    assert squared_parts(quick).sum() == pytest.approx(squared_parts(slow).sum(), rel=3e-3)
    if kind is Logistic:  # clients that are not in the sample stay as the last pass over all of them left them
        np.testing.assert_allclose(quick.eta, slow.eta, atol=0.05 * np.abs(slow.eta).max())


def test_a_sample_that_says_too_little_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    s = setting(heavy_clients(Logistic), SCAFFOLD, Batches(1))
    monkeypatch.setattr(stationary, "PRECISE_ENOUGH", 1e-9)
    used: list[int] = []
    monkeypatch.setattr(stationary, "for_everyone", lambda *_: used.append(1))
    alone = solve_stationary(s)
    assert not used
    assert squared_parts(alone).sum() == pytest.approx(squared_parts(slowly(s, monkeypatch)).sum(), rel=2e-3)


def test_the_first_guess_of_pulls_is_near_the_truth(monkeypatch: pytest.MonkeyPatch) -> None:
    s = setting(heavy_clients(Logistic), Scaffold(step_size=0.03, local_steps=20), Batches(4))
    guess, slow = guess_pulls(s, linear_start(s)), slowly(s, monkeypatch)
    assert guess.bias @ slow.bias > 0.0
    assert np.linalg.norm(guess.bias - slow.bias) < 0.1 * np.linalg.norm(slow.bias)


def test_samples_stand_for_all_clients() -> None:
    rng = np.random.default_rng(0)
    weights, sizes = rng.dirichlet(np.ones(500)), rng.exponential(size=500) / 500
    p = inclusion(0.5 * weights + 0.5 * sizes / sizes.sum(), 100)
    assert p.sum() == pytest.approx(100, rel=0.01)
    sample = draw(p)
    assert sample.clients.size == pytest.approx(100, abs=1)
    assert sample.scale @ sizes[sample.clients] == pytest.approx(sizes.sum(), rel=0.05)
    one = np.zeros(500)
    one[7] = 1.0
    chosen = sample_clients(np.full(500, 1 / 500), 1e-3 * one, 60)
    assert 7 in chosen.clients
    assert chosen.scale[chosen.clients == 7] == 1.0


@pytest.mark.parametrize("kind", ["ridge", "logistic"])
def test_means_over_margins_are_means_over_models(kind: Kind) -> None:
    """E ∇f, E ∇²f and, but for its linearised part, E C of a client, over models drawn from the cloud."""
    problem = make(kind, (7,), 3)
    averages, rng = MarginAverages(problem, kind == "ridge"), np.random.default_rng(0)
    root, mean = 0.4 * rng.normal(size=(3, 3)), rng.normal(size=3)
    block = list_blocks(problem)[0]
    found = averages.over_clouds(block, mean[None, None], (root @ root.T)[None, None], np.ones(1))
    half = rng.normal(size=(20_000, 3)) @ root.T
    points = mean + np.concatenate([half, -half])
    gradients = averages.gradients(block, points[None])[0]
    slopes = problem.d2(points @ problem.x.T, problem.y)
    hessian = np.einsum("pn,ni,nj->ij", slopes, problem.x, problem.x) / slopes.size + np.diag(problem.penalty)
    noise = averages.noise_at(block, points[None], np.ones(1))[0].mean(axis=0)
    np.testing.assert_allclose(found.gradient[0, 0], gradients.mean(axis=0), atol=0.02)
    np.testing.assert_allclose(found.hessian[0, 0], hessian, atol=0.02 * np.abs(hessian).max())
    np.testing.assert_allclose(found.noise[0, 0], noise, atol=0.05 * np.abs(noise).max())


@pytest.mark.parametrize("kind", ["ridge", "logistic"])
def test_one_point_is_a_cloud_without_width(kind: Kind) -> None:
    problem = make(kind, (7, 5), 3)
    averages, theta = MarginAverages(problem, kind == "ridge"), np.array([0.3, -0.2, 0.5])
    block: ClientBlock = list_blocks(problem)[0]
    k = block.clients.size
    cloud = averages.over_clouds(block, np.tile(theta, (k, 1, 1)), np.zeros((k, 1, 3, 3)), np.ones(k))
    for one, other in zip(averages.at_point(block, theta, np.ones(k)), cloud, strict=True):
        np.testing.assert_allclose(one, other[:, 0], rtol=1e-8, atol=1e-9)
    hessians = problem.client_hessians(theta)[block.clients]
    np.testing.assert_allclose(averages.at_point(block, theta, np.ones(k)).hessian, hessians, rtol=1e-10)


def test_packed_products_are_the_products() -> None:
    rng = np.random.default_rng(0)
    x, half, weights = rng.normal(size=(2, 6, 4)), rng.normal(size=(2, 3, 4, 4)), rng.normal(size=(2, 3, 6))
    matrices = half + np.swapaxes(half, -1, -2)
    plain, packed = RecordProducts(x), record_products(ClientBlock(np.arange(2), x, x[..., 0], x[..., 0]))
    assert type(packed) is not type(plain)
    np.testing.assert_allclose(packed.quadratic_forms(matrices), plain.quadratic_forms(matrices), atol=1e-12)
    np.testing.assert_allclose(packed.sums(weights), plain.sums(weights), atol=1e-12)


def large_steps() -> Setting:
    """Ridge with steps so large that noise feeds on the spread that it causes within a round."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(6, 12, 3))
    y = X @ np.ones(3) + rng.normal(size=(6, 12))
    return setting(Ridge(X, y, l2=0.1), Scaffold(step_size=0.15, local_steps=10), Batches(1))


def test_the_noise_of_first_rounds_is_found_to_the_end() -> None:
    """The way for many clients against every local step of every client, which is exact for ridge."""
    s = large_steps()
    found, exact = curve_parts(s, solve_stationary(s), 8), small_curve(s, small_round(s), 8)
    np.testing.assert_allclose(found[0], exact[0], rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(found[1][1:], exact[1][1:], rtol=0.015)


def test_a_sample_of_noise_is_in_proportion_to_the_plateau(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise far below the plateau's is not hidden by what a sample of clients misses of the plateau."""
    monkeypatch.setattr(round_noise, "SAMPLE", 20)
    s = setting(heavy_clients(Ridge), SCAFFOLD, Batches(1))
    noises = round_noise.RoundNoises.of(s, solve_stationary(s))
    assert noises.clients.size < 30
    assert noises.plateau is not None
    tenth = noises.inputs_of(0.1 * noises.plateau.Q)[1]
    np.testing.assert_allclose(tenth, 0.1 * noises.plateau_input, atol=1e-9 * np.abs(tenth).max())


@pytest.mark.parametrize(("gamma", "steps", "tolerance"), [(0.5, 16, 0.05), (0.05, 100, 0.02)])
def test_the_first_round_feels_its_own_noise(gamma: float, steps: int, tolerance: float) -> None:
    """Two hundred clients of the paper, with large steps: not the noise, nor its pull, of the plateau."""
    problem = fs.problems.paper("classification", n_clients=200)
    method = Scaffold(step_size=gamma, local_steps=steps)
    found = fs.theory.predict(problem, method, batch_size=10, rounds=2).curve
    assert found is not None
    mse = fs.run(problem, method, rounds=2, batch_size=10, repetitions=16, seed=3, progress=False).mse
    assert found[1] == pytest.approx(mse[:, 1].mean(), rel=tolerance)


@pytest.mark.parametrize("kind", [Ridge, Logistic])
def test_a_curve_from_the_noise_of_a_sample_is_that_of_all_clients(
    kind: type[Ridge | Logistic], monkeypatch: pytest.MonkeyPatch
) -> None:
    s = setting(heavy_clients(kind), Scaffold(step_size=0.05, local_steps=20), Batches(2))
    state, curves = solve_stationary(s), []
    for size in (100, 200):
        monkeypatch.setattr(round_noise, "SAMPLE", size)
        curves.append(curve_parts(s, state, 6)[1][1:])
    np.testing.assert_allclose(curves[0], curves[1], rtol=0.01)


def test_levels_of_noise_are_traces_of_noise() -> None:
    """Of clients of different sizes, at a point of each; less what their mean gradients take away."""
    problem = make("logistic", (7, 5, 7), 3)
    s = setting(problem, SCAFFOLD, Batches(2))
    points = np.random.default_rng(0).normal(size=(3, 3))
    levels = round_noise.noise_levels(s, np.square(problem.x).sum(axis=1), points)
    for c, point in enumerate(points):
        noise = problem.client_noise_covariances(s.optimum + point, batch_size=2)[c]
        gradient = problem.client_gradients(s.optimum + point)[c] - problem.penalty * (s.optimum + point)
        assert levels[c] == pytest.approx(np.trace(noise) + s.factors[c] * gradient @ gradient, rel=1e-9)
