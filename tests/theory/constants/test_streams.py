"""Constants of clients that are distributions, against draws of their gradients."""

import math
from typing import Any

import numpy as np
import pytest

import fedscaffold as fs
from fedscaffold import theory
from fedscaffold.core.random.stream import Batches
from fedscaffold.core.types import Array
from fedscaffold.theory.problem_constants import norm_moment

KINDS: Any = [fs.problems.RidgeStream, fs.problems.LogisticStream]


def make(kind: Any, n_clients: int = 6, **kwargs: Any) -> Any:
    return kind(n_clients=n_clients, dim=7, **{"l2": 0.05, **kwargs})


def drawn(problem: Any, c: int, theta: Array, batch_size: int) -> Array:
    """Independent stochastic gradients of client c at θ, the same draws for every θ."""
    start = np.broadcast_to(theta, (20_000, theta.size))
    with fs.engines.Native().open(problem, Batches(batch_size), seed=8) as local_sgd:
        nothing = np.zeros((1, 1, theta.size))
        one = np.array([[c]])
        return start - local_sgd(start, nothing, step_size=1.0, local_steps=1, round=0, clients=one)[:, 0]


@pytest.mark.parametrize("batch_size", [1, 5])
@pytest.mark.parametrize("kind", KINDS)
def test_constants_hold(kind: Any, batch_size: int) -> None:
    """A3, A5 and the noise at θ*, by 20,000 gradients of each client; bounds are at most ten times off."""
    problem = make(kind, n_clients=4)
    known = theory.constants(problem, batch_size=batch_size)
    optimum, u = problem.optimum(), np.eye(7)[0]
    second, sixth, slope = [], [], []
    for c in range(4):
        here, there = (drawn(problem, c, at, batch_size) for at in (optimum, optimum + u))
        here = here - problem.client_gradients(optimum)[c]
        there = there - problem.client_gradients(optimum + u)[c]
        square = np.square(here).sum(axis=1)
        second.append(square.mean())
        sixth.append(np.cbrt((square**3).mean()))
        slope.append(np.cbrt((np.square(there - here).sum(axis=1) ** 3).mean()))
    assert known.noise_variance_at_optimum == pytest.approx(max(second), rel=0.05)
    assert max(sixth) < known.noise_at_optimum < 10 * max(sixth)
    assert max(slope) < known.noise_lipschitz2 < 20 * max(slope)
    third = np.abs(problem.client_third_derivatives(optimum, np.outer(u, u))).max()
    assert third <= known.Q
    assert known.mu <= known.mu_at_optimum <= known.L_at_optimum <= known.L < known.L_record == math.inf
    assert theory.constants(problem, batch_size=None).noise_at_optimum == 0.0


def test_norm_moments() -> None:
    for n in range(1, 7):
        wanted = math.prod(5 + 2 * k for k in range(n))
        assert norm_moment(np.ones(5), n) == pytest.approx(wanted)
    assert norm_moment(np.array([1.0, 3.0]), 2) == pytest.approx(16.0 + 2 * 10.0)
