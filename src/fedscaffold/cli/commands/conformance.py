"""`fedscaffold conformance`: put an implementation of Scaffold, one's own or a published one, through checks."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from fedscaffold.cli.errors import FAILED, refusals
from fedscaffold.cli.options import AsJson, imported
from fedscaffold.conformance import check
from fedscaffold.conformance.adapters import LIBRARIES
from fedscaffold.conformance.environment import check_library, default_folder
from fedscaffold.core.checks import choice
from fedscaffold.core.errors import InvalidInput

EXAMPLES = (
    "Examples:\n\n"
    "  fedscaffold conformance --against declearn\n\n"
    "  fedscaffold conformance my_package.my_module:MyScaffold\n\n"
    "  fedscaffold conformance --against pfllib --source ../PFLlib\n\n"
    '  fedscaffold conformance --against nvflare --only "control variates sum to zero" --only "lost replies"\n\n'
    f"Libraries: {', '.join(LIBRARIES)}. Exit codes: 0 no check failed, 1 some did, 2 wrong options, or "
    "a library that could not be installed."
)


def command(
    implementation: Annotated[
        str | None,
        typer.Argument(help="Your own: module:Class, which takes a Task; see the page 'Is my Scaffold right?'."),
    ] = None,
    against: Annotated[
        str | None, typer.Option(help="A published library, in an environment that is made for it.")
    ] = None,
    source: Annotated[
        Path | None, typer.Option(help="A checkout of a library that is on no package index, such as pfllib.")
    ] = None,
    only: Annotated[list[str] | None, typer.Option(help="Run this check alone; may be repeated.")] = None,
    tolerance: Annotated[float, typer.Option(help="Distances up to this are zero; 1e-4 suits float32.")] = 1e-8,
    as_json: AsJson = False,
) -> None:
    """Put an implementation of Scaffold through checks whose answers are known exactly.

    An implementation of your own, or with --against a published one, in an environment that is made for it.
    """
    with refusals(interrupted="an environment that was being made is made again next time"):
        options: dict[str, Any] = {"tolerance": tolerance, "only": only or None}
        if (implementation is None) == (against is None):
            raise InvalidInput("give either module:Class of your own or --against a library")
        if against is not None:
            library = choice("against", against, tuple(LIBRARIES))
            report = check_library(library, folder=default_folder(), source=source, **options)
        else:
            module, _, name = str(implementation).partition(":")
            if not (module and name):
                raise InvalidInput(f"an implementation is given as module:Class, got {implementation!r}")
            report = check(imported("IMPLEMENTATION", module, name), **options)
        typer.echo(json.dumps(report.to_dict(), ensure_ascii=True) if as_json else str(report))
    raise typer.Exit(FAILED if report.failures else 0)
