"""Real processes on loopback, with TLS and node keys: the simulation's numbers, kills, poison, intruders."""

import importlib.util
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedscaffold as fs
from fedscaffold.core.random.stream import Batches
from fedscaffold.core.types import Array
from fedscaffold.federation import AuditLog, Ledger, RunConfig, run_status, train_request
from fedscaffold.federation.client.store import ClientStateFile, reconcile
from fedscaffold.federation.server.files import CheckpointFolder
from fedscaffold.flower.certificates import make_key
from tests.flower.loopback import Loopback

APP = Path(__file__).parent / "loopback_app"


def _app() -> Any:
    spec = importlib.util.spec_from_file_location("loopback_app_here", APP / "loopback_app.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Federation:
    """A loopback federation, and what its runs leave on disk."""

    def __init__(self, folder: Path, n_clients: int) -> None:
        self.folder, self.n_clients, self.app = folder, n_clients, _app()
        nodes: list[dict[str, str | int]] = [
            {"partition-id": c, "state-dir": str(self.state_dir(c))} for c in range(n_clients)
        ]
        self.loopback = Loopback(folder / "flower", nodes)

    def state_dir(self, client: int) -> Path:
        return self.folder / f"disk-{client}" / "state"

    def start(self, name: str, rounds: int, **config: Any) -> "subprocess.Popen[str]":
        given = {
            "folder": str(self.server(name)),
            "name": name,
            "rounds": rounds,
            "clients": self.n_clients,
            **config,
        }
        return self.loopback.run(APP, given)

    def run(self, name: str, rounds: int, **config: Any) -> str:
        """Until it has ended; what the server logged."""
        return self.finish(self.start(name, rounds, **config))

    def finish(self, process: "subprocess.Popen[str]") -> str:
        output, _ = process.communicate(timeout=900)
        assert process.returncode == 0, output
        return output

    def leave(self, process: "subprocess.Popen[str]") -> None:
        """No longer follow a run."""
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()

    def server(self, name: str) -> Path:
        return self.folder / f"server-{name}"

    def config(self, name: str, cohort: int = 0) -> RunConfig:
        return RunConfig(
            name=name, method=self.app.method(cohort), n_clients=self.n_clients, dim=self.app.DIM, seed=1,
            batches=Batches(self.app.BATCH),
        )  # fmt: skip

    def ledger(self, name: str, cohort: int = 0) -> Ledger:
        checkpoints = CheckpointFolder(self.server(name) / "checkpoints")
        found = checkpoints.load(self.config(name, cohort), np.zeros(self.app.DIM))
        assert found is not None
        return found.ledger

    def control_variates(self, name: str, cohort: int = 0) -> Array:
        config, ledger = self.config(name, cohort), self.ledger(name, cohort)
        rows = []
        for client in range(self.n_clients):
            request, folder = train_request(config, ledger, client), self.state_dir(client)
            file = folder / f"{name}-{ledger.run}" / f"client-{client:05d}.state"
            stored = ClientStateFile(file, request, AuditLog(folder / "audit.jsonl")).load()
            assert stored is not None
            rows.append(reconcile(stored, request).client_state.xi[0, 0])
        return np.stack(rows)

    def simulated(self, rounds: int, cohort: int = 0) -> fs.Trace:
        problem = self.app.problem(self.n_clients)
        return fs.run(
            problem, self.app.method(cohort), rounds=rounds, batch_size=self.app.BATCH, seed=1, engine="reference"
        )

    def is_simulation(self, name: str, rounds: int, cohort: int = 0) -> None:
        simulated, ledger = self.simulated(rounds, cohort), self.ledger(name, cohort)
        assert ledger.round == rounds
        np.testing.assert_allclose(ledger.server.theta, simulated.theta, rtol=0, atol=1e-10)
        np.testing.assert_allclose(
            self.control_variates(name, cohort), simulated.control_variates[0], rtol=0, atol=1e-10
        )

    def wait_until(self, what: Callable[[], bool], seconds: float = 300.0) -> None:
        end = time.monotonic() + seconds
        while not what():
            assert time.monotonic() < end, "it did not happen in time"
            time.sleep(0.1)

    def rounds_of(self, name: str) -> int:
        return max(CheckpointFolder(self.server(name) / "checkpoints").rounds(), default=-1)


def test_two_nodes_give_the_simulations_numbers(tmp_path: Path) -> None:
    federation = Federation(tmp_path, 2)
    with federation.loopback:
        public = ";".join(str(path) for _, path in federation.loopback.keys)
        output = federation.run("small", 2, keys=public)
    federation.is_simulation("small", 2)
    assert run_status(federation.server("small")).state == "finished"
    assert "round 2 of 2: 2 clients counted" in output


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """Four nodes, for several runs."""
    federation = Federation(tmp_path_factory.mktemp("four"), 4)
    with federation.loopback:
        yield federation


@pytest.mark.slow
def test_four_nodes_twenty_rounds(four: Federation) -> None:
    four.run("twenty", 20)
    four.is_simulation("twenty", 20)


@pytest.mark.slow
def test_cohorts(four: Federation) -> None:
    four.run("cohorts", 8, cohort=2)
    four.is_simulation("cohorts", 8, cohort=2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "reason"), [("nan", "4 of its 4 numbers are NaN"), ("large", "its distance from θ is")]
)
def test_poison_is_refused_and_named(four: Federation, kind: str, reason: str) -> None:
    output = four.run(f"poison-{kind}", 5)
    assert output.count(f"client {four.app.POISONED}'s update is rejected: {reason}") == 5
    ledger = four.ledger(f"poison-{kind}")
    rest = four.app.problem(4).subset([0, 2, 3]).optimum()
    assert np.linalg.norm(ledger.server.theta[0] - rest) < 0.3 * np.linalg.norm(rest)


