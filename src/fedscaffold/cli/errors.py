"""Errors as one sentence and an exit code, without a traceback."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.markup import escape

from fedscaffold.core.errors import Diverged, FedScaffoldError

BAD_INPUT, FAILED, INTERRUPTED = 2, 1, 130
RESUMABLE = "the same command resumes where it stopped"


@contextmanager
def refusals(*, interrupted: str) -> Iterator[None]:
    """Print errors as one sentence; bad input exits with 2, divergence with 1, Ctrl-C with 130 and the advice."""
    errors = Console(stderr=True, highlight=False)
    try:
        yield
    except Diverged as error:
        errors.print(f"[red]error:[/red] {escape(str(error))}", soft_wrap=True)
        raise typer.Exit(FAILED) from None
    except FedScaffoldError as error:
        errors.print(f"[red]error:[/red] {escape(str(error))}", soft_wrap=True)
        raise typer.Exit(BAD_INPUT) from None
    except KeyboardInterrupt:
        errors.print(f"interrupted; {interrupted}", soft_wrap=True)
        raise typer.Exit(INTERRUPTED) from None
