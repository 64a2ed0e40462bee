"""A lock is held by one process or thread at a time, and by none once its process was killed."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fedscaffold.core.errors import InUse
from fedscaffold.core.files import exclusive

HOLD = """
import sys, time
from fedscaffold.core.files import exclusive
with exclusive(sys.argv[1], "the folder"):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_lock_is_exclusive_and_ends_with_its_block(tmp_path: Path) -> None:
    path = tmp_path / "new" / "lock"
    with (
        exclusive(path, "the folder x"),
        pytest.raises(InUse, match="the folder x is in use by another process"),
        exclusive(path, "the folder x"),
    ):
        pass
    with exclusive(path, "the folder x"):
        pass


def test_a_killed_process_holds_nothing(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    other = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    assert other.stdout.readline() == "held\n"
    with pytest.raises(InUse), exclusive(path, "the folder"):
        pass
    other.send_signal(signal.SIGKILL)
    with exclusive(path, "the folder", wait=10.0):
        pass
    other.wait()
    other.stdout.close()
