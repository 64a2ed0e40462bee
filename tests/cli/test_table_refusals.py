"""Tables that cannot be used end with one sentence and exit code 2, whatever the command."""

import sys
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from fedscaffold.cli.main import app
from tests.hospitals import cancer

runner = CliRunner()


def duplicated(frame: pd.DataFrame) -> str:
    text = frame.to_csv(index=False)
    return text.replace("mean texture", "mean radius", 1)


def spoilt(frame: pd.DataFrame) -> str:
    frame["mean area"] = frame["mean area"].astype(str)
    frame.loc[4, "mean area"] = "large"
    return frame.to_csv(index=False)


def alone(frame: pd.DataFrame) -> str:
    frame.loc[3, "hospital"] = "Rome"
    return frame.to_csv(index=False)


def infinite(frame: pd.DataFrame) -> str:
    frame.loc[3, "mean area"] = float("inf")
    return frame.to_csv(index=False)


def plain(frame: pd.DataFrame) -> str:
    return frame.to_csv(index=False)


CASES: list[tuple[Callable[[pd.DataFrame], str], list[str], str]] = [
    (plain, ["--target", "diagnosi"], "no column 'diagnosi'; did you mean 'diagnosis'?"),
    (plain, ["--client", "clinic"], "no column 'clinic'"),
    (plain, ["--features", "mean radius,x"], "no column 'x'"),
    (plain, ["--features", ","], "--features is an empty list"),
    (lambda frame: plain(frame.assign(diagnosis="benign")), [], "one class only"),
    (alone, [], "client 'Rome' has only 1 row"),
    (spoilt, [], "row 4 has 'large'"),
    (duplicated, [], "more than one column named 'mean radius'"),
    (lambda frame: "", [], "cannot read"),
    (lambda frame: plain(frame.head(0)), [], "no rows"),
    (infinite, [], "infinite values: column 'mean area' has 1"),
    (plain, ["--features", "mean radius,diagnosis"], "is the target and cannot be a feature too"),
    (plain, ["--target", "hospital"], "cannot be both target and client"),
    (plain, ["--kind", "forest"], "--kind must be one of 'ridge', 'logistic'"),
    (plain, ["--kind", "ridge"], "must hold numbers for --kind ridge"),
    (plain, ["--missing", "drop"], "--missing must be"),
    (plain, ["--l2", "-1"], "--l2 must be"),
    (plain, ["--set", "tolerance=2"], "tolerance must be below 1"),
    (plain, ["--set", "max_exchanges=some"], "max_exchanges must be"),
    (
        lambda frame: plain(frame.assign(**{"mean area": 1.0})),
        [],
        "'mean area' has the same number in all rows; leave it out with --drop 'mean area'",
    ),
]


@pytest.mark.parametrize("command", ["fit", "inspect"])
@pytest.mark.parametrize(("spoil", "extra", "message"), CASES)
def test_bad_tables(
    command: str, spoil: Callable[[pd.DataFrame], str], extra: list[str], message: str, tmp_path: Path
) -> None:
    table = tmp_path / "table.csv"
    table.write_text(spoil(cancer()))
    words = [command, str(table), "--target", "diagnosis", "--client", "hospital", *extra]
    words += ["--out", str(tmp_path / "out")] if command == "fit" else []
    result = runner.invoke(app, words)
    assert result.exit_code == 2, result.output
    (line,) = result.output.strip().splitlines()
    assert line.startswith("error: ")
    assert message in line
    assert not any((tmp_path / "out").glob("*"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["fit", "none.csv", "--out", "m"], "there is no such file"),
        (["fit", "table.txt", "--out", "m"], "ends in .csv or .parquet"),
        (["fit", "table.csv", "--out", "table.csv"], "cannot make a folder"),
        (["fit", "table.csv", "--out", "m", "--test", "none.csv"], "there is no such file"),
        (["fit", "table.csv", "--out", "m", "--test", "bad.csv"], "bad.csv: the table has no column"),
        (["fit", "table.parquet", "--out", "m"], "cannot read table.parquet as Parquet"),
        (["inspect", "none.csv"], "there is no such file"),
        (["plan", "none.csv"], "there is no such file"),
    ],
)
def test_bad_files(words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("table.csv", "table.txt", "table.parquet"):
        Path(name).write_text(cancer().to_csv(index=False))
    Path("bad.csv").write_text("a,b\n1,2\n")
    result = runner.invoke(app, [*words, "--target", "diagnosis", "--client", "hospital"])
    assert result.exit_code == 2, result.output
    (line,) = result.output.strip().splitlines()[-1:]
    assert message in line
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["none.json", "table.csv"], "cannot read the model none.json"),
        (["table.csv", "table.csv"], "not a model that fedscaffold wrote"),
        (["table.csv", "table.csv", "--out", "p.txt"], "--out must end in .csv or .parquet"),
        (["table.csv", "table.csv", "--out", "no/p.csv"], "there is no folder"),
    ],
)
def test_score_refuses(words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("table.csv").write_text(cancer().to_csv(index=False))
    result = runner.invoke(app, ["score", *words])
    assert result.exit_code == 2, result.output
    assert message in result.output


def test_square_brackets_in_messages_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "table.csv"
    table.write_text(plain(cancer()))
    words = ["inspect", str(table), "--target", "[bold]x", "--client", "hospital"]
    assert "no column '[bold]x'" in runner.invoke(app, words).output
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    result = runner.invoke(app, ["inspect", str(table), "--target", "diagnosis", "--client", "hospital"])
    assert result.exit_code == 2
    assert "pip install 'fedscaffold[data]'" in result.output
