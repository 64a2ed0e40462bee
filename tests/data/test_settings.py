"""Settings of a table are declared once: Python's keywords, signatures, and the command line follow from them."""

import inspect
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import typer.main
from typer.testing import CliRunner

import fedscaffold as fs
from fedscaffold.cli import table_options
from fedscaffold.cli.main import app
from fedscaffold.data import from_frame, open_problem
from fedscaffold.data.settings import (
    FitTableSettings,
    TableKeywords,
    TableSettings,
    parameter_entries,
    parse_setting,
)
from tests.hospitals import cancer, written

OPTIONAL = [each.name for each in fields(TableSettings) if each.name not in ("target", "client")]


def test_keywords_have_the_names_and_types_of_the_settings() -> None:
    declared = get_type_hints(TableSettings)
    assert get_type_hints(TableKeywords) == {name: declared[name] for name in OPTIONAL}


@pytest.mark.parametrize(
    ("function", "settings"),
    [
        (from_frame, TableSettings),
        (open_problem, FitTableSettings), (fs.fit, FitTableSettings),
    ],
)  # fmt: skip
def test_signatures_show_every_setting_with_its_default(function: Any, settings: type[Any]) -> None:
    shown = inspect.signature(function).parameters
    documented = parameter_entries(function.__doc__)
    for each in fields(settings):
        if each.name in OPTIONAL and each.default is not MISSING:
            assert shown[each.name].default == each.default, each.name
            assert each.name in documented


def test_all_problems_are_reported_at_once() -> None:
    wrong: dict[str, Any] = {
        "kind": "svm", "missing": "drop", "features": "age", "drop": 3, "reference": ["a"], "dates": ["hour"],
        "l2": -1, "weights": "many", "standardize": "yes", "intercept": None, "min_rows": 0, "max_categories": 2.5,
        "exposure": "y", "offset": 7, "weight": "site", "delimiter": ";;", "decimal": 1, "encoding": "utf-9",
    }  # fmt: skip
    with pytest.raises(fs.InvalidInput, match=r"the table's setup has \d+ problems") as caught:
        TableSettings(target="y", client="site", **wrong)
    for name in wrong:
        assert f"{name} " in str(caught.value), name


def test_text_becomes_values() -> None:
    assert parse_setting("features", 'a, "b, c",') == ["a", "b, c"]
    assert parse_setting("reference", "ward=north,sex=f") == {"ward": "north", "sex": "f"}
    assert parse_setting("l2", "0.5") == 0.5
    assert parse_setting("l2", "auto") == "auto"
    assert parse_setting("intercept", "false") is False
    assert parse_setting("weight", "1") == "1"  # the name of a column
    assert parse_setting("delimiter", "tab") == "\t"
    assert parse_setting("weights", "{A = 2, B = 1}") == {"A": 2, "B": 1}
    with pytest.raises(fs.InvalidInput, match="reference must be COLUMN=LEVEL, each column once"):
        parse_setting("reference", "ward=a,ward=b")


def test_every_setting_can_be_given_on_the_command_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An option for the common ones, --set for all."""
    found: dict[str, Any] = {}

    def opened(data: Any, **given: Any) -> Any:
        found.update(given)
        raise fs.InvalidInput("enough")

    monkeypatch.setattr(table_options, "open_problem", opened)
    table = written(cancer(), tmp_path / "t.csv")
    values: dict[str, tuple[str, Any]] = {
        "features": ("a,b", ["a", "b"]), "drop": ("c", ["c"]), "categorical": ("a", ["a"]),
        "reference": ("a=1", {"a": "1"}), "dates": ("year", ["year"]), "l2": ("0.5", 0.5), "min_rows": ("1", 1),
        "max_categories": ("9", 9), "standardize": ("false", False), "intercept": ("false", False),
    }  # fmt: skip
    texts = {
        "kind": "gamma",
        "missing": "mean",
        "weights": "uniform",
        "exposure": "e",
        "offset": "o",
        "weight": "w",
    }
    texts |= {"status": "s", "delimiter": ";", "decimal": ",", "encoding": "latin-1"}
    values |= {name: (text, text) for name, text in texts.items()}
    assert sorted(values) == sorted(OPTIONAL)
    words = [word for name, (text, _) in values.items() for word in ("--set", f"{name}={text}")]
    for command in ("inspect", "plan"):
        found.clear()
        line = [command, str(table), "--target", "y", "--client", "c", *words]
        assert "enough" in CliRunner().invoke(app, line).output
        expected = {"target": "y", "client": "c", **{name: value for name, (_, value) in values.items()}}
        assert {name: value for name, value in found.items() if name in expected} == expected
    for text, value in (("auto", "auto"), ("0.5", 0.5), ("0", 0)):
        CliRunner().invoke(app, ["inspect", str(table), "--target", "y", "--client", "c", "--l2", text])
        assert found["l2"] == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("min_row=1", "--set does not know 'min_row'; did you mean 'min_rows'?"),
        ("min_rows", "--set must be NAME=VALUE, got 'min_rows'"),
        ("client=x", "give 'client' as --client, not with --set"),
    ],
)
def test_settings_that_do_not_exist(text: str, message: str, tmp_path: Path) -> None:
    table = written(cancer(), tmp_path / "t.csv")
    words = ["inspect", str(table), "--target", "diagnosis", "--client", "hospital", "--set", text]
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, words)
    assert result.exit_code == 2
    assert message in result.output


def test_the_command_line_stays_small() -> None:
    """Table commands have an option for common settings alone; --set takes the others."""
    group: Any = typer.main.get_command(app)
    for name, most in (("fit", 18), ("inspect", 10), ("score", 5), ("federate", 12)):
        command = group.get_command(None, name)
        assert sum(each.param_type_name == "option" and each.name != "help" for each in command.params) <= most
