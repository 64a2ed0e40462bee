"""Processes that end at any moment, and disks that are lost."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedscaffold as fs
from fedscaffold.core.errors import CheckpointMismatch
from fedscaffold.core.protocols import Method
from fedscaffold.federation import (
    ClientFailed,
    ClientUpdate,
    RoundRules,
    StateLost,
    TrainRequest,
    train_request,
)
from fedscaffold.federation.messages import Reply
from tests.federation.federation import Federation
from tests.samples import make

ROUNDS = 4
SCAFFOLD = fs.Scaffold(step_size=0.1, local_steps=3)
METHODS = [
    SCAFFOLD,
    fs.Scaffold(step_size=0.1, local_steps=3, cohort=2),
    fs.TwoSidedScaffold(step_size=0.1, local_steps=3, server_step_size=0.8, cohort=2),
    fs.FedLin(step_size=0.05, local_steps=3),
]
EVERYONE = RoundRules(min_clients=100, outlier_factor=None)


def problem(n_clients: int = 3) -> Any:
    return make("ridge", (6, 9, 4, 7, 5)[:n_clients], 3, weights=(1.0, 2.0, 0.5, 1.5, 1.0)[:n_clients])


class Crash(BaseException):
    """The process is gone; nothing may catch this."""


class CrashAtWrite:
    """In place of `Path.replace`: the process ends before or after the k-th file is in place; never for k = -1."""

    def __init__(self, k: int, when: str) -> None:
        self.k, self.when, self.count, self.replace = k, when, 0, Path.replace

    def patch(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(Path, "replace", lambda path, target: self(path, target))

    def __call__(self, path: Path, target: Path) -> Path:
        crash = self.count == self.k
        self.count += 1
        if crash and self.when == "before":
            raise Crash
        found = self.replace(path, target)
        if crash:
            raise Crash
        return found


def client_may_crash(request: TrainRequest, work: Callable[[], Reply]) -> Reply | None:
    try:
        return work()
    except Crash:
        return ClientFailed(client=request.client, reason="crashed")


def run_on(federation: Federation, rounds: int) -> None:
    """The server is started again whenever it ends."""
    while federation.ledger.round < rounds:
        try:
            federation.run(rounds)
        except Crash:
            federation.restart_server()


@pytest.mark.parametrize("method", METHODS, ids=repr)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_crash_at_any_write_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: Method, when: str
) -> None:
    """Every file that clients and server write in a round is a moment to crash at.

    Each crash starts from the undisturbed run's folder before that round. One round later everything that the run
    depends on has the bits of the undisturbed run: the server's ledger, the client states and the server's backup.
    """
    undisturbed = Federation(tmp_path / "run", problem(), method, rules=EVERYONE)
    writes, after = [], []
    for t in range(ROUNDS):
        shutil.copytree(undisturbed.folder, tmp_path / f"before-{t}")
        with monkeypatch.context() as patch:
            counter = CrashAtWrite(-1, when)
            counter.patch(patch)
            undisturbed.run(t + 1)
        writes.append(counter.count)
        after.append(contents(undisturbed))
    assert sum(writes) > 10
    for t in range(ROUNDS - 1):
        for k in range(writes[t]):
            folder = shutil.copytree(tmp_path / f"before-{t}", tmp_path / f"{t}-{k}")
            federation = Federation(folder, problem(), method, rules=EVERYONE, event=client_may_crash)
            assert federation.ledger.round == t
            with monkeypatch.context() as patch:
                crash = CrashAtWrite(k, when)
                crash.patch(patch)
                run_on(federation, t + 2)
            assert crash.count > k
            assert_same(contents(federation), after[t + 1])


def contents(federation: Federation) -> dict[str, Any]:
    """What the rest of a run depends on: the ledger and the client states; the backup is compared with these."""
    found = {"ledger": federation.ledger}
    if federation.config.has_client_state:
        federation.check_backup()
        found["client states"] = federation.client_states()
    return found


def assert_same(found: Any, expected: Any) -> None:
    """The same bits, in nested tuples and dictionaries of arrays and numbers."""
    assert type(found) is type(expected)
    if isinstance(found, dict):
        assert found.keys() == expected.keys()
        found, expected = tuple(found.values()), tuple(expected.values())
    if isinstance(found, tuple):
        for a, b in zip(found, expected, strict=True):
            assert_same(a, b)
    else:
        np.testing.assert_array_equal(found, expected)


def losing(federation: Federation, client: int, at: int) -> None:
    """The client's disk is new in that round."""

    def event(request: TrainRequest, work: Callable[[], Reply]) -> Reply | None:
        if (
            (request.round, request.client) == (at, client)
            and request.client_state is None
            and request.resets == 0
        ):
            federation.state_file(client).unlink()
        return work()

    federation.event = event


