"""Both engines and the round loop against the oracle."""

import numpy as np
import pytest

import fedscaffold as fs
from fedscaffold.core.protocols import Engine
from fedscaffold.core.random.stream import Sampling
from fedscaffold.engines import Native, Reference
from tests import naive
from tests.samples import KINDS, Kind, tables

SIZES, DIM, L2, WEIGHTS = (5, 9, 3, 6), 3, 0.2, (1.0, 2.0, 0.5, 3.0)
GAMMA, H, T, SEED = 0.15, 4, 5, 2**40 + 17
THETA0 = [0.3, -1.0, 2.0]


@pytest.mark.parametrize("engine", [Reference(), Native()], ids=["reference", "native"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("batch_size", "sampling"),
    [
        (1, "with_replacement"),
        (3, "with_replacement"),
        (11, "with_replacement"),
        (1, "without_replacement"),
        (3, "without_replacement"),
        (None, "with_replacement"),
    ],
)
@pytest.mark.parametrize("name", ["Scaffold", "FedAvg"])
def test_run_is_the_pseudo_code(
    engine: Engine, kind: Kind, batch_size: int | None, sampling: Sampling, name: str
) -> None:
    X, y = tables(kind, SIZES, DIM, seed=3)
    share = [w / sum(WEIGHTS) for w in WEIGHTS]
    clients = naive.Clients(kind, [x.tolist() for x in X], [t.tolist() for t in y], L2, share)
    draw = naive.drawing(SEED, SIZES, batch_size, sampling)
    oracle = naive.scaffold if name == "Scaffold" else naive.fedavg

    problem = (fs.problems.Ridge if kind == "ridge" else fs.problems.Logistic)(X, y, l2=L2, weights=WEIGHTS)
    method = (fs.Scaffold if name == "Scaffold" else fs.FedAvg)(step_size=GAMMA, local_steps=H)
    trace = fs.run(
        problem, method, rounds=T, batch_size=batch_size, sampling=sampling, seed=SEED,
        repetitions=2, engine=engine, theta0=THETA0,
    )  # fmt: skip
    for r in range(2):
        expected = oracle(clients, draw, gamma=GAMMA, H=H, T=T, theta=THETA0, repetition=r)
        np.testing.assert_allclose(trace.theta[r], expected.theta, rtol=0, atol=1e-13)
        np.testing.assert_allclose(trace.control_variates[r], expected.control_variates, rtol=0, atol=1e-12)
        mse = [float(np.sum((np.array(theta) - problem.optimum()) ** 2)) for theta in expected.iterates]
        np.testing.assert_allclose(trace.mse[r], mse, rtol=1e-11, atol=0)
