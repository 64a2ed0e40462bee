"""`fedscaffold fit`, `score`, `inspect`, and `plan` on a table."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from html import unescape
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from fedscaffold import Model, Trace
from fedscaffold.cli.main import app
from fedscaffold.data.encoding import Number
from tests.hospitals import cancer, diabetes, wine, written

runner = CliRunner(env={"COLUMNS": "80"})
HERE = ["--client", "hospital"]


def invoke(*words: object) -> str:
    result = runner.invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return result.output


def refused(*words: object) -> str:
    result = runner.invoke(app, [str(word) for word in words])
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    return result.output


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_fit_and_score(suffix: str, tmp_path: Path) -> None:
    frame = cancer()
    old, new = frame.iloc[::2], frame.iloc[1::2]
    table, test = written(old, tmp_path / f"old{suffix}"), written(new, tmp_path / f"new{suffix}")
    out, predictions = tmp_path / "model", tmp_path / f"predictions{suffix}"
    printed = invoke("fit", table, "--target", "diagnosis", *HERE, "--test", test, "--out", out)
    assert "logistic, since diagnosis has 2 classes" in printed
    assert all(len(line) <= 80 for line in printed.splitlines() if line[:1] in "┏┃┡│└┌")
    assert sorted(file.name for file in out.iterdir()) == ["model.json", "report.html", "trace.npz"]
    trace, model = Trace.load(out / "trace.npz"), Model.load(out / "model.json")
    assert trace.rounds == model.provenance["rounds"]

    printed = invoke("score", out / "model.json", test, "--out", predictions)
    found = pd.read_parquet(predictions) if suffix == ".parquet" else pd.read_csv(predictions)
    assert list(found.columns) == ["prediction", "probability of benign", "probability of malignant"]
    assert (found.prediction == model.predict(new)).all()
    np.testing.assert_allclose(found.iloc[:, 1:], model.predict_proba(new), atol=1e-12)
    accuracy = float((found.prediction.to_numpy() == new.diagnosis.to_numpy()).mean())
    assert accuracy > 0.88
    assert f"{accuracy:.4g}" in printed
    assert f"{accuracy:.4g}" in (out / "report.html").read_text()


def test_a_number_and_many_classes(tmp_path: Path) -> None:
    printed = invoke(
        "fit", written(diabetes(), tmp_path / "d.csv"), "--target", "target", *HERE, "--out", tmp_path / "d"
    )
    assert "ridge, since target is a number" in printed
    assert "within the tolerance" in printed
    printed = invoke("score", tmp_path / "d" / "model.json", tmp_path / "d.csv")
    assert "rmse" in printed
    assert "first rows" in printed
    printed = invoke(
        "fit", written(wine(), tmp_path / "w.csv"), "--target", "target", *HERE, "--out", tmp_path / "w"
    )
    assert "3 classes" in printed
    assert "within the tolerance" in printed
    assert len(Model.load(tmp_path / "w" / "model.json").equations) == 3


def test_new_rows_need_neither_target_nor_client(tmp_path: Path) -> None:
    table = written(cancer(), tmp_path / "c.csv")
    invoke("fit", table, "--target", "diagnosis", *HERE, "--set", "rounds=2", "--out", tmp_path / "m")
    bare = cancer().drop(columns=["diagnosis", "hospital"]).assign(ward="attic")
    model, new = tmp_path / "m" / "model.json", written(bare, tmp_path / "n.csv")
    assert "'attic' in row 0" in refused("score", model, new)
    printed = invoke("score", model, new, "--unknown", "ignore")
    assert "569 predictions" in printed
    assert "accuracy" not in printed


def test_the_command_in_the_report_makes_the_same_model(tmp_path: Path) -> None:
    table = written(cancer(), tmp_path / "a table.csv")
    words = [
        "--target",
        "diagnosis",
        *HERE,
        "--set",
        "batch_size=16",
        "--set",
        "rounds=3",
        "--set",
        "seed=5",
        "--features",
    ]
    invoke("fit", table, *words, "mean radius,ward", "--out", tmp_path / "one")
    report = (tmp_path / "one" / "report.html").read_text()
    command = unescape(report.split("<pre><code>")[1].split("</code>")[0])
    again = shlex.split(command.replace(str(tmp_path / "one"), str(tmp_path / "two")))
    assert again[0] == "fedscaffold"
    invoke(*again[1:])
    one, two = (Model.load(tmp_path / name / "model.json") for name in ("one", "two"))
    assert one.equations == two.equations
    assert one.provenance["request"] == two.provenance["request"]


def test_a_folder_of_another_fit_is_refused_and_stays(tmp_path: Path) -> None:
    table, out = written(cancer(), tmp_path / "c.csv"), tmp_path / "m"
    words = ["fit", table, "--target", "diagnosis", *HERE, "--out", out, "--set"]
    invoke(*words, "rounds=2")
    before = {file.name: file.read_bytes() for file in out.iterdir()}
    assert "holds the model of another fit" in refused(*words, "rounds=3")
    assert {file.name: file.read_bytes() for file in out.iterdir()} == before
    invoke(*words, "rounds=2")
    invoke(*words, "rounds=3", "--overwrite")
    assert Model.load(out / "model.json").provenance["rounds"] == 3
    (out / "model.json").unlink()
    assert "which is not this fit" in refused(*words, "rounds=3")
    (out / "report.html").unlink()
    (out / "trace.npz").unlink()
    (out / "checkpoint.json").write_text("{}")
    assert "unfinished fit of other data" in refused(*words, "rounds=3")
    (out / "notes.txt").write_text("mine")
    invoke(*words, "rounds=3", "--overwrite")
    assert sorted(f.name for f in out.iterdir()) == ["model.json", "notes.txt", "report.html", "trace.npz"]


def start(words: list[str]) -> subprocess.Popen[str]:
    code = "from fedscaffold.cli.main import main; main()"
    return subprocess.Popen(
        [sys.executable, "-c", code, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_an_interrupted_fit_goes_on_to_the_same_model(tmp_path: Path) -> None:
    table = written(cancer(), tmp_path / "c.csv")
    words = ["fit", str(table), "--target", "diagnosis", *HERE, "--set", "batch_size=8", "--set", "step_size=0.01",
             "--set", "local_steps=3000", "--set", "rounds=80", "--out"]  # fmt: skip
    process = start([*words, str(tmp_path / "m")])
    checkpoint = tmp_path / "m" / "checkpoint.npz"
    begin = time.monotonic()
    while not checkpoint.exists() and process.poll() is None and time.monotonic() - begin < 120:
        time.sleep(0.02)
    assert checkpoint.exists()
    os.kill(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "the same command resumes" in errors
    assert "Traceback" not in errors
    assert not (tmp_path / "m" / "model.json").exists()
    assert "other data or settings" in refused(*words, tmp_path / "m", "--set", "seed=1")
    assert "Resuming a fit that was interrupted" in invoke(*words, tmp_path / "m")
    assert "Resuming" not in invoke(*words, tmp_path / "whole")
    one, two = (Model.load(tmp_path / name / "model.json") for name in ("m", "whole"))
    assert one.equations == two.equations


def test_model_json_holds_no_path_and_says_where_it_came_from(tmp_path: Path) -> None:
    table = written(cancer(), tmp_path / "c.csv")
    invoke("fit", table, "--target", "diagnosis", *HERE, "--set", "rounds=2", "--out", tmp_path / "m")
    text = (tmp_path / "m" / "model.json").read_text()
    assert str(tmp_path) not in text
    known = json.loads(text)["provenance"]
    assert {"method", "problem", "versions", "seed", "data", "request", "finished"} <= known.keys()


def test_a_fit_that_fails_leaves_the_folder_free(tmp_path: Path) -> None:
    table, out = written(diabetes(), tmp_path / "d.csv"), tmp_path / "m"
    words = ["fit", table, "--target", "target", *HERE, "--features", "age,bmi", "--out", out]
    assert "out of reach" in refused(*words, "--set", "batch_size=1", "--tolerance", 1e-7)
    assert not out.exists()
    result = runner.invoke(
        app, [*map(str, words), "--set", "step_size=9", "--set", "local_steps=50", "--set", "rounds=50"]
    )
    assert result.exit_code == 1, result.output
    assert "step" in result.output
    assert not out.exists()


def test_the_page_tells_what_was_given_instead_of_planned(tmp_path: Path) -> None:
    table = written(cancer(), tmp_path / "c.csv")
    words = ["fit", table, "--target", "diagnosis", *HERE]
    invoke(*words, "--set", "step_size=0.05", "--out", tmp_path / "m")
    assert "Some of this was given instead" in (tmp_path / "m" / "report.html").read_text()
    stopped = ["--set", "local_steps=5", "--set", "rounds=2", "--set", "step_size=0.01", "--set", "close=false"]
    invoke(*words, *stopped, "--out", tmp_path / "n")
    text = (tmp_path / "n" / "report.html").read_text()
    assert "Nothing was planned" in text
    assert "MISSING the tolerance of 0.05 standard errors" in text


def test_output_and_page_say_where_the_time_went(tmp_path: Path) -> None:
    table = written(diabetes(), tmp_path / "d.csv")
    text = invoke("fit", table, "--target", "target", "--client", "hospital", "--out", tmp_path / "m")
    (line,) = [line for line in text.splitlines() if line.startswith("Time: ")]
    phases = ["reading", "pooled model", "planning", "running", "closing", "comparing"]
    assert re.findall(r"([a-z ]+) [\d.]+ s", line.removeprefix("Time: ").replace(", ", ",")) == phases
    page = (tmp_path / "m" / "report.html").read_text()
    assert all(f">{phase}<" in page for phase in phases)


def test_a_dispersion_is_asked_for_by_a_flag(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.normal(size=90), "hospital": ["a", "b", "c"] * 30})
    table = written(frame.assign(falls=rng.poisson(np.exp(frame.x))), tmp_path / "f.csv")
    words = ["fit", table, "--target", "falls", *HERE, "--kind", "poisson", "--out", tmp_path / "m"]
    invoke(*words, "--set", "dispersion=pearson")
    assert Model.load(tmp_path / "m" / "model.json").summary().facts["family"] == "Poisson (quasi)"
    assert "dispersion must be a positive number or 'pearson'" in refused(*words, "--set", "dispersion=much")


def test_missing_values_can_be_filled(tmp_path: Path) -> None:
    frame = cancer()
    frame.loc[::7, "mean area"] = np.nan
    words = [
        "fit",
        written(frame, tmp_path / "c.csv"),
        "--target",
        "diagnosis",
        *HERE,
        "--set",
        "rounds=2",
        "--out",
    ]
    assert "column 'mean area' has 82" in refused(*words, tmp_path / "m")
    invoke(*words, tmp_path / "m", "--missing", "mean")
    columns = Model.load(tmp_path / "m" / "model.json").encoding.columns
    (fill,) = (c.fill for c in columns if isinstance(c, Number) and c.name == "mean area")
    assert fill == pytest.approx(frame["mean area"].mean())


def test_inspect(tmp_path: Path) -> None:
    printed = invoke("inspect", written(cancer(), tmp_path / "c.csv"), "--target", "diagnosis", *HERE)
    for text in ("Bonn", "malignant", "ζ₁", "ζ₂", "condition number", "FedAvg's distance", "FedAvg's loss above"):
        assert text in printed
    assert "FedAvg" in invoke("inspect", written(wine(), tmp_path / "w.csv"), "--target", "target", *HERE)
    printed = invoke("inspect", written(diabetes(), tmp_path / "d.csv"), "--target", "target", *HERE)
    assert "own units" in printed


def test_square_brackets_in_names_are_shown(tmp_path: Path) -> None:
    frame = cancer().rename(columns={"diagnosis": "[b]d"})
    frame["hospital"] = "[red]" + frame["hospital"]
    table = written(frame, tmp_path / "c.csv")
    assert "[red]Bonn" in invoke("inspect", table, "--target", "[b]d", *HERE)
    printed = invoke("fit", table, "--target", "[b]d", *HERE, "--set", "rounds=2", "--out", tmp_path / "m")
    assert "A federated model of [b]d" in printed
    assert "Predictions of [b]d" in invoke("score", tmp_path / "m" / "model.json", table)


def test_plan_on_a_table(tmp_path: Path) -> None:
    table = written(cancer(), tmp_path / "c.csv")
    words = ["plan", table, "--target", "diagnosis", *HERE]
    printed = invoke(*words, "--tolerance", 0.01)
    assert "Run Scaffold with step_size=" in printed
    assert "to first order" in printed
    assert "--clients is for the paper's problems" in refused(*words, "--clients", 3)
    assert "--target is for a table" in refused("plan", "1.0", "--target", "y")
    assert "a table needs --target and --client" in refused("plan", table)
    assert "must be a table" in refused("plan", "nonsense", "--target", "y", *HERE)
