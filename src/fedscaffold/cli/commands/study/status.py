"""`fedscaffold study status`: how a study stands."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from fedscaffold.cli.commands.status import EXIT_CODES
from fedscaffold.cli.errors import refusals
from fedscaffold.core.storage.fields import shown
from fedscaffold.federation.study.report.status import StudyStatus, study_status

EXAMPLES = (
    "Examples:\n\n"
    "  fedscaffold study status cancer\n\n"
    "  fedscaffold study status cancer --json\n\n"
    "Exit codes: 0 the study has finished, 1 it was stopped by an error or killed, 2 this is no study's folder, "
    "3 it is running."
)


def command(
    folder: Annotated[Path, typer.Argument(help="The folder that was given to `study run --out`.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say how a study stands: its phase, the error against the tolerance, which sites are there or refused."""
    with refusals(interrupted="nothing was changed"):
        found = study_status(folder)
        if as_json:
            typer.echo(json.dumps(found.to_json(), ensure_ascii=True))
        else:
            Console(highlight=False).print(_table(found))
    raise typer.Exit(EXIT_CODES[found.state])


def _table(found: StudyStatus) -> Table:
    table = Table(title=f"study {found.name}", show_header=False)
    table.add_row("state", found.state)
    table.add_row("phase", found.phase)
    table.add_row("exchanges", f"{found.exchanges:,}")
    if found.current_error is not None:
        table.add_row("error", f"{found.current_error:.2g} (tolerance {found.tolerance})")
    for name, site in found.sites.items():
        table.add_row(f"site {name}", site.state + (f": {shown(site.why, longest=300)}" if site.why else ""))
    for one in found.refused:
        table.add_row(f"refused {shown(one['who'])}", shown(one["why"], longest=300))
    if found.error:
        table.add_row("stopped by", shown(found.error, longest=500))
    return table
