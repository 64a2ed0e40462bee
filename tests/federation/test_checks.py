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
from fedscaffold.federation.messages import Reply
from fedscaffold.federation.server.checks import weighted_median
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
LOOSE = RoundRules(min_clients=1, outlier_factor=1000.0)  # no sound update of these tests is shortened
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
    federation = Federation(tmp_path, problem(), method, batch_size=None, event=poisoned_by(poison), rules=LOOSE)
    federation.run(3)
    assert all(result.counted == (0, 1, 3) for result in federation.results)
    assert all(list(result.refused) == [BAD] for result in federation.results)
    assert caplog.text.count(f"client {BAD}'s update is rejected") == 3
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
    ("factors", "refused", "shortened"),
    [
        ({1: 5e3}, {1}, set()),
        ({2: 20.0}, set(), {2}),
        ({2: 5.0}, set(), set()),  # it has a quarter of the usual weight, so that this hardly moves the mean
        ({1: 2.5}, set(), {1}),
        ({1: 1e9}, {1}, set()),  # 40 % of the weight
        ({0: 1e9, 1: 1e9}, set(), set()),  # a majority says what is usual
        ({0: 1e-9, 2: 1e-9}, set(), set()),  # a minority that hardly moves does not
    ],
)
def test_which_updates_are_too_long(
    tmp_path: Path, factors: dict[int, float], refused: set[int], shortened: set[int]
) -> None:
    """All clients of the first round send θ + 1, or that times a factor."""

    def event(request: TrainRequest, work: Callable[[], Reply]) -> Reply | None:
        return spoilt(work(), np.full(3, factors.get(request.client, 1.0)))

    federation = Federation(tmp_path, problem(), SCAFFOLD, event=event, rules=RoundRules(), backup=False)
    result = federation.step()
    assert (set(result.refused), set(result.shortened)) == (refused, shortened)


def test_one_client_alone_says_itself_what_is_usual(tmp_path: Path) -> None:
    """Which is why a run asks for two clients at least, unless it is told otherwise."""
    alone: set[int] = {0}

    def event(request: TrainRequest, work: Callable[[], Reply]) -> Reply | None:
        if request.client == 0:
            return spoilt(work(), np.full(3, 5e9))
        return work() if request.client not in alone else None

    federation = Federation(tmp_path, problem(), SCAFFOLD, event=event, rules=RoundRules(min_clients=1))
    alone |= {1, 2, 3}
    assert federation.step().counted == (0,)
    alone.clear()
    assert federation.step().counted == (1, 2, 3)


def test_a_run_stops_when_too_few_are_sound(tmp_path: Path) -> None:
    federation = Federation(
        tmp_path, problem(), SCAFFOLD, event=poisoned_by(POISON["NaN"]), rules=RoundRules(min_clients=4)
    )
    with pytest.raises(
        TooFewClients, match=r"3 of 4 clients sent updates that count, 4 are needed; without an answer: none"
    ):
        federation.run(1)
    federation.event = lambda request, work: None if request.client == 1 else work()
    with pytest.raises(TooFewClients, match=r"without an answer: \[1\], rejected: none"):
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


def test_half_of_the_weight_does_not_lower_the_median() -> None:
    """So that clients which hardly move cannot get the others refused."""
    alike = np.ones(4)
    assert weighted_median(np.array([8.0, 1.0]), alike[:2]) == 8.0
    assert weighted_median(np.array([4.0, 1.0, 3.0, 2.0]), alike) == 3.0
    assert weighted_median(np.array([3.0, 1.0, 2.0]), alike[:3]) == 2.0
    assert weighted_median(np.array([3.0, 1.0, 2.0]), np.array([1.0, 3.0, 1.0])) == 1.0


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


def test_a_client_keeps_its_update_as_long_as_the_server_counted_it(tmp_path: Path) -> None:
    """The first client's labels are far from the others', so that the server shortens what it sends."""
    x, y = np.random.default_rng(0).normal(size=(5, 20, 3)), np.random.default_rng(1).normal(size=(5, 20))
    y[0] += 30.0 * x[0].sum(axis=1)
    federation = Federation(
        tmp_path, fs.problems.Ridge(x, y, l2=0.1), SCAFFOLD, batch_size=None, rules=RoundRules(), backup=False
    )
    federation.run(4)
    assert all(0.0 < result.shortened[0] < 0.9 for result in federation.results)
    assert not any(result.limited for result in federation.results)
    assert federation.drift() < 1e-12 * np.abs(federation.control_variates()).max()
