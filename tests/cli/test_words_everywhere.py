"""Bad values of every option of every command: refused at once, in words that name only options it has.

The cases are made from the commands themselves, so that a new command or option is held to the same.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click
import pytest

from fedscaffold.cli.main import app
from tests.cli.test_words import GROUP, check_words, runner
from tests.hospitals import cancer, written

SECONDS = 20  # a refusal comes at once; what is accepted is stopped then
WRONG: dict[str, list[str]] = {
    "integer": ["-1", "x", "99999999999999999999"],
    "float": ["-1", "nan", "x"],
    "text": ["nonsense", "a=b:c"],
    "path": ["/proc/nowhere/x.png"],
}
NO_REFUSAL = {  # where such a value is one that the command takes
    ("sweep", "step_size", "-1"), ("compare", "step_sizes", "-1"),
    *(  # sites alone know their columns
        ("study new", column, value)
        for column in ("target", "features", "ignore", "categorical", "exposure", "offset", "weight")
        for value in WRONG["text"]
    ),
    ("study new", "name", "nonsense"), ("study new", "site", "nonsense"),
}  # fmt: skip


def commands(group: Any = GROUP, before: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """All commands with their names, those in groups included."""
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        if isinstance(command, click.Group):
            yield from commands(command, (*before, name))
        else:
            yield (*before, name), command


def kind_of(parameter: Any) -> str:
    name = parameter.type.name.lower().removesuffix(" range")
    return "path" if "path" in name or "file" in name or "dir" in name else name


CASES = [
    pytest.param(name, parameter.opts[0], value, id=f"{' '.join(name)} {parameter.opts[0]} {value}")
    for name, command in commands()
    for parameter in command.params
    if isinstance(parameter, click.Option)
    for value in WRONG.get(kind_of(parameter), [])
    if (" ".join(name), parameter.name, value) not in NO_REFUSAL
]


@contextmanager
def stopped_after(seconds: int) -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise TimeoutError("it was not refused")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What the commands need besides the option in question."""
    folder = tmp_path_factory.mktemp("words")
    table = str(written(cancer(), folder / "t.csv"))
    columns = ["--target", "diagnosis", "--client", "hospital", "--tolerance", "0.2"]
    model = folder / "model"
    fitted = runner.invoke(app, ["fit", table, *columns, "--features", "mean area", "--out", str(model)])
    assert fitted.exit_code == 0, fitted.output
    study = folder / "study" / "study.toml"
    study.parent.mkdir()
    chosen = ["--target", "diagnosis", "--site", "bonn,graz,kiel", "--like", table]
    made = runner.invoke(app, ["study", "new", str(study), *chosen])
    assert made.exit_code == 0, made.output
    return {
        "study new": [str(folder / "new.toml"), *chosen],
        "study join": [str(study.parent / "study-bonn.invite"), "--data", table, "--accept", "auto"],
        "study run": [str(study), "--out", str(study.parent / "out")],
        "study status": [str(folder)],
        "fit": [table, *columns, "--out", str(folder / "out")],
        "inspect": [table, *columns[:4], "--set", "tolerance=0.2"],
        "plan": [table, *columns[:4], "--set", "tolerance=0.2"],
        "score": [str(model / "model.json"), table],
        "federate": [table, *columns[:4]],
        "compare": ["--method", "scaffold", "--method", "fedavg"],
        "status": [str(folder)],
        "conformance": ["--against", "declearn"],
    }


def test_there_are_cases_of_every_command() -> None:
    seen = {" ".join(case.values[0]) for case in CASES}  # type: ignore[arg-type]
    assert {"fit", "score", "inspect", "run", "predict", "plan", "compare", "sweep", "federate"} <= seen
    assert {"study new", "study join", "study run"} <= seen


@pytest.mark.parametrize(("name", "option", "value"), CASES)
def test_a_bad_value_is_refused_in_the_commands_words(
    name: tuple[str, ...], option: str, value: str, good: dict[str, list[str]]
) -> None:
    """The message names the option, or the column, file or word that it was given."""
    command = dict(commands())[name]
    with stopped_after(SECONDS):
        result = runner.invoke(app, [*name, *good.get(" ".join(name), []), option, value])
    assert isinstance(result.exception, SystemExit), repr(result.exception)
    assert result.exit_code == 2, result.output
    names = (option, value.rpartition("/")[0] or value, repr(value.partition("=")[0]))
    assert any(name in result.output for name in names), result.output
    check_words(command, result.output)


def test_a_number_of_clients_that_the_problem_cannot_have() -> None:
    result = runner.invoke(app, ["run", "--problem", "regression", "--clients", "3"])
    assert result.exit_code == 2
    assert "--clients must be even" in result.output
