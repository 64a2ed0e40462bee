"""Theory of streamed clients, against simulation and against itself.

Tolerances and seeds as in `test_predict_simulation`: a right prediction fails by chance in 0.3 % of cases at most.
"""

from typing import Any

import numpy as np
import pytest

import fedscaffold as fs
from fedscaffold import FedAvg, Scaffold, theory
from fedscaffold.problems import LogisticStream, RidgeStream
from fedscaffold.theory.client_blocks import ClientBlock
from fedscaffold.theory.prediction.clouds.cubature import StreamAverages
from tests.theory.measured import curve, plateau
from tests.theory.prediction.test_predict_simulation import assert_within

KINDS: Any = [RidgeStream, LogisticStream]
METHODS: Any = [Scaffold, FedAvg]
TOLERANCE = {RidgeStream: 0.03, LogisticStream: 0.05}


def make(kind: Any, n_clients: int = 6, **kwargs: Any) -> Any:
    return kind(n_clients=n_clients, dim=7, **{"l2": 0.05, **kwargs})


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", KINDS)
def test_plateau(kind: Any, method: Any) -> None:
    problem, chosen = make(kind, weights=range(1, 7)), method(step_size=0.1, local_steps=20)
    found = theory.predict(problem, chosen, batch_size=2)
    start = problem.optimum() + found.bias
    level = plateau(problem, chosen, batch_size=2, repetitions=100, rounds=300, start=start)
    assert_within(found.mse, level.mse, TOLERANCE[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_curve(kind: Any) -> None:
    problem, method = make(kind), Scaffold(step_size=0.1, local_steps=20)
    found = theory.predict(problem, method, batch_size=4, rounds=40)
    assert found.curve is not None
    assert_within(found.curve, curve(problem, method, batch_size=4, repetitions=400, rounds=40), 0.15)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", KINDS)
def test_plateau_of_a_thousand_clients(kind: Any, method: Any) -> None:
    """The paper's γ, H and B; both ways to predict; for logistic regression a floor of a fifth of the level."""
    problem, chosen = kind(n_clients=1000, dim=20), method(step_size=0.05, local_steps=100)
    found = theory.predict(problem, chosen, batch_size=10)
    start = problem.optimum() + found.bias
    level = plateau(problem, chosen, batch_size=10, repetitions=8, rounds=500, start=start)
    assert_within(found.mse, level.mse, TOLERANCE[kind])
    if method is Scaffold:
        assert_within(theory.predict_at_scale(problem, chosen, batch_size=10).mse, level.mse, TOLERANCE[kind])
        assert (found.mse_bias_part > 0.15 * found.mse) == (kind is LogisticStream)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", KINDS)
def test_prediction_at_scale_of_clients_that_are_all_alike(kind: Any, method: Any) -> None:
    problem, chosen = make(kind, heterogeneity=0.0, scale_spread=0.0), method(step_size=0.1, local_steps=20)
    exact, quick = (of(problem, chosen, batch_size=4) for of in (theory.predict, theory.predict_at_scale))
    np.testing.assert_allclose(quick.cov_theta, exact.cov_theta, rtol=1e-4, atol=1e-6 * exact.mse)
    np.testing.assert_allclose(quick.bias, exact.bias, rtol=0, atol=1e-3 * np.sqrt(exact.mse))


@pytest.mark.parametrize(
    ("kind", "dim", "n_clients", "seed"),
    [
        (RidgeStream, 3, 2000, 0),
        (LogisticStream, 2, 600, 4),
        pytest.param(LogisticStream, 3, 2000, 0, marks=pytest.mark.slow),
    ],
)
def test_prediction_at_scale_is_that_of_many_clients(kind: Any, dim: int, n_clients: int, seed: int) -> None:
    """Clients that were drawn are not quite their distribution: θ* differs by 1/√N, and so do FedAvg's biases."""
    problem = kind(n_clients=n_clients, dim=dim, seed=seed)
    for method, tolerance in ((Scaffold, 0.02), (FedAvg, 0.08)):
        chosen = method(step_size=0.1, local_steps=20)
        exact, quick = (of(problem, chosen, batch_size=4) for of in (theory.predict, theory.predict_at_scale))
        assert quick.mse == pytest.approx(exact.mse, rel=tolerance)


def test_curve_at_scale() -> None:
    problem, method = make(RidgeStream, n_clients=2000), Scaffold(step_size=0.1, local_steps=20)
    exact, quick = (
        of(problem, method, batch_size=4, rounds=3).curve for of in (theory.predict, theory.predict_at_scale)
    )
    assert exact is not None
    assert quick is not None
    np.testing.assert_allclose(quick, exact, rtol=0.1)


@pytest.mark.parametrize("kind", KINDS)
def test_the_floor_under_many_clients(kind: Any) -> None:
    problem, method = make(kind), Scaffold(step_size=0.1, local_steps=50)
    few, many, more = (
        theory.predict_at_scale(problem, method, batch_size=4, n_clients=n) for n in (10**3, 10**6, 10**9)
    )
    assert few.mse_variance_part == pytest.approx(1000 * many.mse_variance_part, rel=0.02)
    if kind is RidgeStream:
        assert more.mse == pytest.approx(many.mse / 1000, rel=1e-6)
    else:
        assert more.mse_bias_part == pytest.approx(many.mse_bias_part, rel=1e-2)
        assert more.mse_bias_part > 10 * more.mse_variance_part


def test_prediction_at_scale_of_weights_and_of_other_problems() -> None:
    problem, method = make(RidgeStream, weights=[1, 1, 1, 1, 2, 2]), FedAvg(step_size=0.1, local_steps=2)
    own = theory.predict_at_scale(problem, method, batch_size=2)
    equal = theory.predict_at_scale(problem, method, batch_size=2, n_clients=6)
    assert own.mse_variance_part == pytest.approx(equal.mse_variance_part * 6 * 12 / 64, rel=0.01)
    with pytest.raises(fs.InvalidInput, match="predict_at_scale"):
        theory.predict(RidgeStream(n_clients=3000, dim=100), method, batch_size=2)
    table: Any = fs.problems.Ridge(np.ones((2, 3, 1)), np.ones((2, 3)), l2=0.1)
    with pytest.raises(fs.InvalidInput, match="streamed clients"):
        theory.predict_at_scale(table, method, batch_size=2)


@pytest.mark.parametrize("kind", KINDS)
def test_small_steps_are_those_of_the_expansion(kind: Any) -> None:
    problem, method = make(kind), Scaffold(step_size=1e-4, local_steps=1)
    found, first = (of(problem, method, batch_size=2) for of in (theory.predict, theory.expansion))
    np.testing.assert_allclose(found.cov_theta, first.cov_theta, rtol=0.01, atol=1e-3 * found.cov_theta.max())
    np.testing.assert_allclose(found.bias, first.bias, rtol=0.02, atol=1e-4 * np.abs(first.bias).max() + 1e-15)


@pytest.mark.parametrize("kind", KINDS)
def test_averages_over_a_cloud(kind: Any) -> None:
    """Against 20,000 points of the cloud: exact for ridge, within a percent of the largest for logistic."""
    problem = make(kind)
    rng = np.random.default_rng(1)
    root = 0.15 * rng.normal(size=(7, 7))
    mean, cov = problem.optimum() + 0.1, root @ root.T
    drawn = rng.normal(size=(10_000, 7)) @ root.T
    points = mean + np.concatenate([drawn, -drawn])
    client = np.array([2])
    many = problem.averages(client, points[None, None])
    block = ClientBlock(client, *(np.empty((1, 0, 7)), np.empty((1, 0)), np.empty((1, 0))))
    gradient, noise, hessian = StreamAverages(problem).over_clouds(
        block, mean[None, None], cov[None, None], np.ones(1)
    )
    for found, wanted in ((gradient, many.gradient), (noise, many.noise), (hessian, many.hessian)):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=0.015 * np.abs(wanted).max())
