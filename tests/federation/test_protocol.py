"""The protocol without Flower: the simulation's numbers, and Σ w_c ξ_c = 0 whatever happens to messages."""

import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedscaffold as fs
from fedscaffold.core.protocols import Method
from fedscaffold.federation import (
    ClientFailed,
    ClientUpdate,
    Refusal,
    RoundRules,
    TooFewClients,
    TrainRequest,
    handle_request,
    train_request,
)
from fedscaffold.federation.messages import Reply
from tests.federation.federation import Federation
from tests.samples import make

SIZES = (6, 9, 4, 7, 5)
WEIGHTS = (1.0, 2.0, 0.5, 1.5, 1.0)
METHODS: list[Method] = [
    fs.Scaffold(step_size=0.1, local_steps=4),
    fs.Scaffold(step_size=0.1, local_steps=4, participation=0.6),
    fs.Scaffold(step_size=0.1, local_steps=4, cohort=2),
    fs.Scaffold(step_size=0.1, local_steps=(2, 3, 4, 5, 6)),
    fs.FedAvg(step_size=0.1, local_steps=4),
    fs.FedAvg(step_size=0.1, local_steps=4, cohort=3),
    fs.TwoSidedScaffold(step_size=0.1, local_steps=4, server_step_size=0.7),
    fs.TwoSidedScaffold(step_size=0.1, local_steps=4, server_step_size=1.0, cohort=2),
    fs.ProxSkip(step_size=0.1, communication_probability=0.3),
    fs.FedLin(step_size=0.05, local_steps=4),
    fs.FedLin(step_size=0.05, local_steps=4, correction_gradients="minibatch"),
    fs.FedProx(step_size=0.1, local_steps=4, proximal_weight=0.5, cohort=3),
    fs.FedSplit(step_size=0.1, local_steps=4, proximal_weight=0.5),
    fs.Scallion(step_size=0.05, local_steps=4, compression="random_k:0.5", cohort=3),
    fs.Apda(step_size=0.05, local_steps=4, smoothness=3.0, strong_convexity=0.1),
    fs.LocalSvrg(step_size=0.05, local_steps=4),
    fs.VRProxSkip(step_size=0.05, communication_probability=0.3),
]
WITH_CLIENT_STATE = [
    METHODS[0],
    fs.TwoSidedScaffold(step_size=0.1, local_steps=4, server_step_size=0.8, cohort=3),
    METHODS[1],
    METHODS[6],
    METHODS[8],
]


def problem(weights: Any = WEIGHTS) -> Any:
    return make("logistic", SIZES, 3, weights=weights)


@pytest.mark.parametrize("method", METHODS, ids=repr)
@pytest.mark.parametrize("batch_size", [None, 2])
def test_numbers_are_those_of_the_simulation(tmp_path: Path, method: Method, batch_size: int | None) -> None:
    federation = Federation(tmp_path, problem(), method, batch_size=batch_size)
    federation.run(6)
    simulated = federation.simulated(6)
    np.testing.assert_allclose(federation.ledger.server.theta, simulated.theta, rtol=0, atol=1e-12)
    if federation.config.has_client_state:
        np.testing.assert_allclose(
            federation.control_variates(), simulated.control_variates[0], rtol=0, atol=1e-11
        )
        federation.check_backup()


@pytest.mark.parametrize("method", [
    fs.Tamuna(step_size=0.1, communication_probability=0.3, owners=2),
    fs.RandProx(step_size=0.1, communication_probability=0.3, share=0.5),
    fs.AmplifiedScaffold(step_size=0.1, local_steps=3, window=2),
], ids=lambda method: method.kind)  # fmt: skip
def test_methods_with_longer_messages_are_refused(tmp_path: Path, method: Method) -> None:
    with pytest.raises(fs.InvalidInput, match="cannot run on a federation, since its messages are longer"):
        Federation(tmp_path, problem(), method)


