"""A Flower federation of real processes on this machine: SuperLink, SuperNodes, TLS and node authentication."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from fedscaffold.core.errors import FedScaffoldError
from fedscaffold.core.imports import missing_extra
from fedscaffold.flower.certificates import make_certificates, make_key
from fedscaffold.flower.study.run import flower_environment, free_port

ADDRESS = "127.0.0.1"
NAME = "loopback"
START_TIMEOUT = 60.0  # seconds for a process to open its port
STOP_TIMEOUT = 10.0  # seconds for a process to end after SIGTERM


class FederationFailed(FedScaffoldError):
    """A process of the federation ended or did not start; the message has the end of its log."""


@dataclass(frozen=True)
class _Process:
    """One process of this machine, identified by its number and the time when it started."""

    pid: int
    started: int
    parent: int = field(compare=False)
    ticks: int = field(compare=False)


def _all_processes() -> list[_Process]:
    """Return all processes of this machine, from /proc."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has just ended
            fields = stat.read_text().rpartition(")")[2].split()
            ticks = sum(int(each) for each in fields[11:15])
            found.append(_Process(int(stat.parent.name), int(fields[19]), int(fields[1]), ticks))
    return found


class Loopback:
    """SuperLink and SuperNodes as separate processes, all ended on leaving the context.

    Everything is in `folder`: certificates, keys, logs, the SuperLink's database, and one folder for each node.
    Nothing leaves the machine: no telemetry, no search for updates, no installation of packages.

    Parameters
    ----------
    folder
        An empty or new folder.
    nodes
        The configuration of each node, such as {"partition-id": 0, "state-dir": "/data/state"}.
    secure
        Whether to use TLS and to admit only nodes whose keys are registered. Without both for measurements alone.
    superlink_options
        Further options for `flower-superlink`, such as "--simulation".
    """

    def __init__(
        self,
        folder: Path,
        nodes: Sequence[Mapping[str, str | int]],
        *,
        secure: bool = True,
        superlink_options: Sequence[str] = (),
    ) -> None:
        self.folder, self.nodes, self.secure = folder.resolve(), list(nodes), secure
        self.superlink_options = list(superlink_options)
        self.port = free_port()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            if self.secure:
                self.certificates = make_certificates(self.folder)
                self.keys = [make_key(self.folder, f"node-{k}") for k in range(len(self.nodes))]
            trust = f'root-certificates = "{self.certificates.authority}"' if self.secure else "insecure = true"
            home = self.folder / "homes" / "user"
            home.mkdir(parents=True, exist_ok=True)
            address = f'[superlink.{NAME}]\naddress = "{ADDRESS}:{self.port}"\n{trust}\n'
            text = f'[superlink]\ndefault = "{NAME}"\n\n{address}'  # where `flwr` finds the SuperLink
            (home / "config.toml").write_text(text, encoding="utf-8")
            self.start_superlink()
            if self.secure:
                for k, (_, public) in enumerate(self.keys):
                    self.flwr("supernode", "register", str(public), NAME, "--name", f"node-{k}")
            for k in range(len(self.nodes)):
                self.start_node(k)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all processes: nodes first, then the SuperLink; kill processes that ignore SIGTERM."""
        own = self._descendants()
        nodes = [process for name, process in self._processes.items() if name != "superlink"]
        link = [process for name, process in self._processes.items() if name == "superlink"]
        for group in (nodes, link):
            for process in group:
                self._signal(process, signal.SIGTERM)
            end = time.monotonic() + STOP_TIMEOUT
            for process in group:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.1, end - time.monotonic()))
                self._signal(process, signal.SIGKILL)
                process.wait()
        self._processes.clear()
        for found in set(_all_processes()) & set(own):  # the SuperLink detaches processes that run servers
            with suppress(ProcessLookupError):
                os.kill(found.pid, signal.SIGKILL)

    def start_superlink(self) -> None:
        """Start the SuperLink; started again, it finds runs and keys in its database."""
        arguments = ["--host", ADDRESS, "--port", str(self.port), "--disable-runtime-dependency-installation"]
        arguments += ["--database", str(self.folder / "superlink.db"), *self.superlink_options]
        if self.secure:
            files = self.certificates
            arguments += ["--ssl-ca-certfile", str(files.authority), "--ssl-certfile", str(files.certificate)]
            arguments += ["--ssl-keyfile", str(files.key), "--enable-supernode-auth"]
        else:
            arguments += ["--insecure"]
        self._start("superlink", "flower-superlink", arguments)
        end = time.monotonic() + START_TIMEOUT
        while time.monotonic() < end and self.is_running("superlink"):
            with socket.socket() as probe:
                probe.settimeout(1.0)
                if probe.connect_ex((ADDRESS, self.port)) == 0:
                    return
            time.sleep(0.1)
        raise FederationFailed(f"the SuperLink did not open its port:\n{_end_of(self.log('superlink'))}")

    def start_node(self, k: int, *, key: Path | None = None, name: str | None = None) -> str:
        """Start node k, with another key if one is given; return the name of its process and log."""
        name = name or f"node-{k}"
        config = " ".join(f"{key}={_toml(value)}" for key, value in self.nodes[k].items())
        arguments = ["--superlink", f"{ADDRESS}:{self.port}", "--host", ADDRESS, "--port", str(free_port())]
        arguments += ["--node-config", config]
        if self.secure:
            private = key or self.keys[k][0]
            arguments += ["--root-certificates", str(self.certificates.authority)]
            arguments += ["--auth-supernode-private-key", str(private)]
        else:
            arguments += ["--insecure"]
        self._start(name, "flower-supernode", arguments)
        return name

    def kill(self, name: str) -> None:
        """Send SIGKILL to a process and to all processes that it started."""
        self._signal(self._processes[name], signal.SIGKILL)
        self._processes.pop(name).wait()

    def is_running(self, name: str) -> bool:
        """Return whether the process of that name still runs."""
        return name in self._processes and self._processes[name].poll() is None

    def log(self, name: str) -> str:
        """Return the log of a process so far."""
        return (self.folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")

    def processor_seconds(self) -> float:
        """Return the processor seconds of SuperLink, SuperNodes and all that they started; Linux only."""
        return sum(found.ticks for found in self._descendants()) / os.sysconf("SC_CLK_TCK")

    def flwr(self, *arguments: str) -> str:
        """Run a command of `flwr` and return its output."""
        words = [_program("flwr"), *arguments]
        done = subprocess.run(words, env=self.environment("user"), capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise FederationFailed(f"flwr {' '.join(arguments)} failed:\n{_end_of(done.stdout + done.stderr)}")
        return done.stdout

    def run(self, app: Path, config: Mapping[str, str | int | float] | None = None) -> subprocess.Popen[str]:
        """Start `flwr run` on an app, with its log as output; the run itself is the SuperLink's."""
        given = " ".join(f"{key}={_toml(value)}" for key, value in (config or {}).items())
        return subprocess.Popen(
            [_program("flwr"), "run", str(app), NAME, "--stream", *(["--run-config", given] if given else [])],
            env=self.environment("user"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
        )  # fmt: skip

    def environment(self, home: str) -> dict[str, str]:
        """Return the environment variables of a process with a separate Flower folder."""
        return flower_environment(self.folder / "homes" / home)

    def _start(self, name: str, command: str, arguments: list[str]) -> None:
        with open(self.folder / f"{name}.log", "ab") as log:
            self._processes[name] = subprocess.Popen(
                [_program(command), *arguments], env=self.environment(name), stdout=log, stderr=log,
                stdin=subprocess.DEVNULL, cwd=self.folder, start_new_session=True,
            )  # fmt: skip

    def _descendants(self) -> list[_Process]:
        """Return the federation's processes and all that they started; none if the system is not Linux."""
        running, size = _all_processes(), 0
        ours = {process.pid for process in self._processes.values()}
        while len(ours) > size:
            size = len(ours)
            ours |= {found.pid for found in running if found.parent in ours}
        return [found for found in running if found.pid in ours]

    @staticmethod
    def _signal(process: "subprocess.Popen[bytes]", number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)


def _toml(value: str | int | float) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


def _program(name: str) -> str:
    """Return the path of a program that is installed beside this Python, or elsewhere."""
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if found is None:
        raise missing_extra(f"{name} is not installed", extra="flower")
    return found


def _end_of(text: str) -> str:
    """Return the last lines of a log."""
    return "\n".join(text.strip().splitlines()[-15:])
