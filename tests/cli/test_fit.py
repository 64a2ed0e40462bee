"""`fedscaffold fit`, `score`, `inspect`, and `plan` on a table."""

import json
import shlex
from html import unescape
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import fedscaffold as fs
from fedscaffold import Model
from fedscaffold.cli.main import app
from fedscaffold.data.encoding import Number
from tests.hospitals import cancer, diabetes, wine, written

runner = CliRunner(env={"COLUMNS": "80"})
HERE = ["--client", "hospital"]
FILES = [
    "coding.json", "coefficients.csv", "coefficients.parquet", "model.json", "report.html", "results.json",
    "summary.txt", "sums.npz",
]  # fmt: skip


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
    assert sorted(file.name for file in out.iterdir()) == FILES
    model = Model.load(out / "model.json")
    lines = printed.splitlines()
    table_at, trained_at = (
        lines.index(next(line for line in lines if words in line)) for words in ("P>|z|", "Newton")
    )
    assert table_at < trained_at  # coefficients first
    assert "expected to take" in printed
    assert "at most" in printed
    assert str(fs.models.load(out).summary()) in printed

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
    invoke("fit", table, "--target", "diagnosis", *HERE, "--out", tmp_path / "m")
    bare = cancer().drop(columns=["diagnosis", "hospital"]).assign(ward="attic")
    model, new = tmp_path / "m" / "model.json", written(bare, tmp_path / "n.csv")
    assert "'attic' in row 0" in refused("score", model, new)
    printed = invoke("score", model, new, "--unknown", "ignore")
    assert "569 predictions" in printed
    assert "accuracy" not in printed


def test_the_command_in_the_report_makes_the_same_model(tmp_path: Path) -> None:
    table = written(cancer(), tmp_path / "a table.csv")
    words = ["--target", "diagnosis", *HERE, "--trainer", "scaffold", "--set", "max_exchanges=50", "--features"]
    invoke("fit", table, *words, "mean radius,ward", "--out", tmp_path / "one")
    report = (tmp_path / "one" / "report.html").read_text()
    command = unescape(report.split("This page was made by: ")[1].split("</p>")[0])
    again = shlex.split(command.replace(str(tmp_path / "one"), str(tmp_path / "two")))
    assert again[0] == "fedscaffold"
    invoke(*again[1:])
    one, two = (Model.load(tmp_path / name / "model.json") for name in ("one", "two"))
    assert one.equations == two.equations
    assert one.provenance["trainer"] == two.provenance["trainer"] == "scaffold"


def test_a_folder_of_another_fit_is_refused_and_stays(tmp_path: Path) -> None:
    table, out = written(cancer(), tmp_path / "c.csv"), tmp_path / "m"
    words = ["fit", table, "--target", "diagnosis", *HERE, "--out", out, "--l2"]
    invoke(*words, "0.1")
    before = {file.name: file.read_bytes() for file in out.iterdir()}
    assert "holds a model already; choose another folder, or replace it with --overwrite" in refused(*words, "0.2")
    assert {file.name: file.read_bytes() for file in out.iterdir()} == before
    (out / "notes.txt").write_text("mine")
    invoke(*words, "0.2", "--overwrite")
    assert fs.models.load(out).coding.l2 == 0.2
    assert sorted(f.name for f in out.iterdir()) == sorted([*FILES, "notes.txt"])


def test_settings_that_are_gone_name_their_successors(tmp_path: Path) -> None:
    words = ["fit", written(cancer(), tmp_path / "c.csv"), "--target", "diagnosis", *HERE, "--out", tmp_path / "m"]
    assert "fit has no batch_size: a fit uses all rows" in refused(*words, "--set", "batch_size=5")
    assert "rounds requires --epsilon" in refused(*words, "--set", "rounds=5")
    assert "--trainer must be" in refused(*words, "--trainer", "sgd")
    assert "--tolerance" in refused(*words, "--tolerence", "0.1")  # Typer's suggestion
    assert not (tmp_path / "m").exists()


def test_model_json_holds_no_path_and_says_where_it_came_from(tmp_path: Path) -> None:
    table = written(cancer(), tmp_path / "c.csv")
    invoke("fit", table, "--target", "diagnosis", *HERE, "--out", tmp_path / "m")
    text = (tmp_path / "m" / "model.json").read_text()
    assert str(tmp_path) not in text
    known = json.loads(text)["provenance"]
    assert {"name", "clients", "rows", "trainer", "exchanges", "tolerance", "versions"} == known.keys()
    assert known["name"] == "c.csv"


def test_a_fit_that_fails_leaves_the_folder_free(tmp_path: Path) -> None:
    frame = diabetes()
    table, out = written(frame.assign(twice=2 * frame.bmi), tmp_path / "d.csv"), tmp_path / "m"
    words = ["fit", table, "--target", "target", *HERE, "--features", "age,bmi,twice", "--l2", "0", "--out", out]
    assert "depend on each other" in refused(*words)
    assert not out.exists()


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
    words = ["fit", written(frame, tmp_path / "c.csv"), "--target", "diagnosis", *HERE, "--out"]
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
    printed = invoke("fit", table, "--target", "[b]d", *HERE, "--out", tmp_path / "m")
    assert "A federated model of [b]d" in printed
    assert "Predictions of [b]d" in invoke("score", tmp_path / "m" / "model.json", table)


def test_plan_on_a_table(tmp_path: Path) -> None:
    table = written(cancer(), tmp_path / "c.csv")
    words = ["plan", table, "--target", "diagnosis", *HERE]
    printed = invoke(*words, "--set", "tolerance=0.01")
    assert "Run Scaffold with step_size=" in printed
    assert "to first order" in printed
    assert "--clients is for the paper's problems" in refused(*words, "--clients", 3)
    assert "--target is for a table" in refused("plan", "1.0", "--target", "y")
    assert "a table needs --target and --client" in refused("plan", table)
    assert "must be a table" in refused("plan", "nonsense", "--target", "y", *HERE)


def test_times_until_events_are_two_columns(tmp_path: Path) -> None:
    from tests.models.test_cox import made

    made().to_csv(tmp_path / "visits.csv", index=False)
    words = ["fit", tmp_path / "visits.csv", "--client", "site", "--kind", "cox"]
    shown = invoke(*words, "--target", "days,died", "--test", tmp_path / "visits.csv", "--out", tmp_path / "m")
    assert "Model: cox" in shown
    assert "Each client has a baseline hazard" in shown
    assert "concordance" in shown
    page = (tmp_path / "m" / "report.html").read_text()
    assert "hazard ratio" in page
    assert "baseline hazard for each client" in page
    scored = invoke("score", tmp_path / "m" / "model.json", tmp_path / "visits.csv")
    assert "concordance" in scored
    said = refused(*words, "--target", "days", "--out", tmp_path / "n")
    assert "needs two columns as target" in " ".join(said.split())
