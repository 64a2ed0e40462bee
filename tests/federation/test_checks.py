"""Contributions that must not count, and clients that must."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedscaffold as fs
from fedscaffold.core.errors import Diverged, InvalidInput
from fedscaffold.core.protocols import Method
from fedscaffold.core.types import Array
from fedscaffold.federation.checks import too_far
from fedscaffold.federation.ledger import first_ledger, typical
from fedscaffold.federation.messages import Reply, Sent, TrainRequest
from fedscaffold.federation.run_config import RunConfig
from fedscaffold.federation.server import Rules, TooFewClients
from tests.federation.federation import Federation
from tests.samples import make

SIZES, WEIGHTS = (6, 9, 4, 7), (1.0, 2.0, 0.5, 1.5)
SCAFFOLD = fs.Scaffold(step_size=0.3, local_steps=6)
METHODS = [
    SCAFFOLD,
    fs.FedAvg(step_size=0.3, local_steps=6),
    fs.TwoSidedScaffold(step_size=0.3, local_steps=6, server_step_size=0.8),
    fs.ProxSkip(step_size=0.3, communication_probability=0.2),
    fs.FedLin(step_size=0.1, local_steps=6),
]
BAD = 2


def problem() -> Any:
    return make("ridge", SIZES, 3, weights=WEIGHTS)


def spoilt(reply: Reply, vector: Array | None = None, **changes: Any) -> Sent:
    assert isinstance(reply, Sent)
    return replace(reply, vector=reply.vector if vector is None else vector, **changes)


POISON: dict[str, Callable[[Sent], Sent]] = {
    "NaN": lambda reply: spoilt(reply, reply.vector * np.nan),
    "one infinite number": lambda reply: spoilt(reply, np.append(reply.vector[:-1], np.inf)),
    "a norm of a million times": lambda reply: spoilt(reply, reply.vector * 1e6),
    "a norm beyond float64": lambda reply: spoilt(reply, np.full_like(reply.vector, 1e300)),
    "one number more": lambda reply: spoilt(reply, np.append(reply.vector, 0.0)),
    "a matrix": lambda reply: spoilt(reply, reply.vector[None, :]),
    "float32": lambda reply: spoilt(reply, reply.vector.astype(np.float32)),
    "text": lambda reply: spoilt(reply, np.array(["a", "b", "c"])),
    "an old round": lambda reply: spoilt(reply, round=reply.round - 1),
    "another epoch": lambda reply: spoilt(reply, epoch=reply.epoch + 1),
    "another phase": lambda reply: spoilt(reply, phase="gradient" if reply.phase == "train" else "train"),
}


def poisoned_by(poison: Callable[[Sent], Sent]) -> Callable[[TrainRequest, Callable[[], Reply]], Reply | None]:
    def event(order: TrainRequest, work: Callable[[], Reply]) -> Reply | None:
        reply = work()
        assert isinstance(reply, Sent)
        return poison(reply) if order.client == BAD else reply

    return event


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
@pytest.mark.parametrize("poison", POISON.values(), ids=POISON)
def test_poison_is_refused_and_named_and_harms_nobody(
    tmp_path: Path, method: Method, poison: Callable[[Sent], Sent], caplog: pytest.LogCaptureFixture
) -> None:
    """The run is that of the other clients alone."""
    federation = Federation(tmp_path, problem(), method, batch_size=None, event=poisoned_by(poison))
    federation.run(5)
    assert all(outcome.counted == (0, 1, 3) for outcome in federation.outcomes)
    assert all(list(outcome.refused) == [BAD] for outcome in federation.outcomes)
    assert caplog.text.count(f"client {BAD}'s contribution is refused") == 5
    if isinstance(method, fs.TwoSidedScaffold):
        return  # its server's variate counts the share of those who take part
    alone = fs.run(
        problem().subset([0, 1, 3]), method, rounds=5, seed=federation.terms.seed, engine="reference", record=()
    )
    np.testing.assert_allclose(federation.ledger.server.theta, alone.theta, rtol=0, atol=1e-12)


def test_a_client_that_was_away_for_long_is_let_in_again(tmp_path: Path) -> None:
    """The others have long agreed and hardly move any more; it moves thousands of times as far, and is right."""

    def event(order: TrainRequest, work: Callable[[], Reply]) -> Reply | None:
        return None if order.client == 1 and order.round < 60 else work()

    federation = Federation(tmp_path, problem(), SCAFFOLD, batch_size=None, event=event, accounts=False)
    federation.run(60)
    before = federation.ledger.server.theta[0]
    rest = problem().subset([0, 2, 3]).optimum()
    assert np.linalg.norm(before - rest) < 1e-5
    federation.run(61)
    assert federation.outcomes[-1].counted == (0, 1, 2, 3)
    assert np.linalg.norm(federation.ledger.server.theta[0] - before) > 1e4 * np.linalg.norm(before - rest)
    federation.run(130)
    np.testing.assert_allclose(federation.ledger.server.theta[0], problem().optimum(), rtol=0, atol=1e-5)
    assert federation.drift() < 1e-13


def test_half_of_the_clients_cannot_raise_what_is_usual() -> None:
    assert typical([5.0]) == 5.0
    assert typical([1.0, 1e9]) == 1.0
    assert typical([1e9, 1.0, 2.0]) == 2.0
    ledger = first_ledger(RunConfig(name="x", method=SCAFFOLD, n_clients=3, dim=1), np.zeros(1))
    assert too_far(ledger, {0: np.array([1.0]), 1: np.array([5e3])}, 1000.0).keys() == {1}
    assert too_far(ledger, {0: np.array([1.0]), 1: np.array([5e2])}, 1000.0) == {}
    assert too_far(ledger, {0: np.array([5e9])}, 1000.0) == {}
    assert too_far(ledger._replace(reach=1.0), {0: np.array([5e9])}, 1000.0).keys() == {0}


def test_a_run_stops_when_too_few_are_sound(tmp_path: Path) -> None:
    federation = Federation(
        tmp_path, problem(), SCAFFOLD, event=poisoned_by(POISON["NaN"]), rules=Rules(min_clients=4)
    )
    with pytest.raises(TooFewClients, match=r"3 of 4 clients contributed, 4 are needed; no answer from nobody"):
        federation.run(1)
    federation.event = lambda order, work: None if order.client == 1 else work()
    with pytest.raises(TooFewClients, match=r"no answer from \[1\], refused: nobody"):
        federation.run(1)


def test_divergence_stops_the_run(tmp_path: Path) -> None:
    federation = Federation(tmp_path, problem(), fs.Scaffold(step_size=40.0, local_steps=6))
    with pytest.raises(Diverged, match="Scaffold diverged in round"):
        federation.run(50)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "../evil"}, "letters, digits"),
        ({"name": ""}, "letters, digits"),
        ({"name": 5}, "letters, digits"),
        ({"method": "scaffold"}, "must be one of"),
        ({"method": fs.ServerOptimizer(method=SCAFFOLD, optimizer="sgd", learning_rate=1.0)}, "cannot be told"),
        ({"n_clients": 0}, "n_clients"),
        ({"dim": 0}, "dim"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**64}, "seed"),
        ({"n_clients": 2, "method": fs.Scaffold(step_size=0.1, local_steps=(1, 2, 3))}, "local_steps has 3"),
        ({"n_clients": 2, "method": fs.FedAvg(step_size=0.1, local_steps=1, cohort=3)}, "cohort=3"),
    ],
)
def test_terms_that_make_no_sense(changes: dict[str, Any], message: str) -> None:
    good: dict[str, Any] = {"name": "run", "method": SCAFFOLD, "n_clients": 3, "dim": 4}
    with pytest.raises(InvalidInput, match=message):
        RunConfig(**{**good, **changes})


@pytest.mark.parametrize("method", [*METHODS, fs.Scaffold(step_size=0.1, local_steps=(1, 2, 3))], ids=repr)
def test_terms_travel_as_text(method: Method) -> None:
    terms = RunConfig(name="run-1.a", method=method, n_clients=3, dim=4, seed=2**63)
    again = RunConfig.from_json(terms.to_json())
    assert again == terms
    assert again.digest == terms.digest
    for text in ("", "{}", "[]", terms.to_json().replace(type(method).__name__, "system"), '{"method": {}}'):
        with pytest.raises(InvalidInput, match="not the terms of a run"):
            RunConfig.from_json(text)
