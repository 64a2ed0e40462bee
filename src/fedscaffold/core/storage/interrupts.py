"""Ctrl-C that waits until a short piece of work is done."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interrupts_delayed() -> Iterator[None]:
    """Let Ctrl-C wait for the end of the block, on the main thread.

    An archive that is interrupted while it is being opened cannot be closed: Python then prints a traceback of its
    own beside ours. A block that ends by an error raises that error, and Ctrl-C is forgotten.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    caught: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: caught.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)
    if caught:
        os.kill(os.getpid(), signal.SIGINT)
