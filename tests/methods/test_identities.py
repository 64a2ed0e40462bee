"""What must hold whatever the data: the cheapest checks that catch a wrong Scaffold."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedscaffold as fs
from fedscaffold.core.random.stream import Sampling
from tests.samples import KINDS, Kind, make, tables

WEIGHTS = (1.0, 4.0, 0.5, 2.0)
SIZES = (12, 20, 9, 15)
DIM = 3


@given(
    kind=st.sampled_from(KINDS),
    weights=st.lists(st.floats(0.1, 10), min_size=4, max_size=4),
    local_steps=st.integers(1, 30),
    batch_size=st.none() | st.integers(1, 9),
    sampling=st.sampled_from(("with_replacement", "without_replacement")),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=50)
def test_control_variates_sum_to_zero(
    kind: Kind, weights: list[float], local_steps: int, batch_size: int | None, sampling: Sampling, seed: int
) -> None:
    problem = make(kind, SIZES, DIM, weights=weights)
    method = fs.Scaffold(step_size=0.1, local_steps=local_steps)
    trace = fs.run(problem, method, rounds=6, batch_size=batch_size, sampling=sampling, seed=seed, repetitions=2)
    xi = trace.control_variates
    assert np.abs(xi).max() > 1e-3
    assert np.abs(np.einsum("c,rcj->rj", problem.weights, xi)).max() < 1e-12 * np.abs(xi).max()


@pytest.mark.parametrize("engine", ["native", "reference"])
@pytest.mark.parametrize("kind", KINDS)
def test_one_local_step_is_fedavg(kind: Kind, engine: str) -> None:
    problem = make(kind, SIZES, DIM, weights=WEIGHTS)
    scaffold, fedavg = (
        fs.run(problem, method, rounds=30, batch_size=2, seed=5, repetitions=2, engine=engine)
        for method in (fs.Scaffold(step_size=0.1, local_steps=1), fs.FedAvg(step_size=0.1, local_steps=1))
    )
    np.testing.assert_allclose(scaffold.theta, fedavg.theta, rtol=0, atol=1e-13)
    np.testing.assert_allclose(scaffold.mse, fedavg.mse, rtol=1e-12)
    assert np.abs(scaffold.control_variates).max() > 0.1
    assert np.all(fedavg.control_variates == 0)


def test_more_local_steps_are_not_fedavg() -> None:
    problem = make("ridge", SIZES, DIM)
    scaffold, fedavg = (
        fs.run(problem, kind(step_size=0.1, local_steps=2), rounds=5).theta for kind in (fs.Scaffold, fs.FedAvg)
    )
    assert np.abs(scaffold - fedavg).max() > 1e-3


@pytest.mark.parametrize("engine", ["native", "reference"])
@pytest.mark.parametrize("kind", KINDS)
def test_without_noise_scaffold_reaches_the_optimum(kind: Kind, engine: str) -> None:
    problem = make(kind, SIZES, DIM, weights=WEIGHTS)
    trace = fs.run(problem, fs.Scaffold(step_size=0.2, local_steps=10), rounds=400, engine=engine)
    optimum = problem.optimum()
    np.testing.assert_allclose(trace.theta[0], optimum, rtol=0, atol=1e-10)
    slopes = problem.client_gradients(optimum)
    assert np.abs(slopes).max() > 0.1  # heterogeneous
    np.testing.assert_allclose(trace.control_variates[0], -slopes, rtol=0, atol=1e-10)


def test_the_optimum_is_a_fixed_point_of_scaffold() -> None:
    problem = make("logistic", SIZES, DIM, weights=WEIGHTS)
    optimum = problem.optimum()
    trace = fs.run(
        problem, fs.Scaffold(step_size=0.2, local_steps=10), rounds=3, theta0=optimum,
        control_variates0=-problem.client_gradients(optimum),
    )  # fmt: skip
    assert trace.mse.max() < 1e-28


@pytest.mark.parametrize("method", [fs.Scaffold, fs.FedAvg])
def test_permuting_clients_permutes_memory(method: type[fs.Scaffold] | type[fs.FedAvg]) -> None:
    order = [2, 0, 3, 1]
    X, y = tables("logistic", SIZES, DIM)
    here = fs.problems.Logistic(X, y, l2=0.1, weights=WEIGHTS)
    there = fs.problems.Logistic(
        [X[c] for c in order], [y[c] for c in order], l2=0.1, weights=[WEIGHTS[c] for c in order]
    )
    a, b = (fs.run(problem, method(step_size=0.2, local_steps=5), rounds=8) for problem in (here, there))
    np.testing.assert_allclose(b.theta, a.theta, rtol=0, atol=1e-13)
    np.testing.assert_allclose(b.control_variates, a.control_variates[:, order], rtol=0, atol=1e-12)


def test_a_weight_counts_like_so_many_copies() -> None:
    """Weights (3, 1) are three copies of the first client; full gradients, so that copies stay copies."""
    X, y = tables("ridge", (7, 9), DIM)
    weighted = fs.problems.Ridge(X, y, weights=[3, 1])
    copied = fs.problems.Ridge([X[0]] * 3 + X[1:], [y[0]] * 3 + y[1:])
    method = fs.Scaffold(step_size=0.1, local_steps=6)
    a, b = (fs.run(problem, method, rounds=10) for problem in (weighted, copied))
    np.testing.assert_allclose(a.theta, b.theta, rtol=0, atol=1e-13)
    np.testing.assert_allclose(a.control_variates[0], b.control_variates[0, [0, 3]], rtol=0, atol=1e-12)


@pytest.mark.parametrize("method", [fs.Scaffold, fs.FedAvg])
@pytest.mark.parametrize("dim", [1, 3, 20])
def test_repetitions_are_independent_of_how_many_there_are(
    method: type[fs.Scaffold] | type[fs.FedAvg], dim: int
) -> None:
    problem = make("ridge", (8,) * 33, dim)
    few, many = (
        fs.run(problem, method(step_size=0.1, local_steps=4), rounds=5, batch_size=2, repetitions=r)
        for r in (1, 5)
    )
    np.testing.assert_array_equal(few.theta[0], many.theta[0])
    np.testing.assert_array_equal(few.mse[0], many.mse[0])
    np.testing.assert_array_equal(few.control_variates[0], many.control_variates[0])
    assert len(np.unique(many.theta[:, 0])) == 5


def test_the_seed_matters_and_only_with_noise() -> None:
    problem = make("ridge", SIZES, DIM)
    method = fs.Scaffold(step_size=0.1, local_steps=4)

    def theta(seed: int, batch_size: int | None) -> tuple[float, ...]:
        return tuple(fs.run(problem, method, rounds=3, batch_size=batch_size, seed=seed).theta[0])

    seeds = (0, 1, 2, 2**32, 2**32 + 1, 2**64 - 1)
    assert len({theta(seed, 2) for seed in seeds}) == len(seeds)
    assert theta(1, 2) == theta(1, 2)
    assert theta(0, None) == theta(1, None)
