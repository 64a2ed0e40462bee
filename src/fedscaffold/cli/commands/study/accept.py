"""`fedscaffold study accept`: which nodes may take part."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedscaffold.cli.errors import refusals
from fedscaffold.core.errors import InvalidInput
from fedscaffold.flower.study.invite import fingerprint, public_key_of
from fedscaffold.flower.study.study_file import StudyFile, StudyFolder

EXAMPLES = "Example:\n\n  fedscaffold study accept cancer.toml bonn.pub graz.pub"


def command(
    file: Annotated[Path, typer.Argument(metavar="STUDY.toml", help="The study's file.")],
    key: Annotated[list[str], typer.Argument(metavar="KEY...", help="The files SITE.pub that sites sent.")],
    replace: Annotated[bool, typer.Option(help="Accept a new key of a site that has one.")] = False,
) -> None:
    """Accept the keys of sites: from now on their nodes may connect, also while the study runs.

    Compare the fingerprint with the one that the site was shown, over the telephone for example: a key may have
    been exchanged on its way.
    """
    console = Console(highlight=False)
    with refusals(interrupted="some keys may be missing"):
        study, folder = StudyFile.load(file), StudyFolder(file)
        accepted = folder.accepted()
        found = dict(public_key_of(each) for each in key)
        problems = [
            f"{file} has no site called {site}; its sites are {', '.join(study.sites)}"
            for site in found
            if site not in study.sites
        ]
        if not replace:
            problems += [
                f"site {site} has another key already; --replace accepts the new one in its place"
                for site, one in found.items()
                if accepted.get(site, one) != one
            ]
        both = {**accepted, **found}
        if len({fingerprint(one) for one in both.values()}) < len(both):
            problems.append("two sites have the same key")
        if problems:
            raise InvalidInput("; ".join(problems))
        for site, one in found.items():
            folder.accept(site, one)
            console.print(f"accepted {site}, whose key has the fingerprint {fingerprint(one)}", soft_wrap=True)
    waiting = [site for site in study.sites if site not in folder.accepted()]
    console.print(
        f"not accepted yet: {', '.join(waiting)}" if waiting else "all sites are accepted", soft_wrap=True
    )
