"""`fedscaffold study new`: the file of a study, and invitations for its sites."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedscaffold.cli import table_options as tables
from fedscaffold.cli.errors import refusals
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.files import write_text
from fedscaffold.flower.study.invite import write_invites
from fedscaffold.flower.study.study_file import DEFAULT_ADDRESS, StudyFile, split_names

EXAMPLES = (
    "Examples:\n\n"
    "  fedscaffold study new cancer.toml\n\n"
    "  fedscaffold study new cancer.toml --target diagnosis --site bonn,graz,kiel --address study.example.org:9092"
)


def command(
    file: Annotated[Path, typer.Argument(metavar="STUDY.toml", help="The file to write.")],
    target: Annotated[str | None, typer.Option(help="The column to predict.")] = None,
    site: Annotated[list[str] | None, typer.Option(help="Names of sites; also writes their invitations.")] = None,
    kind: tables.StudyKind = "logistic",
    l2: tables.TablePenalty = None,
    secure: tables.Secure = False,
    epsilon: tables.Epsilon = None,
    bounds: tables.BoundsFile = None,
    settings: tables.Settings = None,
    address: Annotated[
        str | None, typer.Option(help="HOST:PORT under which sites reach you.", show_default=DEFAULT_ADDRESS)
    ] = None,
) -> None:
    """Write the file of a new study, with a comment for every line, and invitations for its sites.

    On a terminal the command asks for missing values. Everything can be changed in the file until the
    study has begun.
    """
    with refusals(interrupted="nothing was written"):
        if file.exists():
            raise InvalidInput(f"{file} exists; give the name of a new file")
        asked = _Questions()
        target = target or asked.text("Which column is to be predicted?", "--target")
        sites = split_names(site) or split_names(
            [asked.text("Names of the sites, with commas between?", "--site")]
        )
        address = address or asked.text("Under which HOST:PORT do sites reach you?", None, DEFAULT_ADDRESS)
        asked.finish()
        chosen = tables.study_settings(
            settings, target=target, kind=kind, l2=l2, secure=secure, epsilon=epsilon,
            bounds=tables.load_bounds(bounds),
        )  # fmt: skip
        study = StudyFile(name=file.stem, settings=chosen, sites=tuple(sites), address=address)
        write_text(file, study.text())
        invites = write_invites(file, list(sites))
    console = Console(highlight=False)
    console.print(f"{file}: change what you like, then send each site its invitation:", soft_wrap=True)
    for path in invites:
        console.print(f"  {path}", soft_wrap=True, markup=False)
    console.print(
        "A site joins with: fedscaffold study join INVITATION --data TABLE", soft_wrap=True, markup=False
    )


class _Questions:
    """Questions for missing options on a terminal; without one, an error that lists all of them."""

    def __init__(self) -> None:
        self.terminal = sys.stdin.isatty() and sys.stdout.isatty()
        self.needed: list[str] = []

    def text(self, question: str, option: str | None, default: str | None = None) -> str:
        if self.terminal:
            return str(typer.prompt(question, default=default))
        if option is not None:
            self.needed.append(option)
        return default or ""

    def finish(self) -> None:
        if self.needed:
            raise InvalidInput(f"give {' and '.join(self.needed)}; on a terminal they are asked for")
