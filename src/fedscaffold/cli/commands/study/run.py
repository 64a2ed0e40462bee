"""`fedscaffold study run`: the coordinator conducts the study."""

import signal
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedscaffold.cli.commands.study.progress import ProgressLines, print_result
from fedscaffold.cli.commands.study.signals import ended_by_signal
from fedscaffold.cli.errors import FAILED, RESUMABLE, refusals

EXAMPLES = "Example:\n\n  fedscaffold study run cancer.toml --out cancer"


def command(
    file: Annotated[Path, typer.Argument(metavar="STUDY.toml", help="The study's file.")],
    out: Annotated[Path, typer.Option(help="Folder for the model, the report and everything the study keeps.")],
) -> None:
    """Conduct the study: wait for the sites, agree, train, certify, evaluate, report.

    Goes on after any stop, by Ctrl-C, a crash or a reboot, when the same command is given again. Who is waited for
    is said every minute.
    """
    console = Console(highlight=False)

    def tell(sentence: str) -> None:
        console.print(f"{datetime.now():%H:%M:%S} {sentence}", soft_wrap=True, markup=False)

    with refusals(interrupted=RESUMABLE), ended_by_signal(signal.SIGTERM, signal.SIGHUP):
        from fedscaffold.flower.study.link import CoordinatorLink

        link = CoordinatorLink(file, out, tell)
        found = link.run(ProgressLines(tell))
    print_result(found, out, console)
    if found.state == "stopped":
        raise typer.Exit(FAILED)
