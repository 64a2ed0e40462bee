"""`fedscaffold sweep` and `reproduce million`: what they print, write, keep and refuse."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from typer.testing import CliRunner

import fedscaffold as fs
from fedscaffold.cli.main import app
from fedscaffold.paper import million
from fedscaffold.problems import LogisticStream

QUICK = ["sweep", "--problem", "ridge-stream:dim=7,l2=0.1", "--rounds", "12"]
GRID = [
    "--clients",
    "2,4,6",
    "--step-size",
    "0.1,90",
    "--local-steps",
    "1,2",
    "--batch-size",
    "1,2",
    "--seeds",
    "2",
]
PROGRAM = [sys.executable, "-c", "from fedscaffold.cli.main import main; main()"]
runner = CliRunner()


def test_a_grid(tmp_path: Path) -> None:
    out, figure = tmp_path / "new" / "out", tmp_path / "figure.svg"
    command = [*QUICK, *GRID, "--predict", "--figure", str(figure), "--out", str(out)]
    result = runner.invoke(app, command)
    assert result.exit_code == 0, result.output
    file = out / "sweep.parquet"
    assert {path.name for path in out.iterdir()} == {file.name, f".{file.name}.lock"}
    frame = pd.read_parquet(file)
    assert len(frame) == 3 * 2 * 2 * 2
    assert (frame["outcome"] == "diverged").sum() == 12
    assert result.output.replace("\n", "").endswith(f"are in {file}")
    assert result.output.count("\n") == 1  # quiet
    assert "24 cells" in result.output
    assert "12 diverged" in result.output
    svg = figure.read_text()
    for text in ("ridge-stream", "Scaffold γ=0.1 H=2 B=1, predicted", "Scaffold γ=0.1 H=1 B=2, measured"):
        assert text in svg
    assert "γ=90" not in svg
    again = runner.invoke(app, command)
    assert again.output == result.output
    assert pd.read_parquet(file).equals(frame)


def test_settings_of_a_problem_and_several_methods(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    some = ["--method", "scaffold:local_steps=2", "--method", "fedavg:step_size=0.1,local_steps=3"]
    options = [
        "--problem",
        "logistic-stream:dim=7,signal=1.5",
        "--data-seed",
        "2",
        "--seed",
        "5",
        "--clients",
        "4",
    ]
    result = runner.invoke(app, [*QUICK, *options, *some, "--out", str(file)])
    assert result.exit_code == 0, result.output
    frame = pd.read_parquet(file)
    problem = LogisticStream(n_clients=4, dim=7, signal=1.5, seed=2)
    methods: list[Any] = [fs.Scaffold(step_size=0.05, local_steps=2), fs.FedAvg(step_size=0.1, local_steps=3)]
    for row, method in enumerate(methods):
        trace = fs.run(problem, method, rounds=12, batch_size=10, seed=5)
        assert frame["final_mse"][row] == trace.mse[0, -1]


@pytest.mark.slow
def test_a_live_table_on_a_terminal(tmp_path: Path) -> None:
    """In a terminal of its own."""
    ours, theirs = pty.openpty()
    command = [*QUICK, "--clients", "2,4", "--out", str(tmp_path)]
    process = subprocess.Popen(
        [*PROGRAM, *command], stdout=theirs, stderr=theirs, env={**os.environ, "COLUMNS": "120", "TERM": "xterm"}
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            more = os.read(ours, 4096)
        except OSError:  # the other end is closed
            break
        if not more:
            break
        shown += more
    os.close(ours)
    assert process.wait(timeout=60) == 0
    text = shown.decode()
    for part in ("plateau", "ns/step", "Scaffold", "2 cells"):
        assert part in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--problem", "foo"], "--problem must be one of 'regression'"),
        (["--problem", "ridge-stream:speed=1"], "no setting 'speed'"),
        (["--problem", "ridge-stream:dim"], "--problem 'ridge-stream:dim': after the colon"),
        (["--problem", "ridge-stream:spectrum=a"], "spectrum must be"),
        (["--problem", "regression", "--clients", "3"], "even"),
        (["--clients", "4,x"], "--clients must be whole numbers with commas"),
        (["--clients", "4,4"], "--clients must be different numbers"),
        (["--step-size", "0"], "--step-size must be a positive number"),
        (["--local-steps", "0"], "--local-steps must be at least 1"),
        (["--batch-size", "2,some"], "a whole number or 'full'"),
        (["--batch-size", "full"], "no full gradients"),
        (["--method", "foo"], "must begin with one of scaffold, fedavg"),
        (["--method", "fedavg", "--method", "fedavg"], "methods must be some, all different"),
        (["--rounds", "0"], "rounds must be"),
        (["--seeds", "0"], "seeds must be"),
        (["--start", "there"], "--start must be one of 'zero', 'optimum'"),
        (["--engine", "foo"], "--engine must be one of"),
        (["--shards", "2"], "--shards and --address are for --engine ray"),
        (["--engine", "reference", "--threads", "2"], "--threads is for --engine numba"),
        (["--engine", "ray", "--shards", "0"], "shards must be"),
        (["--figure", "a.doc"], "--figure must end in"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(options: list[str], message: str, tmp_path: Path) -> None:
    result = runner.invoke(app, [*QUICK, "--out", str(tmp_path / "out"), *options])
    assert result.exit_code == 2, result.output
    assert message in result.output
    assert result.output.count("\n") == 1
    assert not (tmp_path / "out" / "sweep.parquet").exists()


def test_a_table_of_another_sweep_is_refused(tmp_path: Path) -> None:
    command = [*QUICK, "--clients", "2", "--out", str(tmp_path)]
    assert runner.invoke(app, command).exit_code == 0
    result = runner.invoke(app, [*command, "--seed", "1"])
    assert result.exit_code == 2
    assert "belongs to another sweep: seed differ" in result.output


@pytest.mark.slow
def test_ctrl_c_keeps_finished_cells(tmp_path: Path) -> None:
    steps = ",".join(str(100_000 + k) for k in range(100))
    command = [*QUICK, "--clients", "2", "--local-steps", steps, "--out", str(tmp_path)]
    process = subprocess.Popen([*PROGRAM, *command], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    file = tmp_path / "sweep.parquet"
    while process.poll() is None and not file.exists():
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 130, errors
    assert "interrupted; the same command resumes" in errors
    assert "Traceback" not in errors + output
    assert 0 < len(pd.read_parquet(file)) < 100


def test_a_small_million(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(million, "ROUNDS", 12)
    monkeypatch.setattr(million, "MODELS", 8)
    command = ["reproduce", "million", "--clients", "2,4,8", "--out", str(tmp_path / "m")]
    result = runner.invoke(app, command)
    assert result.exit_code in (0, 1), result.output  # so few clients and rounds need not show it
    names = {file.name for file in (tmp_path / "m").iterdir()}
    tables = {"ridge-stream.parquet", "logistic-stream.parquet"}
    locks = {f".{name}.lock" for name in tables}
    assert names == {"million.png", "million.svg", "claims.json", *tables, *locks}
    frame = pd.read_parquet(tmp_path / "m" / "logistic-stream.parquet")
    assert list(frame["seeds"]) == [4, 2, 1]
    assert frame["predicted"].notna().all()
    found = json.loads((tmp_path / "m" / "claims.json").read_text())["claims"]
    assert len(found) == 5
    assert result.exit_code == any(claim["holds"] is False for claim in found)
    again = runner.invoke(app, command)
    assert again.output == result.output


def test_a_million_needs_three_numbers() -> None:
    result = runner.invoke(app, ["reproduce", "million", "--clients", "2,4"])
    assert result.exit_code == 2
    assert "3 or more different numbers" in result.output


@pytest.mark.parametrize("command", [["sweep"], ["reproduce", "million"]])
def test_help_has_examples(command: list[str]) -> None:
    result = runner.invoke(app, [*command, "--help"])
    assert result.exit_code == 0
    assert "Examples" in result.output
