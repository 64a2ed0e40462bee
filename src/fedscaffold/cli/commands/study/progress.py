"""How a study's progress and result are printed."""

from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from fedscaffold.federation.study.report.status import StudyStatus


class ProgressLines:
    """Tells phases, decisions and errors of a study when they change.

    Parameters
    ----------
    tell
        Prints a sentence.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self.tell, self.phase, self.points, self.notes = tell, "", 0, 0

    def __call__(self, status: StudyStatus) -> None:
        """Tell what is new in a status."""
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


def print_result(found: StudyStatus, out: Path, console: Console, *, kept: bool = True) -> None:
    """Print the coefficients and where everything is, or why the study stopped."""
    if found.state == "stopped":
        Console(stderr=True, highlight=False).print(f"error: {found.error}", soft_wrap=True, markup=False)
        return
    summary = out / "summary.txt"
    if summary.exists():
        console.print(summary.read_text(encoding="utf-8"), soft_wrap=True, markup=False)
    if kept:
        told = f"Model, coefficients and report are in {out}; open {out / 'report.html'}"
        console.print(told, soft_wrap=True, markup=False)
