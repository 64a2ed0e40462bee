"""Refusals and warnings of the commands on tables: in the command line's words, all at once, no traceback."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
import pandas as pd
import pytest
import typer.main
from typer.testing import CliRunner

from fedscaffold.cli.errors import spell_flags
from fedscaffold.cli.main import app
from fedscaffold.cli.table_options import FIT_SETTINGS, TABLE_SETTINGS
from fedscaffold.federation.study.plan import StudySettings
from tests.hospitals import cancer, written

runner = CliRunner(env={"COLUMNS": "200"})
GROUP: Any = typer.main.get_command(app)
TABLE_COMMANDS = ("fit", "inspect")
PYTHON = re.compile(r"\b[a-z]\w*=['\"\[{(\d]|\b[a-z]+_[a-z_]+\b|\bNone\b|\bTrue\b|\bfedscaffold\.\w|\w\(\)")
SET = re.compile(r"--set ('[^']*'|\S+)")
NAMES = {*TABLE_SETTINGS, *FIT_SETTINGS, *StudySettings.model_fields}
SETTINGS = re.compile(rf"(?<![\w-])({'|'.join(NAMES)})(?![\w-])")
QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")


def command_of(name: str) -> Any:
    return GROUP.get_command(click.Context(GROUP), name)


def numbers_as_text(frame: pd.DataFrame) -> None:
    frame["mean area"] = [
        f"{value:.0f} mm" if k == 4 else f"{value:.0f}" for k, value in enumerate(frame["mean area"])
    ]


def decimal_commas(frame: pd.DataFrame) -> None:
    frame["mean area"] = frame["mean area"].astype(str).str.replace(".", ",")


def lone_client(frame: pd.DataFrame) -> None:
    frame.loc[3, "hospital"] = "Rome"


def many_values(frame: pd.DataFrame) -> None:
    frame["ward"] = [f"w{k}" for k in range(len(frame))]


def missing_values(frame: pd.DataFrame) -> None:
    frame.loc[::5, "mean area"] = np.nan


def dates(frame: pd.DataFrame) -> None:
    frame["admitted"] = pd.date_range("2020-01-01", periods=len(frame)).astype(str)


def long_numbers(frame: pd.DataFrame) -> None:
    frame["insured"] = 10**17 + np.arange(len(frame))


def constant(frame: pd.DataFrame) -> None:
    frame["mean area"] = 1.0
    frame["ward"] = "north"


def everything(frame: pd.DataFrame) -> None:
    for spoil in (numbers_as_text, lone_client, many_values, dates, long_numbers):
        spoil(frame)
    frame.loc[::5, "mean radius"] = np.nan
    frame["mean texture"] = 7


def nothing(frame: pd.DataFrame) -> None:
    pass


SPOILT: list[tuple[Callable[[pd.DataFrame], None], list[str], list[str]]] = [
    (numbers_as_text, [], ["--set 'categorical=mean area'"]),
    (decimal_commas, [], ["--set decimal=,"]),
    (lone_client, [], ["--set min_rows=1"]),
    (many_values, [], ["--set max_categories=...", "--drop ward"]),
    (missing_values, [], ["--missing mean"]),
    (dates, [], ["--drop admitted", "--set dates=year,month,weekday"]),
    (long_numbers, [], ["more than 15 digits", "--drop insured", "--set categorical=insured"]),
    (constant, [], ["--drop 'mean area'", "--drop ward"]),
    (
        everything,
        [],
        ["7 problems", "--set min_rows", "--set max_categories", "--missing", "--set dates", "--set 'categorical"],
    ),
    (nothing, ["--kind", "svm"], ["--kind must be"]),
    (nothing, ["--kind", "ridge"], ["--kind ridge", "--kind logistic"]),
    (nothing, ["--missing", "drop"], ["--missing must be"]),
    (nothing, ["--l2", "-1"], ["--l2 must be"]),
    (nothing, ["--set", "tolerance=2"], ["tolerance must be below 1"]),
    (nothing, ["--set", "min_rows=0"], ["min_rows must be"]),
    (nothing, ["--set", "max_categories=0"], ["max_categories must be"]),
    (nothing, ["--set", "delimiter=;;"], ["delimiter must be one character"]),
    (nothing, ["--set", "decimal=comma"], ["decimal must be one character"]),
    (nothing, ["--set", "encoding=utf-9"], ["encoding is not known"]),
    (nothing, ["--drop", "wards"], ["no column 'wards'; did you mean 'ward'?"]),
    (nothing, ["--drop", "diagnosis"], ["--drop names column 'diagnosis'"]),
    (nothing, ["--set", "categorical=wards,diagnosis"], ["2 problems", "'wards'", "categorical names column"]),
    (nothing, ["--set", "reference=ward"], ["reference must be COLUMN=LEVEL"]),
    (nothing, ["--set", "reference=ward=attic"], ["reference of column 'ward' must be one of its values"]),
    (
        nothing,
        ["--set", "reference=mean area=1"],
        ["reference names column 'mean area'", "--set 'categorical=mean area'"],
    ),
    (nothing, ["--set", "dates=hour"], ["dates must be some of"]),
    (nothing, ["--features", ","], ["--features is an empty list"]),
    (nothing, ["--set", "max_exchanges=0"], ["max_exchanges must be"]),
    (nothing, ["--set", "dispersion=-1"], ["dispersion must be"]),
]


def check_words(command: Any, output: str) -> None:
    """No traceback, no Python, and every option that is named is one of the command's, or a setting of --set."""
    assert "Traceback" not in output
    options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    plain = QUOTED.sub("", SET.sub("--set", output))
    if "--set" in options:
        plain = SETTINGS.sub("", plain)
    assert not PYTHON.search(plain), PYTHON.search(plain)
    options.add("--help")
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", plain)) <= options


