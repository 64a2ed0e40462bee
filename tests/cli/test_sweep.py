"""`fedscaffold sweep` and `reproduce million`: what they print, write, keep and refuse."""

import json
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
    "--repetitions",
    "2",
]
PROGRAM = [sys.executable, "-c", "from fedscaffold.cli.main import main; main()"]
runner = CliRunner()


def test_a_grid(tmp_path: Path) -> None:
    out, figure = tmp_path / "new" / "out", tmp_path / "figure.svg"
    command = [*QUICK, *GRID, "--predict", "--plot", str(figure), "--out", str(out)]
    result = runner.invoke(app, command)
    assert result.exit_code == 0, result.output
    assert {path.name for path in out.iterdir()} == {"sweep.parquet", "cells"}
    frame = pd.read_parquet(out / "sweep.parquet")
    assert len(frame) == 3 * 2 * 2 * 2
    assert (frame["outcome"] == "diverged").sum() == 12
    assert result.output.replace("\n", "").endswith(f"are in {out}")
    assert result.output.count("diverged") == 12
    svg = figure.read_text()
    for text in ("ridge-stream", "H=2 B=1", "H=1 B=2", "predicted"):
        assert text in svg
    assert "γ=90" not in svg
    again = runner.invoke(app, command)
    assert again.output == result.output
    assert pd.read_parquet(out / "sweep.parquet").equals(frame)


def test_settings_of_a_problem_and_several_methods(tmp_path: Path) -> None:
    some = ["--method", "scaffold:local_steps=2", "--method", "fedavg:step_size=0.1,local_steps=3"]
    options = ["--problem", "logistic-stream:dim=7,signal=1.5,seed=2", "--seed", "5", "--clients", "4"]
    result = runner.invoke(app, [*QUICK, *options, *some, "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    frame = pd.read_parquet(tmp_path / "sweep.parquet")
    problem = LogisticStream(n_clients=4, dim=7, signal=1.5, seed=2)
    methods: list[Any] = [fs.Scaffold(step_size=0.05, local_steps=2), fs.FedAvg(step_size=0.1, local_steps=3)]
    for row, method in enumerate(methods):
        trace = fs.run(problem, method, rounds=12, batch_size=10, seed=5)
        assert frame["final_mse"][row] == trace.mse[0, -1]


def test_a_function_of_yours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_problem.py").write_text(
        "import fedscaffold as fs\n\n\ndef make(n_clients, l2=0.1):\n"
        "    return fs.problems.RidgeStream(n_clients=n_clients, dim=7, l2=l2)\n"
    )
    monkeypatch.chdir(tmp_path)
    command = ["sweep", "--problem", "own_problem.make:l2=0.2", "--clients", "2,3", "--rounds", "4"]
    result = runner.invoke(app, [*command, "--engine", "native:threads=1"])
    assert result.exit_code == 0, result.output
    assert result.output.startswith("n_clients")
    assert not list(tmp_path.glob("*/sweep.parquet"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--problem", "foo"], "--problem must be one of 'regression'"),
        (["--problem", "ridge-stream:speed=1"], "unknown name 'speed' in the grid"),
        (["--problem", "nowhere.make"], "nowhere.make cannot be imported"),
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
        (["--rounds", "0"], "rounds must be"),
        (["--repetitions", "0"], "repetitions must be"),
        (["--engine", "foo"], "--engine must be one of"),
        (["--engine", "native:shards=2"], "after the colon, give some of 'threads'"),
        (["--engine", "ray:shards=0"], "shards must be"),
        (["--plot", "a.doc"], "--plot must end in"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(options: list[str], message: str, tmp_path: Path) -> None:
    result = runner.invoke(app, [*QUICK, "--out", str(tmp_path / "out"), *options])
    assert result.exit_code == 2, result.output
    assert message in result.output
    assert result.output.count("\n") == 1
    assert not (tmp_path / "out" / "sweep.parquet").exists()


@pytest.mark.slow
def test_ctrl_c_keeps_finished_cells(tmp_path: Path) -> None:
    steps = ",".join(str(100_000 + k) for k in range(100))
    command = [*QUICK, "--clients", "2", "--local-steps", steps, "--out", str(tmp_path)]
    process = subprocess.Popen([*PROGRAM, *command], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    cells = tmp_path / "cells"
    while process.poll() is None and not list(cells.glob("cell-*.npz")):
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 130, errors
    assert "interrupted; the same command resumes" in errors
    assert "Traceback" not in errors + output
    assert 0 < len(list(cells.iterdir())) < 100


def test_a_small_million(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(million, "ROUNDS", 12)
    monkeypatch.setattr(million, "MODELS", 8)
    command = ["reproduce", "million", "--clients", "2,4,8", "--out", str(tmp_path / "m")]
    result = runner.invoke(app, command)
    assert result.exit_code in (0, 1), result.output  # so few clients and rounds need not show it
    names = {file.name for file in (tmp_path / "m").iterdir()}
    assert names == {"million.png", "million.svg", "claims.json", "ridge-stream", "logistic-stream"}
    frame = pd.read_parquet(tmp_path / "m" / "logistic-stream" / "sweep.parquet")
    assert list(frame["repetitions"]) == [4, 2, 1]
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
