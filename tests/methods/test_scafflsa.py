"""Without noise ScaffLSA reaches θ* of systems that are neither symmetric nor alike; FedAvg does not."""

from typing import Any

import numpy as np
import pytest

import fedscaffold as fs
from fedscaffold.core.types import Array
from tests.samples import systems

PROBLEMS = [
    systems((3, 5, 2, 7), 4, weights=(1, 5, 2, 1)),
    fs.problems.GarnetTD(n_clients=6, states=12, dim=4, discount=0.7, heterogeneity=1.0),
    fs.problems.GarnetTD(n_clients=3, states=12, dim=4, discount=0.7, sampling="markov", weights=(1, 2, 4)),
]
STEP = {"linear_sa": 0.1, "td": 0.5}


def fedavg_fixed_point(problem: Any, gamma: float, H: int) -> Array:
    """θ with Σ w_c (I − (I − γĀ_c)^H)(θ − θ_c) = 0, θ_c = Ā_c⁻¹ b̄_c: where FedAvg without noise stays."""
    left, right = np.zeros((problem.dim, problem.dim)), np.zeros(problem.dim)
    for w, A, b in zip(problem.weights, problem.client_matrices, problem.client_vectors, strict=True):
        pull = w * (np.eye(problem.dim) - np.linalg.matrix_power(np.eye(problem.dim) - gamma * A, H))
        left += pull
        right += pull @ np.linalg.solve(A, b)
    return np.linalg.solve(left, right)


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
@pytest.mark.parametrize("engine", ["native", "reference"])
def test_without_noise(problem: Any, engine: str) -> None:
    gamma, H = STEP[problem.kind], 10
    for method in (fs.ScaffLSA, fs.FedAvg):
        trace = fs.run(problem, method(step_size=gamma, local_steps=H), rounds=300, engine=engine)
        distance = np.sqrt(trace.mse[0, -1])
        if method is fs.ScaffLSA:
            assert distance < 1e-10
            np.testing.assert_allclose(
                trace.control_variates[0], -problem.client_gradients(problem.optimum()), rtol=0, atol=1e-9
            )
        else:
            fixed = fedavg_fixed_point(problem, gamma, H)
            np.testing.assert_allclose(trace.theta[0], fixed, rtol=0, atol=1e-10)
            assert distance == pytest.approx(float(np.linalg.norm(fixed - problem.optimum())), rel=1e-6)
            assert distance > 1e-3


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_other_methods_run_on_it_too(problem: Any) -> None:
    """FedLin exchanges mean fields, and draws one batch more where asked for; ProxSkip reaches θ* as well."""
    gamma = STEP[problem.kind]
    lin = fs.run(problem, fs.FedLin(step_size=gamma, local_steps=5), rounds=400)
    assert lin.mse[0, -1] < 1e-20
    skip = fs.run(problem, fs.ProxSkip(step_size=gamma, communication_probability=0.2), rounds=800)
    assert skip.mse[0, -1] < 1e-20
    noisy = fs.FedLin(step_size=gamma / 10, local_steps=5, correction_gradients="minibatch")
    fast, slow = (fs.run(problem, noisy, rounds=3, batch_size=3, engine=e) for e in ("native", "reference"))
    np.testing.assert_allclose(fast.theta, slow.theta, rtol=0, atol=1e-13)


def test_it_is_scaffold() -> None:
    assert fs.ScaffLSA is fs.Scaffold
