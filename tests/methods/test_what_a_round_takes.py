"""How many clients take part in a round, and how many vectors each of them exchanges."""

from typing import Any

import numpy as np
import pytest

import fedscaffold as fs
from tests.samples import make


@pytest.mark.parametrize("share", [0.03, 0.1, 0.35, 0.5, 0.6, 0.99, 1.0])
def test_the_nearest_whole_number_to_the_share_and_at_least_one(share: float) -> None:
    method = fs.FedAvg(step_size=0.1, local_steps=1, participation=share)
    for n_clients in range(1, 60):
        candidates = np.arange(1, n_clients + 1)
        gaps = np.abs(candidates - share * n_clients)
        assert gaps[method.participants(n_clients) - 1] == gaps.min()


def test_as_many_in_a_run() -> None:
    problem = fs.problems.RidgeStream(n_clients=7, dim=2)
    method = fs.Scaffold(step_size=0.1, local_steps=1, participation=0.4)  # 2.8 of seven
    trace = fs.run(problem, method, rounds=1, batch_size=1, engine="reference")
    moved = np.abs(trace.control_variates[0]).max(axis=1) > 0
    assert moved.sum() == 3


@pytest.mark.parametrize(
    "method",
    [
        fs.FedAvg(step_size=0.1, local_steps=2),
        fs.Scaffold(step_size=0.1, local_steps=2),
        fs.ProxSkip(step_size=0.1, communication_probability=0.5),
        fs.TwoSidedScaffold(step_size=0.1, local_steps=2, server_step_size=1.0),
        fs.FedLin(step_size=0.1, local_steps=2),
        fs.FedProx(step_size=0.1, local_steps=2, proximal_weight=0.5),
        fs.FedSplit(step_size=0.1, local_steps=2, proximal_weight=0.5),
        fs.Scallion(step_size=0.1, local_steps=2, compression="natural"),
        fs.Tamuna(step_size=0.1, communication_probability=0.5),
        fs.LocalSvrg(step_size=0.1, local_steps=2),
        fs.RandProx(step_size=0.1, communication_probability=0.5, share=0.5),
    ],
    ids=lambda method: method.kind,
)
def test_vectors_are_the_servers_state_the_message_and_gradients_that_are_exchanged(method: Any) -> None:
    """Down: what the server keeps, and the mean gradient; up: the local model, and the client's gradient."""
    down, up = len(method.init_server(np.zeros((1, 2)))), 1
    if method.exchange is not None:
        down, up = down + 1, up + 1
    problem = fs.problems.Ridge(np.eye(2)[:, None], np.ones((2, 1)), l2=0.1)
    trace = fs.run(problem, method, rounds=3, engine="reference")
    np.testing.assert_array_equal(trace.vectors_per_client, (down + up) * np.arange(4))


@pytest.mark.parametrize(
    ("method", "gradients", "vectors"),
    [
        (fs.Scaffold(step_size=0.01, local_steps=4), 4.0, 2.0),
        (fs.Scaffold(step_size=0.01, local_steps=4, cohort=2), 4.0 * 2 / 5, 2.0 * 2 / 5),
        (fs.Scaffold(step_size=0.01, local_steps=(1, 2, 3, 4, 5)), 3.0, 2.0),
        (fs.FedLin(step_size=0.01, local_steps=4, correction_gradients="minibatch"), 4.0 + 1.0, 4.0),
        (fs.VRProxSkip(step_size=0.01, communication_probability=1.0), 1.0 + 6.0 / 2, 2.0),
        (fs.FedLin(step_size=0.01, local_steps=4), 4.0 + 6.0 / 2, 4.0),  # six records a client, in batches of two
    ],
)
def test_costs_are_averages_over_all_clients(method: Any, gradients: float, vectors: float) -> None:
    problem = make("ridge", (4, 5, 6, 7, 8))
    trace = fs.run(problem, method, rounds=3, batch_size=2, repetitions=2, engine="reference")
    np.testing.assert_allclose(trace.gradients_per_client, [gradients * np.arange(4.0)] * 2)
    np.testing.assert_allclose(trace.vectors_per_client, vectors * np.arange(4.0))
