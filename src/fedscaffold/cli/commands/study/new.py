"""`fedscaffold study new`: the file of a study, and invitations for its sites."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fedscaffold.cli import table_options as tables
from fedscaffold.cli.errors import refusals
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.storage.files import write_text
from fedscaffold.federation.study.settings import StudySettings
from fedscaffold.flower.study.invite import write_invites
from fedscaffold.flower.study.study_file import (
    DEFAULT_ADDRESS,
    DEFAULT_TIMEOUT,
    StudyFile,
    split_names,
)

EXAMPLES = (
    "Examples:\n\n"
    "  fedscaffold study new cancer.toml\n\n"
    "  fedscaffold study new cancer.toml --target diagnosis --site bonn,graz,kiel --address study.example.org:9092"
)


def command(
    file: Annotated[Path, typer.Argument(metavar="STUDY.toml", help="The file to write.")],
    target: Annotated[str | None, typer.Option(help="The column to predict.")] = None,
    site: Annotated[list[str] | None, typer.Option(help="Names of sites; also writes their invitations.")] = None,
    kind: Annotated[str, typer.Option(help="logistic, ridge, poisson or gamma.")] = "logistic",
    name: Annotated[str | None, typer.Option(help="Name of the study.", show_default="the file's")] = None,
    features: tables.Features = None,
    ignore: Annotated[str | None, typer.Option(help="Columns that are not used, a,b,c.")] = None,
    categorical: tables.Categorical = None,
    classes: Annotated[
        str | None, typer.Option(help="Classes of the target, a,b; those told unless given.")
    ] = None,
    l2: tables.TablePenalty = None,
    tolerance: tables.Tolerance = str(StudySettings.tolerance),
    exposure: Annotated[str | None, typer.Option(help="Column of exposures, of counts and amounts.")] = None,
    offset: Annotated[str | None, typer.Option(help="Column of offsets.")] = None,
    weight: Annotated[str | None, typer.Option(help="Column of weights of rows.")] = None,
    missing: Annotated[str, typer.Option(help="Missing values: error, or mean.")] = "error",
    min_cell: Annotated[int, typer.Option(help="Sites tell no count below this.")] = StudySettings.min_cell,
    trainer: Annotated[str, typer.Option(help="auto, scaffold or newton.")] = "auto",
    evaluate: Annotated[float, typer.Option(help="Share of rows left out to judge the model; 0 for none.")] = 0.2,
    secure: tables.Secure = False,
    secure_threshold: tables.SecureThreshold = None,
    epsilon: tables.Epsilon = None,
    protect: tables.Protect = "rows",
    delta: tables.Delta = None,
    clip: tables.SiteClip = None,
    bounds: tables.BoundsFile = None,
    seed: tables.Seed = 0,
    missing_sites: Annotated[
        str, typer.Option(help="A site that is offline or cannot take part: wait, 'leave out', or error.")
    ] = "wait",
    timeout: Annotated[
        float, typer.Option(help="Seconds after which a silent site is left out.")
    ] = DEFAULT_TIMEOUT,
    address: Annotated[
        str | None, typer.Option(help="HOST:PORT under which sites reach you.", show_default=DEFAULT_ADDRESS)
    ] = None,
) -> None:
    """Write the file of a new study, with a comment for every line, and invitations for its sites.

    What is not given is asked for on a terminal. Everything can be changed in the file afterwards, until the study
    has begun.
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
        kinds: Any = kind
        others: dict[str, Any] = {
            "missing": missing, "trainer": trainer, "exposure": exposure, "offset": offset, "weight": weight,
            "epsilon": epsilon, "delta": delta, "clip": clip, "protect": protect,
            "bounds": tables.load_bounds(bounds),
        }  # fmt: skip
        settings = StudySettings(
            target=target, kind=kinds, features=tables.parse_names(features),
            ignore=tables.parse_names(ignore) or (), categorical=tables.parse_names(categorical) or (),
            classes=tables.parse_names(classes), l2="auto" if l2 is None else l2,
            tolerance=tables.parse_number(tolerance), min_cell=min_cell, evaluate=evaluate,
            seed=seed, secure=secure, secure_threshold=secure_threshold,
            **others,
        )  # fmt: skip
        absent: Any = missing_sites
        study = StudyFile(
            name=name or file.stem, settings=settings, sites=tuple(sites), missing=absent, timeout=timeout,
            address=address,
        )  # fmt: skip
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
    """Asks for what is missing where somebody can answer; else says which options are needed, all at once."""

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
