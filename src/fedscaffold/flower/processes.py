"""Processes of Flower on this machine: their ports, environment, start and end."""

import ctypes
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

END_WITH_PARENT = 1  # PR_SET_PDEATHSIG of Linux


def free_port() -> int:
    """Return a port of this machine on which no process listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def flower_environment(home: Path) -> dict[str, str]:
    """Return the environment variables of a process of Flower with a separate folder and without telemetry."""
    return {
        **os.environ,
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
    }


def start_bound(
    words: Sequence[str], *, log: Path, environment: Mapping[str, str], folder: Path
) -> "subprocess.Popen[bytes]":
    """Start a program that ends when this process does, also if that is killed (on Linux)."""
    with open(log, "ab") as output:
        return subprocess.Popen(
            list(words), env=dict(environment), stdout=output, stderr=output, stdin=subprocess.DEVNULL, cwd=folder,
            start_new_session=True, preexec_fn=_end_with_parent if sys.platform == "linux" else None,
        )  # fmt: skip


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(END_WITH_PARENT, signal.SIGTERM)


def end_process(process: "subprocess.Popen[bytes]", *, seconds: float) -> None:
    """End a process with its group: by SIGTERM, and after some seconds by SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
            return
