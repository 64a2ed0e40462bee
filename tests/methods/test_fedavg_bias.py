"""Where FedAvg ends without noise: a point of its own, known in closed form for ridge."""

import numpy as np
import pytest

import fedscaffold as fs
from fedscaffold.core.types import Array
from tests.samples import make, tables

GAMMA, H = 0.2, 8


def fixed_point(problem: fs.problems.Ridge | fs.problems.Logistic) -> Array:
    """θ = Σ w_c [(I − γG_c)^H θ + (I − (I − γG_c)^H) θ_c*], with G_c and θ_c* from the records."""
    total, constant = np.zeros((problem.dim, problem.dim)), np.zeros(problem.dim)
    for c in range(problem.n_clients):
        rows = slice(problem.offsets[c], problem.offsets[c + 1])
        x, y = problem.x[rows], problem.y[rows]
        G = x.T @ x / len(x) + problem.l2 * np.eye(problem.dim)
        own = np.linalg.solve(G, x.T @ y / len(x))
        power = np.linalg.matrix_power(np.eye(problem.dim) - GAMMA * G, H)
        total += problem.weights[c] * power
        constant += problem.weights[c] * (own - power @ own)
    return np.asarray(np.linalg.solve(np.eye(problem.dim) - total, constant), dtype=np.float64)


@pytest.mark.parametrize("engine", ["native", "reference"])
def test_fedavg_converges_to_its_biased_point(engine: str) -> None:
    problem = make("ridge", (12, 20, 9), 3, weights=(1, 3, 2))
    trace = fs.run(problem, fs.FedAvg(step_size=GAMMA, local_steps=H), rounds=300, engine=engine)
    np.testing.assert_allclose(trace.theta[0], fixed_point(problem), rtol=0, atol=1e-10)
    assert np.linalg.norm(trace.theta[0] - problem.optimum()) > 0.05


def test_no_bias_when_clients_are_the_same() -> None:
    (x,), (y,) = tables("ridge", (15,), 3)
    problem = fs.problems.Ridge([x] * 4, [y] * 4, l2=0.1)
    trace = fs.run(problem, fs.FedAvg(step_size=GAMMA, local_steps=H), rounds=300)
    np.testing.assert_allclose(trace.theta[0], problem.optimum(), rtol=0, atol=1e-10)


def test_no_bias_with_one_local_step() -> None:
    problem = make("ridge", (12, 20, 9), 3, weights=(1, 3, 2))
    trace = fs.run(problem, fs.FedAvg(step_size=GAMMA, local_steps=1), rounds=2000)
    np.testing.assert_allclose(trace.theta[0], problem.optimum(), rtol=0, atol=1e-10)
