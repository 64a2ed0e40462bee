"""Updates that must be refused, and clients whose updates must count."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedscaffold as fs
from fedscaffold.core.errors import Diverged, InvalidInput
from fedscaffold.core.protocols import Method
from fedscaffold.core.types import Array
from fedscaffold.federation import ClientUpdate, RoundRules, RunConfig, TooFewClients, TrainRequest
from fedscaffold.federation.ledger import lower_median
from fedscaffold.federation.messages import Reply
from tests.federation.federation import Event, Federation
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
Poison = Callable[[ClientUpdate], ClientUpdate]


def problem() -> Any:
    return make("ridge", SIZES, 3, weights=WEIGHTS)


def spoilt(reply: Reply, vector: Array | None = None, **changes: Any) -> ClientUpdate:
    assert isinstance(reply, ClientUpdate)
    return replace(reply, vector=reply.vector if vector is None else vector, **changes)


POISON: dict[str, Poison] = {
    "NaN": lambda reply: spoilt(reply, reply.vector * np.nan),
    "one number that is NaN": lambda reply: spoilt(reply, np.append(reply.vector[:-1], np.nan)),
    "one infinite number": lambda reply: spoilt(reply, np.append(reply.vector[:-1], np.inf)),
    "a norm of a million times": lambda reply: spoilt(reply, reply.vector * 1e6),
    "a norm beyond float64": lambda reply: spoilt(reply, np.full_like(reply.vector, 1e300)),
    "one number more": lambda reply: spoilt(reply, np.append(reply.vector, 0.0)),
    "a matrix": lambda reply: spoilt(reply, reply.vector[None, :]),
    "float32": lambda reply: spoilt(reply, reply.vector.astype(np.float32)),
    "text": lambda reply: spoilt(reply, np.array(["a", "b", "c"])),
    "an old round": lambda reply: spoilt(reply, round=reply.round - 1),
    "another number of resets": lambda reply: spoilt(reply, resets=reply.resets + 1),
    "another phase": lambda reply: spoilt(reply, phase="gradient" if reply.phase == "train" else "train"),
}


def poisoned_by(poison: Poison) -> Event:
    def event(request: TrainRequest, work: Callable[[], Reply]) -> Reply | None:
        reply = work()
        assert isinstance(reply, ClientUpdate)
        return poison(reply) if request.client == BAD else reply

    return event


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
@pytest.mark.parametrize("poison", POISON.values(), ids=POISON)
def test_poison_is_refused_and_named_and_harms_nobody(
    tmp_path: Path, method: Any, poison: Poison, caplog: pytest.LogCaptureFixture
) -> None:
    """The run is that of the other clients alone."""
    federation = Federation(tmp_path, problem(), method, batch_size=None, event=poisoned_by(poison))
    federation.run(3)
    assert all(result.counted == (0, 1, 3) for result in federation.results)
    assert all(list(result.refused) == [BAD] for result in federation.results)
    assert caplog.text.count(f"client {BAD}'s update is refused") == 3
    if isinstance(method, fs.TwoSidedScaffold):
        return  # its server's variate counts the share of those who take part
    expected = theta_of_others(method, rounds=3, seed=federation.config.seed)
    np.testing.assert_allclose(federation.ledger.server.theta, expected, rtol=0, atol=1e-12)


@cache
def theta_of_others(method: Any, *, rounds: int, seed: int) -> Array:
    """θ of a run without the client whose updates are refused."""
    others = problem().subset([0, 1, 3])
    return fs.run(others, method, rounds=rounds, seed=seed, engine="reference", record=()).theta


def test_a_client_that_was_offline_for_long_counts_again(tmp_path: Path) -> None:
    """The others have long agreed and hardly move any more; it moves thousands of times as far, and is right."""

    def event(request: TrainRequest, work: Callable[[], Reply]) -> Reply | None:
        return None if request.client == 1 and request.round < 35 else work()

    federation = Federation(tmp_path, problem(), SCAFFOLD, batch_size=None, event=event, backup=False)
    federation.run(35)
    before = federation.ledger.server.theta[0]
    rest = problem().subset([0, 2, 3]).optimum()
    assert np.linalg.norm(before - rest) < 1e-5
    federation.run(36)
    assert federation.results[-1].counted == (0, 1, 2, 3)
    assert np.linalg.norm(federation.ledger.server.theta[0] - before) > 1e4 * np.linalg.norm(before - rest)
    federation.run(75)
    np.testing.assert_allclose(federation.ledger.server.theta[0], problem().optimum(), rtol=0, atol=1e-5)
    assert federation.drift() < 1e-13


@pytest.mark.parametrize(
    ("factors", "refused"),
    [
        ({1: 5e3}, {1}),
        ({1: 5e2}, set()),
        ({1: 1e9, 2: 1e9}, {1, 2}),  # half of the clients do not move the lower median
        ({0: 1e9, 1: 1e9, 2: 1e9}, set()),  # a majority says what is usual
    ],
)
def test_which_updates_are_too_long(tmp_path: Path, factors: dict[int, float], refused: set[int]) -> None:
    """All clients of the first round send θ + 1, or that times a factor; 1000 times the usual is too long."""

    def event(request: TrainRequest, work: Callable[[], Reply]) -> Reply | None:
        return spoilt(work(), np.full(3, factors.get(request.client, 1.0)))

    federation = Federation(tmp_path, problem(), SCAFFOLD, event=event)
    assert set(federation.step().refused) == refused


def test_one_client_alone_is_measured_by_earlier_rounds(tmp_path: Path) -> None:
    """In the first round no distance is usual yet; later the largest median of earlier rounds is."""
    federation = Federation(tmp_path, problem(), SCAFFOLD, rules=RoundRules(min_clients=1, attempts=1))

    def only_one(request: TrainRequest, work: Callable[[], Reply]) -> Reply | None:
        return spoilt(work(), np.full(3, 5e9)) if request.client == 0 else None

    federation.event = only_one
    assert federation.step().counted == (0,)
    federation.event = lambda request, work: work()
    federation.run(1)
    federation.event = only_one
    with pytest.raises(TooFewClients, match=r"refused: \{0: 'its norm is"):
        federation.step()


def test_a_run_stops_when_too_few_are_sound(tmp_path: Path) -> None:
    federation = Federation(
        tmp_path, problem(), SCAFFOLD, event=poisoned_by(POISON["NaN"]), rules=RoundRules(min_clients=4)
    )
    with pytest.raises(
        TooFewClients, match=r"3 of 4 clients sent updates that count, 4 are needed; no answer from nobody"
    ):
        federation.run(1)
    federation.event = lambda request, work: None if request.client == 1 else work()
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
        ({"method": "scaffold"}, "method must be a dataclass"),
        ({"method": fs.Scaffold}, "method must be a dataclass"),
        ({"n_clients": 0}, "n_clients"),
        ({"dim": 0}, "dim"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**64}, "seed"),
        ({"n_clients": 2, "method": fs.Scaffold(step_size=0.1, local_steps=(1, 2, 3))}, "local_steps has 3"),
        ({"n_clients": 2, "method": fs.FedAvg(step_size=0.1, local_steps=1, cohort=3)}, "cohort=3"),
    ],
)
def test_configurations_that_make_no_sense(changes: dict[str, Any], message: str) -> None:
    good: dict[str, Any] = {"name": "run", "method": SCAFFOLD, "n_clients": 3, "dim": 4}
    with pytest.raises(InvalidInput, match=message):
        RunConfig(**{**good, **changes})


@pytest.mark.parametrize("method", [*METHODS, fs.Scaffold(step_size=0.1, local_steps=(1, 2, 3))], ids=repr)
def test_configurations_travel_as_text(method: Method) -> None:
    config = RunConfig(name="run-1.a", method=method, n_clients=3, dim=4, seed=2**63)
    again = RunConfig.from_json(config.to_json())
    assert again == config
    assert again.digest == config.digest
    for text in ("", "{}", "[]", '{"method": {}}', config.to_json().replace("seed", "seeds")):
        with pytest.raises(InvalidInput, match="not the configuration of a run"):
            RunConfig.from_json(text)


def test_the_median_of_an_even_number_is_the_smaller_middle_value() -> None:
    """So that one of two clients cannot raise what counts as usual."""
    assert lower_median([8.0, 1.0]) == 1.0
    assert lower_median([4.0, 1.0, 3.0, 2.0]) == 2.0
    assert lower_median([3.0, 1.0, 2.0]) == 2.0


def test_a_client_without_a_gradient_is_not_asked_for_local_steps(tmp_path: Path) -> None:
    asked: list[tuple[int, str]] = []

    def event(request: TrainRequest, work: Callable[[], Reply]) -> Reply | None:
        asked.append((request.client, request.phase))
        return None if request.client == BAD and request.phase == "gradient" else work()

    rules = RoundRules(min_clients=3)
    federation = Federation(tmp_path, problem(), fs.FedLin(step_size=0.1, local_steps=6), rules=rules, event=event)
    federation.run(1)
    assert (BAD, "gradient") in asked
    assert (BAD, "train") not in asked
    assert federation.results[0].counted == (0, 1, 3)
