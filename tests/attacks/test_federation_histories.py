"""Runs, and histories of one run, that share disks: never mixed up, always named."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedscaffold as fs
from fedscaffold.core.errors import CheckpointMismatch, InUse
from fedscaffold.federation import ProblemTask, Refusal, RefusalCode, RoundRules, SitePolicy
from fedscaffold.federation.server.session import open_session
from tests.federation.federation import Federation
from tests.samples import make

SIZES, WEIGHTS = (6, 9, 4), (1.0, 2.0, 0.5)
METHODS: list[Any] = [
    fs.Scaffold(step_size=0.1, local_steps=3),
    fs.TwoSidedScaffold(step_size=0.1, local_steps=3, server_step_size=0.8),
    fs.ProxSkip(step_size=0.1, communication_probability=0.3),
]


def problem() -> Any:
    return make("ridge", SIZES, 3, weights=WEIGHTS)


def flipped() -> Any:
    data = problem()
    cuts = data.offsets[1:-1]
    return fs.problems.Ridge(np.split(data.x, cuts), np.split(-data.y, cuts), l2=data.l2, weights=WEIGHTS)


class SharedDisks(Federation):
    """A federation whose clients keep their states in folders that other runs use too."""

    disks: Path

    def state_dir(self, client: int) -> Path:
        return self.disks / f"node-{client}"


def federation(server: Path, disks: Path, method: Any = METHODS[0], **options: Any) -> SharedDisks:
    found = SharedDisks(server, options.pop("problem", None) or problem(), method, **options)
    found.disks = disks
    return found


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_two_runs_of_one_name_on_the_same_disks(tmp_path: Path, method: Any) -> None:
    """Run A, then B with another first model, then A again: each has the numbers that it has alone."""
    disks = tmp_path / "disks"
    a = federation(tmp_path / "a", disks, method)
    a.run(5)
    b = federation(tmp_path / "b", disks, method)
    shutil.rmtree(tmp_path / "b" / "server")
    b.theta0 = np.full(3, 5.0)
    b.restart_server()
    b.run(5)
    a.restart_server()
    a.run(12)
    b.run(12)
    np.testing.assert_allclose(a.ledger.server.theta, a.simulated(12).theta, rtol=0, atol=1e-12)
    alone = fs.run(
        problem(), method, rounds=12, batch_size=2, seed=3, engine="reference", record=(), theta0=b.theta0
    )
    np.testing.assert_allclose(b.ledger.server.theta, alone.theta, rtol=0, atol=1e-12)
    assert a.drift() < 1e-13
    assert b.drift() < 1e-13


def test_a_run_on_other_labels_does_not_return_the_first_runs_model(tmp_path: Path) -> None:
    disks, other = tmp_path / "disks", flipped()
    federation(tmp_path / "a", disks).run(4)
    b = federation(tmp_path / "b", disks, problem=other)
    b.run(4)
    np.testing.assert_allclose(b.ledger.server.theta, b.simulated(4).theta, rtol=0, atol=1e-12)


def test_a_run_whose_data_change_is_refused_by_the_site(tmp_path: Path) -> None:
    """Also when only labels were flipped; or the site says so in its log and goes on, if its policy wants that."""
    run = federation(tmp_path / "a", tmp_path / "disks")
    run.run(2)
    run.works[1] = ProblemTask(flipped().subset([1]), "reference")
    with pytest.raises(Refusal) as refused:
        run.run(3)
    assert refused.value.code is RefusalCode.DATA_CHANGED
    run.policy = SitePolicy.for_simulation().model_copy(update={"changed_data": "warn"})
    run.run(3)
    log = (tmp_path / "disks" / "node-1" / "audit.jsonl").read_text()
    assert '"data-changed"' in log


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
@pytest.mark.parametrize("server_to", [1, 3, 6])
@pytest.mark.parametrize("client_to", [0, 2, 3, 6])
def test_rollbacks_of_server_and_clients_to_different_rounds(
    tmp_path: Path, method: Any, server_to: int, client_to: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Backups of different days are restored; a run ends with the undisturbed numbers, or says why."""
    quiet = federation(tmp_path / "quiet", tmp_path / "quiet-disks", method)
    quiet.run(9)
    run = federation(tmp_path / "run", tmp_path / "disks", method)
    for t in range(7):
        shutil.copytree(tmp_path / "run", tmp_path / f"server-{t}", dirs_exist_ok=True)
        if run.state_dir(1).exists():
            shutil.copytree(run.state_dir(1), tmp_path / f"client-{t}")
        run.run(t + 1)
    shutil.rmtree(tmp_path / "run")
    shutil.copytree(tmp_path / f"server-{server_to}", tmp_path / "run")
    shutil.rmtree(run.state_dir(1))
    if client_to:
        shutil.copytree(tmp_path / f"client-{client_to}", run.state_dir(1))
    run.restart_server()
    run.run(9)
    np.testing.assert_array_equal(run.ledger.server.theta, quiet.ledger.server.theta)
    assert run.drift() < 1e-13
    run.check_backup()
    if client_to != server_to:
        assert "lost its state" in caplog.text


def test_a_history_that_forked_is_not_taken_for_the_other(tmp_path: Path) -> None:
    """The server is set back and goes on without client 2: other models under the same numbers of rounds."""
    disks = tmp_path / "disks"
    run = federation(tmp_path / "run", disks, rules=RoundRules(min_clients=2, attempts=1, outlier_factor=None))
    run.run(2)
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    run.run(4)
    shutil.rmtree(tmp_path / "run")
    shutil.copytree(tmp_path / "copy", tmp_path / "run")
    run.restart_server()
    run.event = lambda request, work: None if request.client == 2 else work()
    run.run(4)
    run.event = lambda request, work: work()
    run.run(6)
    assert run.drift() < 1e-13
    run.check_backup()


def test_a_forked_checkpoint_among_the_others_is_refused(tmp_path: Path) -> None:
    run = federation(tmp_path / "run", tmp_path / "disks")
    run.event = lambda request, work: None if request.client == 2 and request.round > 0 else work()
    run.rules = RoundRules(min_clients=2, attempts=1, outlier_factor=None)
    run.run(3)
    other = federation(tmp_path / "other", tmp_path / "other-disks")
    other.run(1)
    newest = "server/checkpoints/round-000001.npz"
    shutil.copy(tmp_path / "other" / newest, tmp_path / "run" / newest)
    with pytest.raises(CheckpointMismatch, match="another history of this run"):
        run.restart_server()


def test_two_servers_on_one_folder(tmp_path: Path) -> None:
    run = federation(tmp_path / "run", tmp_path / "disks")
    given: dict[str, Any] = {"rules": RoundRules(), "rounds": 5}
    with open_session(tmp_path / "one", run.config, run.theta0, **given):  # noqa: SIM117
        with pytest.raises(InUse, match="in use by another process"):
            with open_session(tmp_path / "one", run.config, run.theta0, **given):
                pass


def test_a_run_returns_to_an_earlier_checkpoint(tmp_path: Path) -> None:
    """As the page on deployment says: delete later files while the server is stopped."""
    quiet = federation(tmp_path / "quiet", tmp_path / "quiet-disks")
    quiet.run(8)
    run = federation(tmp_path / "run", tmp_path / "disks")
    run.run(6)
    (tmp_path / "run" / "server" / "checkpoints" / "round-000006.npz").unlink()
    run.restart_server()
    assert run.ledger.round == 5
    run.run(8)
    np.testing.assert_array_equal(run.ledger.server.theta, quiet.ledger.server.theta)