@pytest.mark.parametrize("method", METHODS[:3], ids=repr)
def test_a_lost_client_state_comes_back_from_the_server(
    tmp_path: Path, method: Method, caplog: pytest.LogCaptureFixture
) -> None:
    rounds, client = 8, 1
    quiet = Federation(tmp_path / "quiet", problem(), method)
    quiet.run(rounds)
    at = next(t for t in range(2, rounds) if client in quiet.config.cohort(t) and quiet.results[t].counted)
    federation = Federation(tmp_path / "loss", problem(), method)
    losing(federation, client, at)
    federation.run(rounds)
    np.testing.assert_array_equal(federation.ledger.server.theta, quiet.ledger.server.theta)
    np.testing.assert_array_equal(federation.control_variates(), quiet.control_variates())
    assert federation.ledger.resets == 0
    assert f"client {client} lost its state (it has none) and receives the backup" in caplog.text


@pytest.mark.parametrize("method", METHODS[1:3], ids=repr)
def test_a_lost_client_state_without_backup_resets_all(
    tmp_path: Path, method: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Σ w_c ξ_c = 0 stays; the error jumps as far as FedAvg's would, and then falls as from the start."""
    faster = replace(method, step_size=0.3, local_steps=6)
    federation = Federation(tmp_path, problem(), faster, batch_size=None, backup=False)
    optimum = federation.problem.optimum()

    def error() -> float:
        return float(np.linalg.norm(federation.ledger.server.theta[0] - optimum) / np.linalg.norm(optimum))

    at = next(t for t in range(44, 54) if 1 in federation.config.cohort(t))
    losing(federation, 1, at)
    federation.run(at)
    before, theta = error(), federation.ledger.server.theta
    assert before < 1e-4
    federation.run(at + 1)
    assert federation.ledger.resets == 1
    assert "all client states are reset" in caplog.text
    assert federation.drift() < 1e-13
    assert np.linalg.norm(federation.ledger.server.theta - theta) < np.linalg.norm(optimum)
    federation.run(at + 2)
    assert 0.01 < error() < 1.0
    federation.run(at + 60)
    assert federation.drift() < 1e-13
    assert error() < 1e-5


def test_a_client_that_resets_its_own_state_does_harm(tmp_path: Path) -> None:
    """What the protocol prevents: a client that starts again at 0 by itself breaks Σ w_c ξ_c = 0 for good."""
    faster = replace(SCAFFOLD, step_size=0.3, local_steps=6)
    federation = Federation(tmp_path, problem(), faster, batch_size=None, backup=False)
    federation.run(30)

    def forgetful(request: TrainRequest, work: Callable[[], Reply]) -> Reply | None:
        if (request.round, request.client) == (30, 1):
            nothing = federation.config.initial_client_state
            return federation.handle(TrainRequest(**{**vars(request), "client_state": nothing}))
        return work()

    federation.event = forgetful
    federation.run(60)
    optimum = federation.problem.optimum()
    assert federation.drift() > 1e-2
    assert np.linalg.norm(federation.ledger.server.theta[0] - optimum) > 0.1 * np.linalg.norm(optimum)


@pytest.mark.parametrize("damage", ["another client's", "rubbish", "empty"])
def test_a_client_state_that_is_damaged_or_not_ones_own_is_replaced_by_the_backup(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    federation, quiet = (Federation(tmp_path / name, problem(), SCAFFOLD) for name in ("one", "quiet"))
    federation.run(2)
    mine, theirs = federation.state_file(0), federation.state_file(1)
    mine.write_bytes({"another client's": theirs.read_bytes(), "rubbish": b"rubbish", "empty": b""}[damage])
    federation.run(4)
    np.testing.assert_array_equal(federation.ledger.server.theta, quiet.run(4).server.theta)
    assert "client 0 lost its state (it has none) and receives the backup" in caplog.text
    assert mine.with_suffix(".damaged").exists()
    federation.check_backup()


def test_the_servers_files_are_bound_to_their_run(tmp_path: Path) -> None:
    Federation(tmp_path, problem(), SCAFFOLD).run(1)
    with pytest.raises(CheckpointMismatch, match="belongs to another run: its config"):
        Federation(tmp_path, problem(), fs.Scaffold(step_size=0.2, local_steps=3))
    (tmp_path / "server" / "checkpoints" / "round-000001.npz").write_bytes(b"rubbish")
    with pytest.raises(CheckpointMismatch, match=r"round-000001.npz cannot be read.*delete it to return"):
        Federation(tmp_path, problem(), SCAFFOLD)


def test_a_run_that_starts_over_uses_no_old_client_state(tmp_path: Path) -> None:
    """The server's folder was deleted, the clients' were not: the run starts over, and so do the clients."""
    federation = Federation(tmp_path, problem(), SCAFFOLD)
    federation.run(3)
    shutil.rmtree(tmp_path / "server")
    federation.restart_server()
    federation.run(5)
    np.testing.assert_allclose(federation.ledger.server.theta, federation.simulated(5).theta, rtol=0, atol=1e-13)


def test_an_update_from_another_model_is_not_sent_again(tmp_path: Path) -> None:
    """The run was begun, its server's folder deleted, and begun again with another first model."""
    federation = Federation(tmp_path, problem(), SCAFFOLD)
    federation.step()
    shutil.rmtree(tmp_path / "server")
    federation.theta0 = np.ones(3)
    federation.restart_server()
    federation.run(3)
    simulated = fs.run(
        problem(), SCAFFOLD, rounds=3, batch_size=2, seed=3, engine="reference", record=(), theta0=np.ones(3)
    )
    np.testing.assert_allclose(federation.ledger.server.theta, simulated.theta, rtol=0, atol=1e-13)


def test_the_same_request_again_is_answered_from_disk(tmp_path: Path) -> None:
    """A training loop of one's own may give other numbers a second time; what was sent first must count."""
    federation = Federation(tmp_path, problem(), SCAFFOLD)
    request = train_request(federation.config, federation.ledger, 0)
    first = federation.handle(request)
    federation.works[0].open = None  # type: ignore[method-assign, assignment]  # must not be called
    again = federation.handle(request)
    assert isinstance(first, ClientUpdate)
    assert isinstance(again, ClientUpdate)
    np.testing.assert_array_equal(again.vector, first.vector)


def test_a_client_state_from_an_older_backup_is_lost(tmp_path: Path) -> None:
    """The file of an earlier round was put back: it is not taken for the newest."""
    federation = Federation(tmp_path, problem(), SCAFFOLD)
    federation.run(2)
    old = federation.state_file(0).read_bytes()
    federation.run(5)
    federation.state_file(0).write_bytes(old)
    assert isinstance(federation.handle(train_request(federation.config, federation.ledger, 0)), StateLost)


def test_a_client_state_from_before_a_reset_is_lost(tmp_path: Path) -> None:
    """Even where the numbers of rounds agree."""
    federation = Federation(tmp_path, problem(), SCAFFOLD)
    federation.run(2)
    after = federation.ledger._replace(resets=1)
    reply = federation.handle(train_request(federation.config, after, 0))
    assert isinstance(reply, StateLost)
    assert reply.reason == "other-history"
