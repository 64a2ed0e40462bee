"""Help pages: every default is shown, every command has examples that it takes, and options stay few."""

import re
import shlex
from typing import Any

import click
import pytest

from fedscaffold.cli.main import app
from tests.cli.test_words import runner
from tests.cli.test_words_everywhere import commands

COMMANDS = dict(commands())


def help_of(name: tuple[str, ...]) -> str:
    result = runner.invoke(app, [*name, "--help"], env={"COLUMNS": "400", "NO_COLOR": "1"})
    assert result.exit_code == 0
    return result.output


def default_of(option: Any) -> str | None:
    """The default as the help shows it; None if it shows none."""
    if isinstance(option.show_default, str):
        return f"({option.show_default})"
    if option.show_default is False or option.default in (None, "") or option.required or callable(option.default):
        return None
    if option.is_flag:
        names = (option.opts[0], *option.secondary_opts)
        return None if not option.secondary_opts else names[not option.default].removeprefix("--")
    return str(option.default)


@pytest.mark.parametrize("name", COMMANDS, ids=" ".join)
def test_help_shows_every_default_and_an_example(name: tuple[str, ...]) -> None:
    page = help_of(name)
    texts = [option.help for option in COMMANDS[name].params if isinstance(option, click.Option) and option.help]
    assert [text for text in texts if text.replace("\\[", "[") not in " ".join(page.split())] == []
    for option in COMMANDS[name].params:
        if isinstance(option, click.Option) and (default := default_of(option)) is not None:
            (line,) = re.findall(rf"^\W*{option.opts[0]}(?![\w-]).*\[.*$", page, flags=re.MULTILINE)[:1] or [""]
            assert f"[default: {default}]" in line, (option.opts[0], default, line)
    assert f"fedscaffold {' '.join(name)}" in page.partition("Usage")[2].partition("\n")[2]


@pytest.mark.parametrize("name", COMMANDS, ids=" ".join)
def test_help_says_what_each_argument_is(name: tuple[str, ...]) -> None:
    page = " ".join(help_of(name).split())
    for argument in COMMANDS[name].params:
        if isinstance(argument, click.Argument):
            assert argument.help, argument.name
            assert argument.help in page


@pytest.mark.parametrize("name", COMMANDS, ids=" ".join)
def test_the_command_takes_the_examples_of_its_help(name: tuple[str, ...]) -> None:
    """A shell that gets an example as it stands calls the command with options and arguments that it has."""
    found = re.findall(r"^ \$ (fedscaffold .*?) *$", help_of(name), flags=re.MULTILINE)
    assert found
    for example in found:
        words = shlex.split(example, comments=True)[1:]
        assert tuple(words[: len(name)]) == name
        COMMANDS[name].make_context(" ".join(name), words[len(name) :])  # raises if it has no such option


def test_options_stay_few() -> None:
    counts = {
        " ".join(name): sum(isinstance(each, click.Option) for each in command.params)
        for name, command in COMMANDS.items()
    }
    assert sum(counts.values()) <= 150, counts
