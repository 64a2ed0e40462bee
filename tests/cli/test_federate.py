"""`fedscaffold federate`: refusals before anything starts; the demonstration itself; no process left behind."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from fedscaffold import Model
from fedscaffold.cli.main import app
from fedscaffold.models.planning.planned import PlannedFit
from fedscaffold.simulation.run import run
from tests.hospitals import cancer, written

runner = CliRunner(env={"COLUMNS": "200"})


@pytest.fixture
def tables(tmp_path: Path) -> list[Path]:
    frame = cancer()
    return [
        written(part.drop(columns="hospital"), tmp_path / f"{name}.{suffix}")
        for suffix, (name, part) in zip(["csv", "parquet", "csv", "csv"], frame.groupby("hospital"), strict=True)
    ]


def refused(*words: object) -> str:
    result = runner.invoke(app, ["federate", *(str(word) for word in words)])
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    return result.output


def test_refusals(tables: list[Path], tmp_path: Path) -> None:
    target = ["--target", "diagnosis"]
    whole = written(cancer(), tmp_path / "all.csv")
    assert "two nodes or more" in refused(tables[0], *target)
    assert "--client splits one file" in refused(*tables, *target, "--client", "ward")
    assert "cannot read" in refused(tables[0], tmp_path / "none.csv", *target)
    assert "did you mean 'hospital'" in refused(whole, *target, "--client", "hospita")
    assert "no column 'diagnose'" in refused(*tables, "--target", "diagnose")
    assert "--rounds must be" in refused(*tables, *target, "--rounds", "0")
    assert "--step-size must be" in refused(*tables, *target, "--step-size", "0")
    assert "exists and is not empty" in refused(*tables, *target, "--out", tmp_path)
    (tmp_path / "more").mkdir()
    twin = written(cancer(), tmp_path / "more" / tables[0].name)
    assert "different names" in refused(tables[0], twin, *target)
    other = written(cancer().drop(columns=["ward", "hospital"]), tmp_path / "other.csv")
    assert "all tables must have the same columns" in refused(tables[0], other, *target)
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["more"]


def test_too_many_nodes(tmp_path: Path) -> None:
    frame = cancer().head(40)
    frame["patient"] = np.arange(40)
    table = written(frame, tmp_path / "all.csv")
    assert "for 2 to 16 nodes on one machine, here are 40" in refused(
        table, "--target", "diagnosis", "--client", "patient"
    )


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulation in place of Flower's processes."""

    def simulated(demo: Any, task: PlannedFit, files: list[Path], console: Any) -> tuple[float, Any]:
        trace = run(task.problem, task.method, rounds=task.rounds, batch_size=task.batch_size, progress=False)
        return 1.0, trace.theta[0]

    monkeypatch.setattr("fedscaffold.cli.commands.federate._federate", simulated)


def test_too_few_rounds_are_warned_of(tables: list[Path], in_process: None) -> None:
    words = ["federate", *map(str, tables), "--target", "diagnosis"]
    short = runner.invoke(app, [*words, "--rounds", "2"])
    assert short.exit_code == 0, short.output
    told = re.search(
        r"warning: after 2 rounds .* % from the pooled model's, .*; take --rounds (\d+)", short.output
    )
    assert told, short.output
    longer = runner.invoke(app, [*words, "--rounds", told[1]])
    assert "warning" not in longer.output
    planned = runner.invoke(app, words)  # without --rounds, as many as planned
    assert planned.exit_code == 0, planned.output
    assert f"4 nodes, {told[1]} rounds" in planned.output
    assert "warning" not in planned.output


@pytest.mark.slow
def test_the_federation_gives_the_simulations_model(tables: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ["federate", *map(str, tables), "--target", "diagnosis", "--rounds", "3", "--out", str(out)]
    result = runner.invoke(app, words)
    assert result.exit_code == 0, result.output
    assert "Federation and simulation give the same model." in result.output
    assert "4 SuperNodes with registered keys" in result.output
    accuracy = np.mean(Model.load(out / "model.json").predict(cancer()) == cancer().diagnosis)
    assert accuracy > 0.88
    assert processes_in(out) == []


def processes_in(folder: Path) -> list[str]:
    """Command lines of processes that know the folder."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = file.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in words and int(file.parent.name) != os.getpid():
            found.append(words)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_no_process(tables: list[Path], tmp_path: Path, number: int) -> None:
    out = tmp_path / "out"
    words = ["federate", *map(str, tables[:2]), "--target", "diagnosis", "--rounds", "50", "--out", str(out)]
    code = "from fedscaffold.cli.main import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    assert process.stdout is not None
    try:
        assert "SuperLink on" in process.stdout.readline()
        time.sleep(15.0)
        assert len(processes_in(out)) >= 5
    finally:
        process.send_signal(number)
        output, _ = process.communicate(timeout=120)
    assert process.returncode == 130, output
    assert "all processes were ended" in output
    time.sleep(2.0)
    assert processes_in(out) == []
