"""`fedscaffold run`: what it prints, saves and refuses."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import fedscaffold as fs
from fedscaffold.cli.main import app
from fedscaffold.cli.options import print_table
from fedscaffold.core import npz as arrays

QUICK = ["run", "--clients", "4", "--rounds", "6", "--local-steps", "5"]
runner = CliRunner()


def test_it_runs_what_the_library_runs(tmp_path: Path) -> None:
    result = runner.invoke(app, [*QUICK, "--out", str(tmp_path / "trace.npz")])
    assert result.exit_code == 0, result.output
    saved = fs.Trace.load(tmp_path / "trace.npz")
    problem = fs.problems.paper("regression", n_clients=4)
    direct = fs.run(problem, fs.Scaffold(step_size=0.05, local_steps=5), rounds=6, batch_size=10)
    np.testing.assert_array_equal(saved.mse, direct.mse)
    assert f"{direct.mse[0, -1]:.4g}" in result.output


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_curves_as_a_table(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"trace.{suffix}"
    assert runner.invoke(app, [*QUICK, "--repetitions", "2", "--out", str(file)]).exit_code == 0
    frame = pd.read_csv(file) if suffix == "csv" else pd.read_parquet(file)
    assert len(frame) == 2 * 7
    assert list(frame["round"][:7]) == list(range(7))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--clients", "7"], "even"),
        (["--step-size", "-1"], "--step-size must be a positive number"),
        (["--problem", "foo"], "--problem must be one of 'regression', 'classification', 'ridge-stream'"),
        (["--method", "foo"], "one of scaffold, fedavg"),
        (["--batch-size", "some"], "a whole number or 'full'"),
        (["--rounds", "0"], "rounds must be a whole number of at least 1"),
        (["--engine", "gpu"], "--engine must be one of"),
        (["--engine", "native:dtype=float16"], "dtype must be one of"),
        (["--engine", "native:thread=2"], "give some of 'threads', 'dtype'"),
        (["--out", "missing/trace.npz"], "there is no folder missing"),
        (["--out", "trace.xls"], "must end in"),
        (["--checkpoint", "missing/run.npz"], "there is no folder missing"),
        (["--seed", "-1"], "seed must be"),
        (["--engine", "native:threads=0"], "threads must be"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(options: list[str], message: str) -> None:
    result = runner.invoke(app, [*QUICK, *options])
    assert result.exit_code == 2
    assert message in result.output
    assert result.output.count("\n") == 1
    assert "Traceback" not in result.output


def test_divergence_ends_with_1_and_a_safe_step_size() -> None:
    result = runner.invoke(app, [*QUICK, "--step-size", "5", "--local-steps", "100"])
    assert result.exit_code == 1
    assert "diverged in round" in result.output
    assert "is safe for this problem" in result.output


def test_ctrl_c_leaves_a_checkpoint_and_no_traceback(tmp_path: Path) -> None:
    checkpoint = tmp_path / "run.npz"
    options = ["--clients", "10", "--local-steps", "300", "--rounds", "20000", "--checkpoint", str(checkpoint)]
    program = [sys.executable, "-c", "from fedscaffold.cli.main import main; main()", "run", *options]
    process = subprocess.Popen(program, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    while process.poll() is None and not checkpoint.exists():
        time.sleep(0.02)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "interrupted; the same command resumes" in errors
    assert "Traceback" not in errors + output
    assert [file.name for file in tmp_path.iterdir()] == ["run.npz"]
    assert arrays.read(checkpoint)[1]["round"] >= 1000


def test_version_and_help() -> None:
    assert runner.invoke(app, ["--version"]).output.strip() == fs.__version__
    for command in ([], ["run"], ["reproduce"], ["reproduce", "figure1"]):
        result = runner.invoke(app, [*command, "--help"])
        assert result.exit_code == 0
        if command in (["run"], ["reproduce", "figure1"]):
            assert "Examples" in result.output


@pytest.mark.parametrize(
    ("method", "name", "gradients", "vectors"),
    [
        ("scaffold:participation=0.5", "Scaffold", 3.0, 3.0),
        ("fedavg:cohort=2", "FedAvg", 3.0, 3.0),
        ("two-sided:server_step_size=0.5", "TwoSidedScaffold", 6.0, 9.0),
        ("fedlin:correction_gradients=minibatch", "FedLin", 9.0, 12.0),
        ("proxskip:communication_probability=1", "ProxSkip", 3.0, 6.0),
    ],
)
def test_every_method(tmp_path: Path, method: str, name: str, gradients: float, vectors: float) -> None:
    out = tmp_path / "trace.npz"
    options = ["--clients", "4", "--rounds", "3", "--local-steps", "2", "--step-size", "0.01", "--out", str(out)]
    result = runner.invoke(app, ["run", "--method", method, *options])
    assert result.exit_code == 0, result.output
    trace = fs.Trace.load(out)
    assert trace.provenance["method"]["name"] == name
    assert (trace.gradients_per_client[0, -1], trace.vectors_per_client[-1]) == (gradients, vectors)


def test_a_method_of_ones_own_by_its_import_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first block of the tutorial, saved as it says."""
    page = Path(__file__).parents[2] / "docs" / "tutorials" / "add-a-method.md"
    code = page.read_text().split("```python\n")[1].split("```")[0]
    (tmp_path / "damped.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    words = ["run", "--clients", "4", "--local-steps", "5", "--rounds", "3", "--out", "t.npz", "--method"]
    result = runner.invoke(app, [*words, "damped.DampedScaffold:damping=1.0"])
    assert result.exit_code == 0, result.output
    problem = fs.problems.paper("regression", n_clients=4)
    wanted = fs.run(problem, fs.Scaffold(step_size=0.05, local_steps=5), rounds=3, batch_size=10)
    np.testing.assert_allclose(fs.Trace.load("t.npz").theta, wanted.theta, rtol=1e-12)
    for name, message in (
        ("damped.Missing", "no attribute"),
        ("nowhere.Thing", "No module"),
        ("damped.fs", "not a"),
    ):
        result = runner.invoke(app, [*words, name])
        assert result.exit_code == 2
        assert message in result.output


def test_a_field_that_the_problem_does_not_have_is_one_sentence() -> None:
    result = runner.invoke(app, ["run", "--problem", "ridge-stream:dims=3"])
    assert result.exit_code == 2
    assert (
        "--problem ridge-stream:dims=3: RidgeStream() got an unexpected keyword argument 'dims'" in result.output
    )
    assert "did you mean 'dim'?" in result.output


def test_a_problem_of_ones_own_need_not_take_a_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make = (
        "import fedscaffold as fs\ndef make(n_clients): return fs.problems.RidgeStream(n_clients=n_clients, dim=2)"
    )
    (tmp_path / "seedless_problem.py").write_text(make)
    monkeypatch.chdir(tmp_path)
    result = runner.invoke(app, ["run", "--problem", "seedless_problem.make", "--clients", "3", "--rounds", "2"])
    assert result.exit_code == 0, result.output
    assert "3 clients" in result.output


def test_a_title_stays_on_one_line_over_a_narrow_table(capsys: pytest.CaptureFixture[str]) -> None:
    print_table("A title that is longer than its table", [("a", "1")])
    assert capsys.readouterr().out.splitlines()[0].strip() == "A title that is longer than its table"
