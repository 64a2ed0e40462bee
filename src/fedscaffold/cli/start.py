"""Start of the program `fedscaffold`, and of Ctrl-C while parts of it are being loaded."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

INTERRUPTED = 130  # the exit code after Ctrl-C, as shells have it


def main() -> None:
    """Run the program; the entry point of the script `fedscaffold`."""
    with loading():
        from fedscaffold.cli.main import app
    try:
        app()
    except ImportError as error:  # of a command that needs an optional package, which is loaded when it is called
        from fedscaffold.core.errors import MissingDependency
        from fedscaffold.core.imports import missing_package

        known = missing_package(error)
        if not isinstance(known, MissingDependency):
            raise
        print(f"error: {known}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:  # before or after Click, which handles it otherwise
        raise SystemExit(INTERRUPTED) from None


@contextmanager
def loading() -> Iterator[None]:
    """Let Ctrl-C end the process at once and without a word while modules are being loaded.

    An exception there would be raised in the middle of some other library, which may print it, hide it or take it
    for a missing module. Python handles signals in its main thread alone; elsewhere nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _end(number: int, frame: FrameType | None) -> NoReturn:
    os._exit(INTERRUPTED)
