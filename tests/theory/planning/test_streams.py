"""Plans for clients that are distributions reach their target in simulation."""

from typing import Any

import pytest

import fedscaffold as fs
from fedscaffold.problems import LogisticStream, RidgeStream
from tests.theory.prediction.test_streams import make


@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        (RidgeStream, "first_order"),
        (LogisticStream, "first_order"),
        pytest.param(RidgeStream, "sharp", marks=pytest.mark.slow),
        pytest.param(LogisticStream, "sharp", marks=pytest.mark.slow),
    ],
)
def test_plans(kind: Any, mode: Any) -> None:
    problem = make(kind, n_clients=20, signal=2.0)
    found = fs.plan(problem, target_mse=0.02, batch_size=4, mode=mode)
    assert found.predicted_mse <= 0.02
    measured = fs.run(problem, found.method, rounds=found.rounds, batch_size=4, repetitions=20).mse[:, -1]
    assert measured.mean() < 0.02
