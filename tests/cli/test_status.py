"""`fedscaffold status`: what it prints and how it exits."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import fedscaffold as fs
from fedscaffold.cli.main import app
from fedscaffold.federation import ClientFailed, RoundRules, RunConfig, TooFewClients
from fedscaffold.federation.server.session import open_session

RUNNER = CliRunner()
CONFIG = RunConfig(name="pilot", method=fs.FedAvg(step_size=0.1, local_steps=1), n_clients=2, dim=1)


def run_until(folder: Path, how: str) -> None:
    """A server without clients, that has begun its run and then finishes, fails or is killed."""
    with open_session(folder, CONFIG, np.zeros(1), rules=RoundRules(), rounds=1) as session:
        session.begin(lambda: (np.full(2, 0.5), np.zeros(2, dtype=np.int64)))
        if how == "running":
            assert RUNNER.invoke(app, ["status", str(folder)]).exit_code == 3
        if how == "stopped":
            session.run_round(lambda requests: [ClientFailed(client=r.client, reason="gone") for r in requests])


def test_a_run_that_finished(tmp_path: Path) -> None:
    run_until(tmp_path, "running")
    done = RUNNER.invoke(app, ["status", str(tmp_path)])
    assert done.exit_code == 0
    assert "finished" in done.output
    found = json.loads(RUNNER.invoke(app, ["status", str(tmp_path), "--json"]).output)
    assert (found["name"], found["state"], found["round"]) == ("pilot", "finished", 0)


def test_a_run_that_failed_says_why(tmp_path: Path) -> None:
    with pytest.raises(TooFewClients):
        run_until(tmp_path, "stopped")
    done = RUNNER.invoke(app, ["status", str(tmp_path), "--json"])
    assert done.exit_code == 1
    found = json.loads(done.output)
    assert found["state"] == "stopped"
    assert "0 of 2 clients sent updates that count" in found["error"]


def test_a_server_that_was_killed(tmp_path: Path) -> None:
    run_until(tmp_path, "running")
    log = tmp_path / "audit.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(line for line in lines if "run-finished" not in line))
    done = RUNNER.invoke(app, ["status", str(tmp_path)])
    assert done.exit_code == 1
    assert "killed" in done.output


def test_folders_that_are_no_servers(tmp_path: Path) -> None:
    (tmp_path / "audit.jsonl").write_text('{"event": "run-started"}\nrubbish\n[1]\n')
    for folder in (tmp_path, tmp_path / "missing"):
        done = RUNNER.invoke(app, ["status", str(folder)])
        assert done.exit_code == 2
        assert "is not the folder of a server that has begun a run" in done.output