@pytest.mark.slow
def test_jax_models_too(tmp_path: Path) -> None:
    """A loss that JAX differentiates; every client has its block of the problem."""
    import jax.numpy as jnp

    rng = np.random.default_rng(2)
    clients = [(rng.normal(size=(n, 3)), rng.normal(size=n)) for n in (4, 6, 5)]

    def loss(params: Any, batch: Any) -> Any:
        x, y = batch
        return jnp.mean((jnp.tanh(x @ params["w"]) * params["a"] - y) ** 2)

    params = {"w": np.zeros(3), "a": np.ones(1)}
    network = fs.problems.Differentiable(loss, params, clients)

    class JaxFederation(Federation):
        engine = "jax"

    federation = JaxFederation(tmp_path, network, fs.Scaffold(step_size=0.1, local_steps=3))
    federation.run(3)
    theta = federation.simulated(3).theta
    np.testing.assert_allclose(federation.ledger.server.theta, theta, rtol=0, atol=1e-12)


def request_lost(request: TrainRequest, work: Callable[[], Reply]) -> Reply | None:
    return None


def reply_lost(request: TrainRequest, work: Callable[[], Reply]) -> Reply | None:
    work()
    return None


def not_a_number(request: TrainRequest, work: Callable[[], Reply]) -> Reply | None:
    reply = work()
    assert isinstance(reply, ClientUpdate)
    return replace(reply, vector=reply.vector * np.nan)


def exploded(request: TrainRequest, work: Callable[[], Reply]) -> Reply | None:
    reply = work()
    assert isinstance(reply, ClientUpdate)
    return replace(reply, vector=reply.vector * 1e6)


def failed(request: TrainRequest, work: Callable[[], Reply]) -> Reply | None:
    return ClientFailed(client=request.client, reason="for a test")


def as_it_should(request: TrainRequest, work: Callable[[], Reply]) -> Reply | None:
    return work()


MISHAPS = [as_it_should, request_lost, reply_lost, not_a_number, failed]
HONEST, SPOILT = st.sampled_from(MISHAPS), st.sampled_from([*MISHAPS, exploded])  # a majority is honest


@pytest.mark.parametrize(
    "method",
    [*WITH_CLIENT_STATE[:2], *(pytest.param(m, marks=pytest.mark.slow) for m in WITH_CLIENT_STATE[2:])],
    ids=repr,
)
@settings(max_examples=8)
@given(schedule=st.lists(st.tuples(HONEST, HONEST, SPOILT, HONEST, HONEST), min_size=4, max_size=4))
def test_nothing_that_happens_to_messages_breaks_the_sum(
    tmp_path_factory: pytest.TempPathFactory, method: Method, schedule: list[tuple[Any, ...]]
) -> None:
    """Four rounds of mishaps, one that goes well; then the sum is 0 and the server's backup is right."""
    asked: dict[int, int] = {}

    def event(request: TrainRequest, work: Callable[[], Reply]) -> Reply | None:
        asked[request.round] = asked.get(request.round, 0) + 1
        if request.round >= len(schedule) or asked[request.round] > 40:
            return work()
        return schedule[request.round][request.client](request, work)

    folder = tmp_path_factory.mktemp("federation")
    federation = Federation(folder, problem(), method, event=event, rules=RoundRules(min_clients=4, attempts=50))
    with suppress(TooFewClients):  # all but one were refused
        federation.run(len(schedule) + 1)
    assert federation.drift() < 1e-13
    federation.check_backup()
    shutil.rmtree(folder)


@pytest.mark.parametrize(
    "method",
    [
        fs.Scaffold(step_size=0.1, local_steps=4),
        fs.Scaffold(step_size=0.1, local_steps=4, cohort=67),
        fs.FedAvg(step_size=0.1, local_steps=4, cohort=9),
    ],
    ids=repr,
)
def test_sums_over_many_clients_have_the_bits_of_the_simulation(tmp_path: Path, method: Method) -> None:
    """More than 64 clients are added in a tree, whose shape must not depend on who took part."""
    many = make("ridge", (4,) * 70, 3, weights=tuple(range(1, 71)))
    federation = Federation(tmp_path, many, method)
    np.testing.assert_array_equal(federation.run(3).server.theta, federation.simulated(3).theta)


def test_a_client_outside_the_cohort_refuses(tmp_path: Path) -> None:
    federation = Federation(tmp_path, problem(), METHODS[2])
    absent = next(c for c in range(5) if c not in federation.config.cohort(0))
    for client in (absent, 5):
        request = train_request(federation.config, federation.ledger, min(client, 4))
        with pytest.raises(Refusal, match=f"client {client} does not take part in round 0"):
            handle_request(replace(request, client=client), federation.work_of(0), tmp_path)
