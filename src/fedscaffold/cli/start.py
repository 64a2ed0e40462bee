"""Starts the program `fedscaffold`: loads its commands, which takes a second, and runs one of them."""

import os
import signal
from types import FrameType
from typing import NoReturn

INTERRUPTED = 130  # the exit code after Ctrl-C, as shells have it


def main() -> None:
    """The entry point of the `fedscaffold` script.

    Ctrl-C while modules are being loaded ends the process at once and without a word: an exception there would be
    raised in the middle of some other library, which may print it, hide it or take it for a missing module.
    """
    before = signal.signal(signal.SIGINT, _end)
    from fedscaffold.cli.main import app

    signal.signal(signal.SIGINT, before)
    app()


def _end(number: int, frame: FrameType | None) -> NoReturn:
    os._exit(INTERRUPTED)