@pytest.mark.slow
def test_a_node_without_a_registered_key_is_refused(four: Federation) -> None:
    private, _ = make_key(four.loopback.folder, "stranger")
    name = four.loopback.start_node(0, key=private, name="stranger")
    four.wait_until(lambda: not four.loopback.is_running(name), 120.0)
    assert "Failed to activate SuperNode" in four.loopback.log(name)
    assert "SuperNode ID" not in four.loopback.log(name)
    online = four.loopback.flwr("supernode", "list", "loopback", "--format", "json")
    assert online.count('"status": "online"') == 4


@pytest.mark.slow
def test_a_node_without_tls_is_refused(four: Federation) -> None:
    loopback = four.loopback
    loopback.secure = False
    try:
        name = loopback.start_node(0, name="plain")
    finally:
        loopback.secure = True
    four.wait_until(lambda: loopback.log(name).count("Connection attempt failed") >= 3, 120.0)
    assert "SuperNode ID" not in loopback.log(name)
    online = loopback.flwr("supernode", "list", "loopback", "--format", "json")
    assert online.count('"status": "online"') == 4
    loopback.kill(name)


@pytest.mark.slow
def test_a_killed_server_goes_on(four: Federation) -> None:
    """SIGKILL to the server's process in the middle of a round; the next run has the undisturbed numbers."""
    first = four.start("server-killed", 8, pause=1.0)
    four.wait_until(lambda: four.rounds_of("server-killed") >= 3)
    pid = int((four.server("server-killed") / "pid").read_text())
    time.sleep(2.0)
    os.kill(pid, signal.SIGKILL)
    four.leave(first)
    assert 3 <= four.rounds_of("server-killed") < 8
    output = four.run("server-killed", 8)
    assert "continuing after round" in output
    four.is_simulation("server-killed", 8)


@pytest.mark.slow
def test_a_killed_node_comes_back(four: Federation) -> None:
    """SIGKILL to a SuperNode while its client works; Flower lets it in again when its heartbeats are missed."""
    rounds, victim = 24, 1
    run = four.start("node-killed", rounds, pause=1.0)
    four.wait_until(lambda: four.rounds_of("node-killed") >= 4)
    marker = four.state_dir(victim).parent / f"working-{victim}"
    marker.unlink(missing_ok=True)
    four.wait_until(marker.exists)
    node = f"node-{victim}"
    four.loopback.kill(node)
    killed_in = four.rounds_of("node-killed")
    while four.loopback.log(node).count("SuperNode ID") < 2:  # as a service manager would
        if not four.loopback.is_running(node):
            four.loopback.start_node(victim)
        time.sleep(3.0)
    output = four.finish(run)
    ledger = four.ledger("node-killed")
    xi, weights = four.control_variates("node-killed"), four.app.problem(4).weights
    assert np.abs(weights @ xi).max() < 1e-9
    assert f"client {victim} failed" in output
    assert ledger.last_counted[victim] > killed_in
    problem = four.app.problem(4)
    plateau = fs.run(
        problem, four.app.method(), rounds=rounds, batch_size=four.app.BATCH, seed=2, repetitions=2000
    ).mse[:, -1]
    error = float(np.sum((ledger.server.theta[0] - problem.optimum()) ** 2))
    print(f"killed in round {killed_in}; error {error:.3g}, plateau {plateau.mean():.3g}")
    assert error < np.quantile(plateau, 0.999)


@pytest.mark.slow
def test_a_killed_superlink_goes_on(tmp_path: Path) -> None:
    """SIGKILL to the SuperLink, and the server with it; started again it knows the keys, and nodes come back."""
    federation = Federation(tmp_path, 2)
    with federation.loopback as loopback:
        first = federation.start("link-killed", 6, pause=0.5)
        federation.wait_until(lambda: federation.rounds_of("link-killed") >= 2)
        pid = int((federation.server("link-killed") / "pid").read_text())
        loopback.kill("superlink")
        federation.leave(first)
        federation.wait_until(lambda: not Path(f"/proc/{pid}").exists(), 60.0)
        loopback.start_superlink()
        federation.run("link-killed", 6)
    federation.is_simulation("link-killed", 6)
