"""Errors and warnings as one sentence in the command line's words, and an exit code, without a traceback."""

import logging
import shlex
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import click
import typer
from rich.console import Console
from rich.markup import escape

from fedscaffold.core.errors import DataWarning, Diverged, FedScaffoldError, Message, Option

BAD_INPUT, FAILED, INTERRUPTED = 2, 1, 130
SHORT = {"n_clients": "clients"}  # what options are called whose parameters have longer names
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


def in_flags(message: Message) -> str:
    """A message with parameters spelled as the options of the command that runs."""
    context = click.get_current_context(silent=True)
    return message.told(lambda option: None if context is None else spelled(option, context.command))


def spelled(option: Option, command: click.Command) -> str | None:
    """A parameter as a command's option, such as --min-rows 1; None where the command lacks it."""
    names = (option.name, SHORT.get(option.name))
    found = next((one for one in command.params if one.name in names), None)
    if found is None:
        return None
    name = found.opts[0] if isinstance(found, click.Option) else found.make_metavar(click.Context(command))
    return name if option.value is ... or option.value is True else f"{name} {shlex.quote(_word(option.value))}"


def _word(value: Any) -> str:
    """A value as it is typed on a command line."""
    if isinstance(value, Mapping):
        value = [f"{name}={level}" for name, level in value.items()]
    if isinstance(value, list | tuple):
        return ",".join(f'"{each}"' if "," in str(each) else str(each) for each in value)
    return "full" if value is None else str(value)


@contextmanager
def _warnings_to(console: Console) -> Iterator[None]:
    """Print warnings of fedscaffold in the command line's words, those of other packages as usual."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", DataWarning)
        usual = warnings.showwarning

        def show(message: Warning | str, *place: Any, **more: Any) -> None:
            if isinstance(message, Message):
                console.print(f"[yellow]warning:[/yellow] {escape(in_flags(message))}", soft_wrap=True)
            else:
                usual(message, *place, **more)

        warnings.showwarning = show
        yield


@contextmanager
def _notes_to(console: Console) -> Iterator[None]:
    """Print what reading tables logs as information, in the command line's words."""

    class Notes(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if isinstance(record.msg, Message):
                console.print(f"note: {escape(in_flags(record.msg))}", soft_wrap=True)

    logger, handler = logging.getLogger("fedscaffold.data"), Notes()
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
