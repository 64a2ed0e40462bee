"""Processes of Flower on this machine: functions to find, start and end them."""

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from fedscaffold.core.errors import FedScaffoldError, InvalidInput
from fedscaffold.core.imports import missing_extra

START_TIMEOUT = 60.0  # seconds for a process to open its port
END_WITH_PARENT = 1  # PR_SET_PDEATHSIG of Linux


class FederationFailed(FedScaffoldError):
    """A process of the federation ended or did not start; the message has the end of its log."""


@dataclass(frozen=True)
class Process:
    """One process of this machine, identified by its number and the time when it started."""

    pid: int
    started: int
    parent: int = field(compare=False)
    ticks: int = field(compare=False)


def processes() -> list[Process]:
    """Return all processes of this machine, from /proc."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has just ended
            fields = stat.read_text().rpartition(")")[2].split()
            ticks = sum(int(each) for each in fields[11:15])
            found.append(Process(int(stat.parent.name), int(fields[19]), int(fields[1]), ticks))
    return found


def descendants(pids: Sequence[int]) -> list[Process]:
    """Return some processes and all that they started; none if the system is not Linux."""
    running = processes()
    ours, size = set(pids), 0
    while len(ours) > size:
        size = len(ours)
        ours |= {found.pid for found in running if found.parent in ours}
    return [found for found in running if found.pid in ours]


def kill_all(those: Sequence[Process]) -> None:
    """Kill the processes of a list that still run."""
    for found in set(processes()) & set(those):
        with suppress(ProcessLookupError):
            os.kill(found.pid, signal.SIGKILL)


def free_port() -> int:
    """Return a port of this machine on which no process listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def program(name: str) -> str:
    """Return the path of a program that is installed beside this Python, or elsewhere."""
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if found is None:
        raise missing_extra(f"{name} is not installed", extra="flower")
    return found


def end_of(text: str) -> str:
    """Return the last lines of a log."""
    return "\n".join(text.strip().splitlines()[-15:])


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


def write_connection(home: Path, name: str, address: str, authority: Path | None) -> None:
    """Write the file in which `flwr` finds the SuperLink's address."""
    home.mkdir(parents=True, exist_ok=True)
    trust = "insecure = true" if authority is None else f'root-certificates = "{authority}"'
    text = f'[superlink]\ndefault = "{name}"\n\n[superlink.{name}]\naddress = "{address}"\n{trust}\n'
    (home / "config.toml").write_text(text, encoding="utf-8")


def wait_for_port(host: str, port: int, name: str, is_running: Callable[[], bool], log: Callable[[], str]) -> None:
    """Wait until a process listens on a port; raise `FederationFailed` if it ends before, or takes too long."""
    end = time.monotonic() + START_TIMEOUT
    while time.monotonic() < end:
        if not is_running():
            raise FederationFailed(f"{name} ended at once:\n{end_of(log())}")
        if _listens(host, port):
            return
        time.sleep(0.1)
    raise FederationFailed(f"{name} did not open its port within {START_TIMEOUT:g} seconds:\n{end_of(log())}")


def wait_until_free(port: int, *, seconds: float) -> None:
    """Wait until no process listens on a port; raise if one still does after some seconds."""
    end = time.monotonic() + seconds
    while _listens("127.0.0.1", port):
        if time.monotonic() > end:
            raise InvalidInput(
                f"port {port} is used by another program; choose another one for the study's address"
            )
        time.sleep(0.2)


def _listens(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((host, port)) == 0


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
