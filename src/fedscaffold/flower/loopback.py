"""A Flower federation of real processes on this machine: SuperLink, SuperNodes, TLS and node authentication."""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from fedscaffold.flower.certificates import make_certificates, make_key
from fedscaffold.flower.processes import (
    FederationFailed,
    Process,
    descendants,
    end_of,
    flower_environment,
    free_port,
    kill_all,
    program,
    wait_for_port,
    write_connection,
)

ADDRESS = "127.0.0.1"
NAME = "loopback"
STOP_TIMEOUT = 10.0  # seconds for a process to end after SIGTERM


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
            self._configure()
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
        kill_all(own)  # the SuperLink detaches what runs servers

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
        self._wait_for("superlink", self.port)

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
        done = subprocess.run(
            [program("flwr"), *arguments],
            env=self.environment("user"),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise FederationFailed(f"flwr {' '.join(arguments)} failed:\n{end_of(done.stdout + done.stderr)}")
        return done.stdout

    def run(self, app: Path, config: Mapping[str, str | int | float] | None = None) -> subprocess.Popen[str]:
        """Start `flwr run` on an app, with its log as output; the run itself is the SuperLink's."""
        given = " ".join(f"{key}={_toml(value)}" for key, value in (config or {}).items())
        return subprocess.Popen(
            [program("flwr"), "run", str(app), NAME, "--stream", *(["--run-config", given] if given else [])],
            env=self.environment("user"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
        )  # fmt: skip

    def environment(self, home: str) -> dict[str, str]:
        """Return the environment variables of a process with a separate Flower folder."""
        return flower_environment(self.folder / "homes" / home)

    def _configure(self) -> None:
        """Write the file in which `flwr` finds the SuperLink's address."""
        authority = self.certificates.authority if self.secure else None
        write_connection(self.folder / "homes" / "user", NAME, f"{ADDRESS}:{self.port}", authority)

    def _start(self, name: str, command: str, arguments: list[str]) -> None:
        with open(self.folder / f"{name}.log", "ab") as log:
            self._processes[name] = subprocess.Popen(
                [program(command), *arguments], env=self.environment(name), stdout=log, stderr=log,
                stdin=subprocess.DEVNULL, cwd=self.folder, start_new_session=True,
            )  # fmt: skip

    def _wait_for(self, name: str, port: int) -> None:
        wait_for_port(ADDRESS, port, name, lambda: self.is_running(name), lambda: self.log(name))

    def _descendants(self) -> list[Process]:
        return descendants([process.pid for process in self._processes.values()])

    @staticmethod
    def _signal(process: "subprocess.Popen[bytes]", number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)


def _toml(value: str | int | float) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)
