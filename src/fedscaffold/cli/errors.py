"""Errors and warnings as one sentence in the command line's words, and an exit code, without a traceback."""

import ast
import logging
import re
import shlex
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import click
import typer
from rich.console import Console
from rich.markup import escape

from fedscaffold.cli.start import INTERRUPTED
from fedscaffold.core.errors import DataWarning, Diverged, FedScaffoldError

BAD_INPUT, FAILED = 2, 1
PYTHON_NAMES = {"clients": "n_clients"}  # parameters whose options have shorter names
RESUMABLE = "the same command resumes where it stopped"


@contextmanager
def refusals(*, interrupted: str) -> Iterator[None]:
    """Print errors as one sentence; bad input exits with 2, divergence with 1, Ctrl-C with 130 and the advice.

    Warnings about data, and how files were read, are printed too, and do not end the command.
    """
    errors = Console(stderr=True, highlight=False)
    try:
        with _warnings_to(errors), _notes_to(errors):
            yield
    except FedScaffoldError as error:
        errors.print(f"[red]error:[/red] {escape(in_flags(error))}", soft_wrap=True)
        raise typer.Exit(FAILED if isinstance(error, Diverged) else BAD_INPUT) from None
    except OSError as error:
        if error.filename is None:
            raise
        errors.print(
            f"[red]error:[/red] cannot use {escape(str(error.filename))}: {error.strerror}", soft_wrap=True
        )
        raise typer.Exit(BAD_INPUT) from None
    except KeyboardInterrupt:
        errors.print(f"interrupted; {interrupted}", soft_wrap=True)
        raise typer.Exit(INTERRUPTED) from None


def in_flags(message: Exception | Warning | str) -> str:
    """Return a message with parameters spelled as the options of the command that runs."""
    context = click.get_current_context(silent=True)
    return str(message) if context is None else spell_flags(str(message), context.command)


def spell_flags(message: str, command: click.Command) -> str:
    """Return a message with a command's parameters spelled as its options.

    Replaced are, outside of quotes, `name=value` (by `--name value`, `--name` if the value is True or an ellipsis,
    or `--set name=value` if the command has no such option but --set), names with an underscore, and a name at the
    beginning of the message or of an item of its list, if " must", " is", " names", " requires" or the like
    follows.
    """
    flags: dict[str, str] = {}
    for parameter in command.params:
        option = isinstance(parameter, click.Option)
        flag = parameter.opts[0] if option else parameter.make_metavar(click.Context(command))
        flags |= {str(parameter.name): flag, PYTHON_NAMES.get(str(parameter.name), str(parameter.name)): flag}

    def replaced(found: re.Match[str]) -> str:
        name, value = found["name"], found["value"]
        if name and name.islower() and name not in flags and value is not None and "settings" in flags:
            word = value.lower() if value in ("...", "True", "False") else _word(value)
            return f"--set {shlex.quote(f'{name}={word}')}"
        if name not in flags or (value is None and "_" not in name and not _begins(message, found)):
            return found[0]
        return flags[name] if value in (None, "...", "True") else f"{flags[name]} {shlex.quote(_word(value))}"

    return SPELLED.sub(replaced, message)


SPELLED = re.compile(
    r"""(?<![\w/.'"-])'[^'\n]*'(?!\w) | "[^"\n]*" |  # quoted text is left as it is
    (?<![\w./:-])(?P<name>[a-zA-Z]\w*)\b
    (?:=(?P<value>\.\.\. | \[[^]\n]*\] | \{[^}\n]*\} | '[^'\n]*' | "[^"\n]*" | -?[\w.]*\w))?""",
    re.VERBOSE,
)
BEGINNING = re.compile(r"(?:^|\n- )$")
VERB = re.compile(r" (?:must|is|are|has|names|requires|supports|cannot|of)\b")


def _begins(message: str, found: re.Match[str]) -> bool:
    """Return whether a word is the subject at the beginning of a message or of an item of its list."""
    return bool(BEGINNING.search(message[: found.start()]) and VERB.match(message[found.end() :]))


def _word(value: str) -> str:
    """Return a Python value as it is typed on a command line."""
    try:
        literal = ast.literal_eval(value)
    except (SyntaxError, ValueError):
        return value
    if isinstance(literal, Mapping):
        literal = [f"{name}={level}" for name, level in literal.items()]
    if isinstance(literal, list | tuple):
        return ",".join(f'"{each}"' if "," in str(each) else str(each) for each in literal)
    return "full" if literal is None else str(literal)


@contextmanager
def _warnings_to(console: Console) -> Iterator[None]:
    """Print warnings about data with the command's options, and warnings of other packages as usual."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", DataWarning)
        usual = warnings.showwarning

        def show(message: Warning | str, *place: Any, **more: Any) -> None:
            if isinstance(message, DataWarning):
                console.print(f"[yellow]warning:[/yellow] {escape(in_flags(message))}", soft_wrap=True)
            else:
                usual(message, *place, **more)

        warnings.showwarning = show
        yield


@contextmanager
def _notes_to(console: Console) -> Iterator[None]:
    """Print messages that reading tables logs, with the command's options."""

    class Notes(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            console.print(f"note: {escape(in_flags(record.getMessage()))}", soft_wrap=True)

    logger, handler = logging.getLogger("fedscaffold.data"), Notes()
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
