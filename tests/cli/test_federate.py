"""`fedscaffold federate`: refusals before anything starts; the demonstration itself; no process left behind."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fedscaffold.cli.main import app
from fedscaffold.core.errors import InvalidInput
from fedscaffold.federation import Study, StudySettings
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
    assert "two sites or more" in refused(tables[0], *target)
    assert "--client splits one file" in refused(*tables, *target, "--client", "ward")
    assert "cannot read" in refused(tables[0], tmp_path / "none.csv", *target)
    assert "did you mean 'hospital'" in refused(whole, *target, "--client", "hospita")
    wrong = refused(*tables, *target, "--kind", "probit", "--l2", "-1")
    assert "'ridge', 'logistic', 'poisson', 'gamma' or 'cox'" in wrong
    assert "l2" in wrong
    assert "tolerance" in refused(*tables, *target, "--tolerance", "near")
    assert "secure sums need three sites" in refused(*tables[:2], *target)
    assert "target is required" in refused(*tables)
    assert "exists and is not empty" in refused(*tables, *target, "--out", tmp_path)
    (tmp_path / "more").mkdir()
    twin = written(cancer(), tmp_path / "more" / tables[0].name)
    assert "different names" in refused(tables[0], twin, *target)
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["more"]


def test_too_many_sites(tmp_path: Path) -> None:
    frame = cancer().head(40)
    frame["patient"] = np.arange(40)
    table = written(frame, tmp_path / "all.csv")
    assert "2 to 16 sites on one machine, here are 40" in refused(
        table, "--target", "diagnosis", "--client", "patient"
    )


@pytest.mark.slow
def test_the_study_gives_the_model_of_one_process(tables: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ["federate", *map(str, tables), "--target", "diagnosis", "--l2", "auto", "--out", str(out)]
    result = runner.invoke(app, words)
    assert result.exit_code == 0, result.output
    assert "listening on 127.0.0.1" in result.output
    frame = cancer()
    here = Study(target="diagnosis", l2="auto").run(
        {str(name): part.drop(columns="hospital") for name, part in frame.groupby("hospital")}
    )
    found = json.loads((out / "coordinator" / "out" / "for-sites.json").read_text())
    np.testing.assert_array_equal(found["theta"], here.theta.ravel())
    assert (out / "sites" / "Bonn" / "site" / "site.html").exists()
    assert processes_in(out) == []


@pytest.mark.slow
def test_a_table_that_cannot_be_used_is_named(tables: list[Path], tmp_path: Path) -> None:
    other = written(cancer().drop(columns=["diagnosis", "hospital"]), tmp_path / "other.csv")
    shown = refused(*tables[:2], other, "--target", "diagnosis")
    assert "site other: " in shown
    assert "no column 'diagnosis'" in shown


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
    words = [
        "federate",
        *map(str, tables[:3]),
        "--target",
        "diagnosis",
        "--l2",
        "auto",
        "--set",
        "trainer=scaffold",
        "--out",
        str(out),
    ]
    code = "from fedscaffold.cli.main import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    assert process.stdout is not None
    try:
        assert "listening on" in process.stdout.readline()
        assert len(processes_in(out)) == 4
    finally:
        process.send_signal(number)
        output, _ = process.communicate(timeout=120)
    assert process.returncode == 130, output
    assert "all processes were ended" in output
    time.sleep(2.0)
    assert processes_in(out) == []


def test_a_relative_folder_and_a_budget_reach_the_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sites are processes in folders of their own, for which a relative path would be another one."""
    seen: list[tuple[Path, dict[str, Path], StudySettings]] = []

    class NoStudy:
        def __init__(self, folder: Path, files: dict[str, Path], settings: StudySettings, say: object) -> None:
            seen.append((folder, files, settings))
            raise InvalidInput("far enough")

    monkeypatch.setattr("fedscaffold.flower.study.run.LocalStudy", NoStudy)
    monkeypatch.chdir(tmp_path)
    written(cancer(), tmp_path / "all.csv")
    words = [
        "all.csv",
        "--client",
        "hospital",
        "--target",
        "diagnosis",
        "--out",
        "demo",
        "--features",
        "mean radius",
    ]
    budget = ["--epsilon", "2", "--set", "delta=0.001", "--l2", "0.1"]
    columns = "columns={'mean radius' = {range = [5, 30]}, diagnosis = {levels = ['benign', 'malignant']}}"
    assert "far enough" in refused(*words, *budget, "--set", columns)
    ((folder, files, settings),) = seen
    assert folder.is_absolute()
    assert all(file.is_absolute() and file.exists() for file in files.values())
    assert settings.epsilon == 2.0
    assert settings.sums == "secure"
    assert settings.features == ("mean radius",)
    assert settings.columns["mean radius"].range == (5.0, 30.0)
    assert "epsilon" in refused(*words, "--epsilon", "0")
    assert "clip" in refused(*words, "--epsilon", "1", "--set", "clip=0")
