"""`fedscaffold federate`: refusals before anything starts; the demonstration itself; no process left behind."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
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
    assert "kind must be" in refused(*tables, *target, "--kind", "probit")
    assert "tolerance" in refused(*tables, *target, "--set", "tolerance=near")
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
    words = ["federate", *map(str, tables), "--target", "diagnosis", "--out", str(out)]
    result = runner.invoke(app, words)
    assert result.exit_code == 0, result.output
    assert "SuperLink on 127.0.0.1" in result.output
    frame = cancer()
    here = Study(target="diagnosis").run(
        {str(name): part.drop(columns="hospital") for name, part in frame.groupby("hospital")}
    )
    found = pd.read_parquet(out / "coordinator" / "out" / "coefficients.parquet")
    expected = here.summary().to_frame()
    np.testing.assert_array_less(np.abs(found["coef"] - expected["coef"][found.index]) / found["se"], 1e-8)
    assert (out / "coordinator" / "out" / "report.html").exists()
    assert (out / "Bonn" / "site.html").exists()
    assert processes_in(out) == []


@pytest.mark.slow
@pytest.mark.parametrize("secure", [False, True])
def test_a_study_under_a_budget_of_real_processes(tables: list[Path], tmp_path: Path, secure: bool) -> None:
    """Every site pays for its steps in its own folder; only noisy models, masked if that was asked, leave it."""
    out, bounds = tmp_path / "out", tmp_path / "bounds.toml"
    bounds.write_text('"mean radius" = [5, 30]\n"mean texture" = [5, 40]\ndiagnosis = ["benign", "malignant"]\n')
    tables = tables[:3]
    words = ["federate", *map(str, tables), "--target", "diagnosis", "--epsilon", "8", "--bounds", str(bounds)]
    result = runner.invoke(app, [*words, *(["--secure"] if secure else []), "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert "differentially private for every row" in result.output
    made = out / "coordinator" / "out"
    plan = json.loads((made / "results.json").read_text())["privacy"]
    assert f"({plan['epsilon']:g}," in (made / "report.html").read_text()
    files = sorted(out.rglob("privacy-budget.json"))
    assert len(files) == len(tables)
    for file in files:
        steps = [part["steps"] for part in json.loads(file.read_text())["spent"]]
        assert steps == [plan["rounds"] * plan["local_steps"]]
        log = [json.loads(line) for line in (file.parent / "audit.jsonl").read_text().splitlines()]
        vectors = [entry["values"] for entry in log if entry.get("event") == "sent" and entry["vectors"]]
        assert all(("secure" in values) == secure for values in vectors)
    assert processes_in(out) == []


@pytest.mark.slow
@pytest.mark.parametrize("secure", [False, True])
def test_a_study_that_protects_sites_of_real_processes(tables: list[Path], tmp_path: Path, secure: bool) -> None:
    """Every site pays for a release a round; no number of rows leaves a site."""
    out, bounds = tmp_path / "out", tmp_path / "bounds.toml"
    bounds.write_text('"mean radius" = [5, 30]\n"mean texture" = [5, 40]\ndiagnosis = ["benign", "malignant"]\n')
    tables = tables[:3]
    words = ["federate", *map(str, tables), "--target", "diagnosis", "--epsilon", "8", "--bounds", str(bounds)]
    words += ["--set", "protect=sites", "--set", "delta=0.01", "--l2", "0.1", *(["--secure"] if secure else [])]
    result = runner.invoke(app, [*words, "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert "for every site's table as a whole" in " ".join(result.output.split())
    plan = json.loads((out / "coordinator" / "out" / "results.json").read_text())["privacy"]
    files = sorted(out.rglob("privacy-budget.json"))
    assert len(files) == len(tables)
    for file in files:
        assert [part["steps"] for part in json.loads(file.read_text())["spent"]] == [plan["rounds"]]
        log = [json.loads(line) for line in (file.parent / "audit.jsonl").read_text().splitlines()]
        greetings = [
            one["values"]["body"] for one in log if one.get("event") == "sent" and one["phase"] == "greet"
        ]
        assert greetings
        assert all(one["n_rows"] is None for one in greetings)
    assert processes_in(out) == []


@pytest.mark.slow
def test_a_table_that_cannot_be_used_is_named(tables: list[Path], tmp_path: Path) -> None:
    other = written(cancer().drop(columns=["diagnosis", "hospital"]), tmp_path / "other.csv")
    assert "site other: the table of site other has no column 'diagnosis'" in refused(
        tables[0], other, "--target", "diagnosis"
    )


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
        *map(str, tables[:2]),
        "--target",
        "diagnosis",
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
        assert "SuperLink on" in process.stdout.readline()
        time.sleep(15.0)
        assert len(processes_in(out)) >= 4
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
        def __init__(self, folder: Path, files: dict[str, Path], settings: StudySettings, tell: object) -> None:
            seen.append((folder, files, settings))
            raise InvalidInput("far enough")

    monkeypatch.setattr("fedscaffold.flower.study.local.LocalStudy", NoStudy)
    monkeypatch.chdir(tmp_path)
    written(cancer(), tmp_path / "all.csv")
    (tmp_path / "bounds.toml").write_text('"mean radius" = [5, 30]\ndiagnosis = ["benign", "malignant"]\n')
    words = ["all.csv", "--client", "hospital", "--target", "diagnosis", "--out", "demo"]
    assert "far enough" in refused(*words, "--epsilon", "2", "--secure", "--bounds", "bounds.toml")
    ((folder, files, settings),) = seen
    assert folder.is_absolute()
    assert all(file.is_absolute() and file.exists() for file in files.values())
    assert settings.epsilon == 2.0
    assert settings.secure
    assert settings.features == ("mean radius",)
    assert "--epsilon must be a positive number" in refused(*words, "--epsilon", "0", "--bounds", "bounds.toml")
    assert "clip must be a positive number" in refused(
        *words, "--epsilon", "1", "--set", "clip=0", "--bounds", "bounds.toml"
    )
    assert "--epsilon requires --bounds" in refused(*words, "--epsilon", "1")
    assert "--set protect=sites requires --l2" in refused(
        *words, "--epsilon", "1", "--set", "protect=sites", "--bounds", "bounds.toml"
    )
    assert "cannot be combined with --set trainer=..." in refused(
        *words, "--epsilon", "1", "--set", "trainer=newton"
    )
