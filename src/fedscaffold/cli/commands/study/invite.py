"""`fedscaffold study invite`: an invitation for a site."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedscaffold.cli.errors import refusals
from fedscaffold.flower.study.invite import write_invites

EXAMPLES = "Example:\n\n  fedscaffold study invite cancer.toml bonn graz"


def command(
    file: Annotated[Path, typer.Argument(metavar="STUDY.toml", help="The study's file.")],
    site: Annotated[list[str], typer.Argument(metavar="SITE...", help="Names of sites, as in the file.")],
) -> None:
    """Write invitations: small files with the study's address, its certificate and what it asks for.

    An invitation holds no secret: who may take part is decided by `fedscaffold study accept`.
    """
    with refusals(interrupted="some invitations may be missing"):
        written = write_invites(file, site)
    for path in written:
        Console(highlight=False).print(f"{path}", soft_wrap=True, markup=False)
