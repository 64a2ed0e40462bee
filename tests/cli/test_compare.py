"""`fedscaffold compare`: what it prints, writes, keeps and refuses."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from typer.testing import CliRunner

import fedscaffold as fs
from fedscaffold.cli.main import app
from fedscaffold.cli.options import candidates_of
from fedscaffold.core.random.stream import Batches
from tests.hospitals import cancer, written

QUICK = ["compare", "--clients", "4", "--repetitions", "2", "--step-size", "0.4,0.1", "--local-steps", "1,8"]
PAIR = ["--method", "scaffold", "--method", "proxskip"]
runner = CliRunner()


def test_costs_to_reach_a_target(tmp_path: Path) -> None:
    out, plot = tmp_path / "new" / "out", tmp_path / "curves.png"
    command = [*QUICK, *PAIR, "--reach", "1,0.3", "--rounds", "60", "--plot", str(plot), "--out", str(out)]
    result = runner.invoke(app, command)
    assert result.exit_code == 0, result.output
    assert {file.name for file in out.iterdir()} == {"curves.parquet", "comparison.json", "cells"}
    assert len(list((out / "cells").iterdir())) == 8
    assert plot.read_bytes().startswith(b"\x89PNG")
    found = json.loads((out / "comparison.json").read_text())
    assert found["settings"]["step_size"] == [0.4, 0.1]
    assert len(found["costs"]) == 2 * 2 * 2  # methods, targets, rounds or gradients
    for row in found["costs"]:
        assert f"{row['target']:g}" in result.output
        if row["rounds"] is not None:
            assert row["method"]["step_size"] in (0.4, 0.1)
    curves = pd.read_parquet(out / "curves.parquet")
    assert set(curves["method"]) == {"scaffold", "proxskip"}
    again = runner.invoke(app, [word.replace("--reach", "--squared-error") for word in command])
    assert again.output == result.output


def test_an_equal_budget() -> None:
    fixed = ["--method", "scaffold:local_steps=8,step_size=0.1", "--method", "fedavg:participation=0.5"]
    result = runner.invoke(app, [*QUICK, *fixed, "--gradients", "160"])
    assert result.exit_code == 0, result.output
    problem = fs.problems.paper("classification", n_clients=4)
    method = fs.Scaffold(step_size=0.1, local_steps=8)
    trace = fs.run(problem, method, rounds=20, batch_size=10, repetitions=2, progress=False)
    assert f"{trace.mse[:, -1].mean():.3g}" in result.output
    assert "γ=0.1 H=8" in result.output


def test_methods_are_compared_by_loss() -> None:
    fixed = ["--method", "scaffold:local_steps=8,step_size=0.1", "--rounds", "20", "--record", "loss"]
    result = runner.invoke(app, [*QUICK, *fixed, "--batch-size", "auto"])
    assert result.exit_code == 0, result.output
    problem = fs.problems.paper("classification", n_clients=4)
    trace = fs.run(problem, fs.Scaffold(step_size=0.1, local_steps=8), rounds=20, record=("loss",))
    assert f"{trace.loss[0, -1]:.3g}" in result.output


def test_smaller_problems_are_parts_of_the_largest(tmp_path: Path) -> None:
    out, method = tmp_path / "out", fs.Scaffold(step_size=0.1, local_steps=4)
    fixed = [
        "--method",
        "scaffold:local_steps=4,step_size=0.1",
        "--clients",
        "10,4",
        "--rounds",
        "3",
        "--seed",
        "1",
    ]
    result = runner.invoke(app, ["compare", *fixed, "--repetitions", "1", "--l2", "0.1", "--out", str(out)])
    assert result.exit_code == 0, result.output
    whole = fs.problems.paper("classification", n_clients=10, l2=0.1, seed=1)
    curves = pd.read_parquet(out / "curves.parquet")
    for problem in (whole, whole.subset([0, 3, 6, 9])):
        trace = fs.run(problem, method, rounds=3, batch_size=10, seed=1, progress=False)
        found = curves[curves["n_clients"] == problem.n_clients]["mse"]
        assert found.tolist() == trace.mse[0].tolist()


def test_candidates() -> None:
    grid: dict[str, Any] = {"step_sizes": [0.1, 0.2], "local_steps": [1, 4]}
    assert candidates_of("fedavg", **grid) == [
        fs.FedAvg(step_size=g, local_steps=h) for h in (1, 4) for g in (0.1, 0.2)
    ]
    assert candidates_of("proxskip:step_size=1", **grid) == [
        fs.ProxSkip(step_size=1, communication_probability=p) for p in (1.0, 0.25)
    ]
    assert candidates_of("two-sided:local_steps=3,cohort=2", **grid) == [
        fs.TwoSidedScaffold(step_size=g, local_steps=3, server_step_size=1.0, cohort=2) for g in (0.1, 0.2)
    ]
    (only,) = candidates_of("fedlin:step_size=0.5,local_steps=2,correction_gradients=minibatch", **grid)
    assert only == fs.FedLin(step_size=0.5, local_steps=2, correction_gradients="minibatch")


def test_constants_of_the_problem_are_taken_where_none_are_given() -> None:
    asked: list[str] = []

    def of(name: str, value: float) -> Callable[[], float]:
        def compute() -> float:
            asked.append(name)
            return value

        return compute

    constants = {"smoothness": of("smoothness", 3.0), "strong_convexity": of("strong_convexity", 0.5)}
    grid: dict[str, Any] = {"step_sizes": [0.1], "local_steps": [4], "constants": constants}
    assert candidates_of("fedavg", **grid) == [fs.FedAvg(step_size=0.1, local_steps=4)]
    assert asked == []
    assert candidates_of("apda:smoothness=7", **grid) == [
        fs.Apda(step_size=0.1, local_steps=4, smoothness=7, strong_convexity=0.5)
    ]
    assert asked == ["strong_convexity"]


def test_apda_is_compared_with_the_constants_of_the_problem() -> None:
    chosen = ["--method", "apda:local_steps=2,step_size=0.05", "--rounds", "3"]
    result = runner.invoke(app, [*QUICK, *chosen])
    assert result.exit_code == 0, result.output
    problem = fs.problems.paper("classification", n_clients=4)
    method = fs.Apda(
        step_size=0.05,
        local_steps=2,
        smoothness=problem.smoothness(Batches()),
        strong_convexity=problem.strong_convexity(),
    )
    trace = fs.run(problem, method, rounds=3, batch_size=10, repetitions=2, progress=False)
    assert f"{trace.mse[:, -1].mean():.3g}" in result.output
    result = runner.invoke(app, [*QUICK, *chosen, "--l2", "0"])
    assert result.exit_code == 2, result.output
    assert "not strongly convex" in result.output
    assert result.output.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "give different methods"),
        (["--method", "fedavg", "--method", "fedavg"], "give different methods"),
        (["--method", "foo"], "must begin with one of scaffold, fedavg"),
        (["--method", "scaffold:speed=3"], "give some of 'step_size'"),
        (["--method", "scaffold:local_steps"], "give some of 'step_size'"),
        (["--method", "scaffold:local_steps=2.5"], "--local-steps must be a whole number"),
        (["--method", "scaffold:participation=2"], "participation is a share"),
        (["--method", "fedlin:correction_gradients=none"], "correction_gradients must be one of"),
        ([*PAIR, "--step-size", "0.1,0"], "--step-size must be a positive number"),
        ([*PAIR, "--step-size", "a"], "--step-size must be numbers with commas"),
        ([*PAIR, "--local-steps", "1,1"], "--local-steps must be different numbers"),
        ([*PAIR, "--local-steps", "0"], "--local-steps must be at least 1"),
        ([*PAIR, "--clients", "5"], "even"),
        ([*PAIR, "--clients", "4,x"], "--clients must be whole numbers with commas"),
        ([*PAIR, "--reach", "-1"], "target must be a positive number"),
        ([*PAIR, "--reach", "nan"], "targets must be finite"),
        ([*PAIR, "--record", "speed"], "unknown observer 'speed'"),
        ([*PAIR, "--rounds", "0"], "rounds must be"),
        ([*PAIR, "--gradients", "0"], "gradients must be"),
        ([*PAIR, "--repetitions", "0"], "repetitions must be"),
        ([*PAIR, "--problem", "foo"], "--problem must be one of 'regression', 'classification'"),
        ([*PAIR, "--batch-size", "some"], "a whole number or 'full'"),
        ([*PAIR, "--plot", "a.doc"], "--plot must end in"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(options: list[str], message: str) -> None:
    result = runner.invoke(app, [*QUICK, *options])
    assert result.exit_code == 2, result.output
    assert message in result.output
    assert result.output.count("\n") == 1


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = runner.invoke(app, [*QUICK, *PAIR, "--out", str(tmp_path / "file" / "sub")])
    assert result.exit_code == 2
    assert "cannot make a folder" in result.output


def test_a_target_out_of_reach_is_said() -> None:
    result = runner.invoke(app, [*QUICK, "--method", "fedavg", "--reach", "1e-9", "--rounds", "3"])
    assert result.exit_code == 0, result.output
    assert "not in the budget" in result.output


def test_ctrl_c_keeps_finished_candidates(tmp_path: Path) -> None:
    options = ["--clients", "20", "--method", "scaffold", "--rounds", "20", "--gradients", "1000"]
    command = ["compare", *options, "--out", str(tmp_path), "--local-steps", ",".join(map(str, range(10, 50)))]
    program = [sys.executable, "-c", "from fedscaffold.cli.main import main; main()", *command]
    process = subprocess.Popen(program, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    cells = tmp_path / "cells"
    while process.poll() is None and not (cells.is_dir() and list(cells.glob("scaffold-*.npz"))):
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 130, errors
    assert "interrupted; the same command resumes" in errors
    assert "Traceback" not in errors + output
    assert len(list(cells.iterdir())) == len(list(cells.glob("scaffold-20-*.npz"))) > 0


def test_help_has_examples() -> None:
    result = runner.invoke(app, ["compare", "--help"])
    assert result.exit_code == 0
    assert "Examples" in result.output


def test_a_table_is_compared_with_bits_and_newton(tmp_path: Path) -> None:
    table = written(cancer(), tmp_path / "t.csv")
    result = runner.invoke(
        app,
        [
            "compare", str(table), "--target", "diagnosis", "--client", "hospital", "--set", "features=mean area",
            "--reach", "0.01", "--method", "scaffold", "--method", "fednewton", "--batch-size", "full",
            "--step-size", "1", "--local-steps", "16", "--repetitions", "1", "--rounds", "100",
            "--out", str(tmp_path / "out"),
        ],
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    rows = json.loads((tmp_path / "out" / "comparison.json").read_text())["costs"]
    scaffold, newton = (next(row for row in rows if row["name"] == name) for name in ("scaffold", "fednewton"))
    assert scaffold["bits"] == scaffold["rounds"] * 2 * 64 * 2  # θ down and up, a slope and an intercept
    assert newton["bits"] == newton["rounds"] * 64 * (3 + 2 + 1 + 2)
    assert newton["rounds"] < scaffold["rounds"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["t.csv", *PAIR], "a table needs --target and --client"),
        (["t.csv", *PAIR, "--clients", "4"], "--clients is for the paper's problems"),
        ([*PAIR, "--set", "features=age"], "--set is for a table, and none is given"),
    ],
)
def test_options_of_the_other_kind_of_problem_are_refused(options: list[str], words: str) -> None:
    result = runner.invoke(app, ["compare", *options])
    assert result.exit_code == 2
    assert words in result.output.replace("\n", " ")