@pytest.mark.parametrize("command", TABLE_COMMANDS)
@pytest.mark.parametrize(("spoil", "extra", "wanted"), SPOILT)
def test_refusals_name_the_commands_options(
    command: str, spoil: Callable[[pd.DataFrame], None], extra: list[str], wanted: list[str], tmp_path: Path
) -> None:
    frame = cancer()
    spoil(frame)
    table = written(frame, tmp_path / "t.csv")
    words = [command, str(table), "--target", "diagnosis", "--client", "hospital", *extra]
    words += ["--out", str(tmp_path / "out")] if command == "fit" else []
    result = runner.invoke(app, words)
    assert result.exit_code == 2, result.output
    check_words(command_of(command), result.output.replace(str(tmp_path), ""))
    for part in wanted:
        assert part in result.output


@pytest.mark.parametrize(
    ("python", "flags"),
    [
        ("accept them with min_rows=1", "accept them with --set min_rows=1"),
        ("drop=['a b', 'c']", "--drop 'a b,c'"),
        ("drop=['a, b']", "--drop '\"a, b\"'"),
        ("replace it with overwrite=True", "replace it with --overwrite"),
        ("batch_size=None, or more", "--set batch_size=full, or more"),
        ("reference={'ward': 'x'}", "--set reference=ward=x"),
        ("pass a larger l2=..., or features=...", "pass a larger --l2, or --features"),
        ("client_intercepts=True requires a table", "--set client_intercepts=true requires a table"),
        ("tolerance must be below 1", "--tolerance must be below 1"),
        ("2 problems:\n- missing must be x\n- kind is y", "2 problems:\n- --missing must be x\n- --kind is y"),
        ("data must be a file", "DATA must be a file"),
        ("the target has no features", "the target has no features"),
        ("no column 'min_rows=1' of \"drop=2\"", "no column 'min_rows=1' of \"drop=2\""),
        ("/tmp/min_rows/kind=1.csv has 'alpha=1'", "/tmp/min_rows/kind=1.csv has 'alpha=1'"),
        ("take it with categorical=['a b']", "take it with --set 'categorical=a b'"),
    ],
)
def test_spelling(python: str, flags: str) -> None:
    assert spell_flags(python, command_of("fit")) == flags


def test_the_advice_helps(tmp_path: Path) -> None:
    """A table with many problems is accepted with the options that its refusal names."""
    frame = cancer()
    everything(frame)
    table = written(frame, tmp_path / "t.csv")
    words = ["inspect", str(table), "--target", "diagnosis", "--client", "hospital", "--set", "tolerance=0.1"]
    assert runner.invoke(app, words).exit_code == 2
    words += [
        "--drop",
        "insured,mean texture,ward",
        "--missing",
        "mean",
        "--set",
        "dates=year,weekday",
        "--set",
        "min_rows=1",
    ]
    words += [
        "--set",
        "categorical=mean area",
        "--set",
        "max_categories=600",
        "--set",
        "reference=admitted weekday=Friday",
    ]
    result = runner.invoke(app, words)
    assert result.exit_code == 0, result.output


def test_columns_that_look_like_identifiers_are_warned_of(tmp_path: Path) -> None:
    frame = cancer().assign(patient_id=np.arange(569) + 7, card=1234567890123456 + 13 * np.arange(569)[::-1])
    table = written(frame, tmp_path / "t.csv")
    words = ["inspect", str(table), "--target", "diagnosis", "--client", "hospital", "--set", "tolerance=0.1"]
    result = runner.invoke(app, words)
    assert result.exit_code == 0, result.output
    assert "warning: 'patient_id', 'card': the columns look like identifiers" in result.output
    assert "--drop patient_id,card" in result.output
    assert "warning" not in runner.invoke(app, [*words, "--drop", "patient_id,card"]).output


@pytest.mark.parametrize("command", ["plan", *TABLE_COMMANDS, "score"])
def test_what_was_detected_of_a_csv_is_told(command: str, tmp_path: Path) -> None:
    frame = cancer().rename(columns={"ward": "Krankenhausflügel"})
    plain, odd = written(frame, tmp_path / "plain.csv"), tmp_path / "odd.csv"
    frame.to_csv(odd, sep=";", decimal=",", encoding="latin-1", index=False)
    columns = ["--target", "diagnosis", "--client", "hospital", "--set", "tolerance=0.1"]
    model = ["--out", str(tmp_path / "out")]
    if command == "score":
        runner.invoke(app, ["fit", str(plain), *columns, *model])
        columns, model = [], []
    for table in (odd, plain):
        words = [command, *([str(tmp_path / "out" / "model.json")] if command == "score" else []), str(table)]
        result = runner.invoke(
            app, [*words, *columns, *(model if command == "fit" else []), *["--overwrite"] * (command == "fit")]
        )
        assert result.exit_code == 0, result.output
        told = "odd.csv was read as cp1252, with ';' between fields and decimal commas in 'mean" in result.output
        assert told == (table == odd), result.output
        assert ("--set encoding=..., --set delimiter=... and --set decimal=..." in result.output) == told


def test_categories_work_without_a_penalty(tmp_path: Path) -> None:
    table = written(cancer(), tmp_path / "t.csv")
    words = ["fit", str(table), "--target", "diagnosis", "--client", "hospital", "--features", "ward,mean texture"]
    result = runner.invoke(
        app, [*words, "--l2", "0", "--out", str(tmp_path / "out"), "--set", "reference=ward=south"]
    )
    assert result.exit_code == 0, result.output
    assert '"ward=north"' in (tmp_path / "out" / "model.json").read_text()
    assert "--set reference=ward=south" in (tmp_path / "out" / "report.html").read_text()
