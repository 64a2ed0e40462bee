"""`fedscaffold study run`: the coordinator conducts the study."""

import signal
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedscaffold.cli.commands.study.signals import ended_by_signal
from fedscaffold.cli.errors import FAILED, RESUMABLE, refusals
from fedscaffold.federation.study.report.status import StudyStatus

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
        found = link.run(_Progress(tell))
    if found.state == "stopped":
        Console(stderr=True, highlight=False).print(f"error: {found.error}", soft_wrap=True, markup=False)
        raise typer.Exit(FAILED)
    _print(found, out, console)


class _Progress:
    """Tells phases and errors when they change."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self.tell, self.phase, self.points, self.notes = tell, "", 0, 0

    def __call__(self, status: StudyStatus) -> None:
        if status.phase != self.phase:
            self.phase = status.phase
            self.tell(self.phase)
        for note in status.notes[self.notes :]:
            self.tell(note)
        self.notes = len(status.notes)
        if len(status.history) > self.points and status.current_error is not None:
            self.points = len(status.history)
            aim = "" if status.aim is None else f", the aim is {status.aim:.2g}"
            self.tell(f"exchange {status.rounds}: error {status.current_error:.2g}{aim}")


def _print(found: StudyStatus, out: Path, console: Console) -> None:
    summary = out / "summary.txt"
    if summary.exists():
        console.print(summary.read_text(encoding="utf-8"), soft_wrap=True, markup=False)
    console.print(f"Model, coefficients and report are in {out}; open {out / 'report.html'}", soft_wrap=True)
