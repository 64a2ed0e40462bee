"""Linear stochastic approximation: both engines and the round loop against the oracle."""

from typing import Any

import numpy as np
import pytest

import fedscaffold as fs
from fedscaffold.core.protocols import Engine
from fedscaffold.core.random.stream import Sampling
from fedscaffold.engines import Native, Reference
from fedscaffold.problems.linear import Observing
from tests import naive
from tests.samples import systems

WEIGHTS = (1.0, 2.0, 0.5)
SHARES = [w / sum(WEIGHTS) for w in WEIGHTS]
GAMMA, H, T, SEED = 0.15, 4, 3, 2**40 + 17
ENGINES = [Reference(), Native()]


def assert_same(problem: Any, clients: naive.Systems, draw: naive.Draw, name: str, **kwargs: Any) -> None:
    """Two repetitions of a run, and those of the oracle."""
    theta0 = np.linspace(-1.0, 1.0, problem.dim).tolist()
    oracle = naive.scaffold if name == "ScaffLSA" else naive.fedavg
    method = (fs.ScaffLSA if name == "ScaffLSA" else fs.FedAvg)(step_size=GAMMA, local_steps=H)
    trace = fs.run(problem, method, rounds=T, seed=SEED, repetitions=2, theta0=theta0, **kwargs)
    for r in range(2):
        expected = oracle(clients, draw, gamma=GAMMA, H=H, T=T, theta=theta0, repetition=r)
        np.testing.assert_allclose(trace.theta[r], expected.theta, rtol=0, atol=1e-13)
        np.testing.assert_allclose(trace.control_variates[r], expected.control_variates, rtol=0, atol=1e-12)
        errors = [float(np.sum((np.array(theta) - problem.optimum()) ** 2)) for theta in expected.iterates]
        np.testing.assert_allclose(trace.mse[r], errors, rtol=1e-11, atol=0)


@pytest.mark.parametrize("engine", ENGINES, ids=["reference", "native"])
@pytest.mark.parametrize("name", ["ScaffLSA", "FedAvg"])
@pytest.mark.parametrize(
    ("batch_size", "sampling"),
    [
        (1, "with_replacement"),
        (3, "with_replacement"),
        (11, "with_replacement"),
        (3, "without_replacement"),
        (None, "with_replacement"),
    ],
)
def test_linear_sa(engine: Engine, name: str, batch_size: int | None, sampling: Sampling) -> None:
    problem = systems((5, 9, 3), 3, weights=WEIGHTS)
    parts = [slice(i, j) for i, j in zip(problem.offsets[:-1], problem.offsets[1:], strict=True)]
    A, b = [problem.A[part].tolist() for part in parts], [problem.b[part].tolist() for part in parts]
    clients = naive.Systems("linear_sa", A, b, 0.0, SHARES)
    draw = naive.drawing(SEED, problem.sizes.tolist(), batch_size, sampling)
    assert_same(problem, clients, draw, name, batch_size=batch_size, sampling=sampling, engine=engine)


@pytest.mark.parametrize("engine", ENGINES, ids=["reference", "native"])
@pytest.mark.parametrize("name", ["ScaffLSA", "FedAvg"])
@pytest.mark.parametrize("sampling", ["iid", "markov"])
@pytest.mark.parametrize("batch_size", [1, 3, None])
def test_temporal_differences(engine: Engine, name: str, sampling: Observing, batch_size: int | None) -> None:
    problem = fs.problems.GarnetTD(
        n_clients=3, states=6, branching=3, dim=3, discount=0.8, sampling=sampling, weights=WEIGHTS, seed=4
    )
    chains = problem.chains
    environments = [
        naive.Environment(chains.successors.tolist(), chains.kernel[c].tolist(), chains.rewards[c].tolist())
        for c in range(3)
    ]
    clients = naive.temporal_differences(
        environments, chains.features.tolist(), 0.8, SHARES, mean=batch_size is None
    )
    draw = naive.drawing(SEED, [1] * 3, None, "with_replacement")
    if batch_size is not None:
        draw = naive.drawing_transitions(SEED, environments, batch_size, sampling)
    assert_same(problem, clients, draw, name, batch_size=batch_size, engine=engine)
