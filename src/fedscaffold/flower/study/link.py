"""The coordinator's processes: a SuperLink and the run that conducts the study, started again when they end."""

import json
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.files import exclusive, json_value, write_text
from fedscaffold.federation.audit import AuditLog
from fedscaffold.federation.study.journal import private_folder
from fedscaffold.federation.study.report.status import STATUS, StudyStatus, study_status
from fedscaffold.flower.keys import key_in_hexadecimal
from fedscaffold.flower.processes import (
    FederationFailed,
    descendants,
    end_of,
    end_process,
    flower_environment,
    kill_all,
    program,
    start_bound,
    wait_for_port,
    wait_until_free,
    write_connection,
)
from fedscaffold.flower.study.app import EVENTS, FOLDER_KEY, KEYS, SAVED, STUDY
from fedscaffold.flower.study.invite import coordinator_files
from fedscaffold.flower.study.study_file import StudyFile, StudyFolder

POLL_INTERVAL = 0.3  # seconds between two looks at how the study stands
MOST_FAILURES = 3  # starts in a row without any progress, of processes that end by themselves
MOST_KILLS = 20  # and of processes that somebody kills, as a system does that is short of memory
FREE_SECONDS = 30.0  # for the SuperLink of a coordinator that was killed to end
STOP_SECONDS = 10.0  # for processes to end
CONNECTION, MODULE = "study", "fedscaffold_study"
LOOPBACK = ("127.0.0.1", "localhost", "::1")
PYPROJECT = f"""[project]
name = "fedscaffold-study"
version = "1.0.0"
description = "A study over sites that keep their tables"
license = "BSD-3-Clause"
dependencies = []

[tool.flwr.app]
publisher = "fedscaffold"

[tool.flwr.app.components]
serverapp = "{MODULE}:server"
clientapp = "{MODULE}:client"

[tool.flwr.app.config]
{FOLDER_KEY} = ""
"""
APP = """from fedscaffold.flower.study import app

client = app.client
server = app.server
"""


class CoordinatorLink:
    """Runs a study as the coordinator, in a folder from which it goes on after any stop.

    Parameters
    ----------
    file
        STUDY.toml.
    folder
        The coordinator's folder for exchanges, logs and the result.
    tell
        Is told, in a sentence, what happens.
    """

    def __init__(self, file: Path, folder: Path, tell: Callable[[str], None]) -> None:
        self.study, self.keys, self.tell = StudyFile.load(file), StudyFolder(file), tell
        self.folder = folder.resolve()
        self.certificates, _ = coordinator_files(self.study, self.keys)
        self._link: subprocess.Popen[bytes] | None = None
        self._run: subprocess.Popen[bytes] | None = None
        self._registered: set[str] = set()  # keys that the SuperLink knows

    def run(self, each: Callable[[StudyStatus], None] = lambda status: None) -> StudyStatus:
        """Run until the study is finished, or stopped for a reason that its status tells.

        Parameters
        ----------
        each
            each(status) is called whenever the status changes.
        """
        with exclusive(private_folder(self.folder) / "coordinator.lock", f"the study's folder {self.folder}"):
            self._write_files()
            failures, before = 0, -1
            try:
                while True:
                    with suppress(FederationFailed):  # the SuperLink ended while it started
                        found = self._one_run(each)
                        if found is not None:
                            return found
                    done = self._status()
                    exchanges = 0 if done is None else done.exchanges
                    failures = 1 if exchanges > before else failures + 1
                    before = max(before, exchanges)
                    if failures >= (MOST_KILLS if self._was_killed() else MOST_FAILURES):
                        raise FederationFailed(f"the study's processes end again and again:\n{self._log_ends()}")
                    self.tell("a process of the coordinator ended; starting it again")
                    self.close()
                    time.sleep(1.0)
            finally:
                self.close()

    def close(self) -> None:
        """End the run and the SuperLink."""
        started = [process for process in (self._run, self._link) if process is not None]
        own = descendants([process.pid for process in started])
        for process in started:
            end_process(process, seconds=STOP_SECONDS)
        kill_all(own)  # the SuperLink detaches what conducts the study
        self._run = self._link = None

    @property
    def _flower(self) -> Path:
        return self.folder / "flower"

    def _write_files(self) -> None:
        """What the run reads; refused if the folder belongs to another study."""
        study = self.study
        described: dict[str, Any] = {
            "name": study.name,
            "settings": study.settings.to_json(),
            "sites": list(study.sites),
            "signing_key": str(self.keys.signing_key),
        }
        changeable = {"missing": study.missing, "timeout": study.timeout}
        file = self.folder / STUDY
        if file.exists():
            try:
                earlier = json_value(file.read_bytes())
                same = all(earlier[name] == value for name, value in described.items())
            except (OSError, ValueError, KeyError, TypeError):
                same = False
            if not same:
                raise InvalidInput(
                    f"{self.folder} has a study with other settings, sites or keys; choose another folder"
                )
        app = private_folder(self._flower) / "app"
        app.mkdir(exist_ok=True)
        (app / "pyproject.toml").write_text(PYPROJECT, encoding="utf-8")
        (app / f"{MODULE}.py").write_text(APP, encoding="utf-8")
        write_text(file, json.dumps({**described, **changeable}, indent=1))
        self._write_keys()

    def _write_keys(self) -> dict[str, str]:
        accepted = {site: key for site, key in self.keys.accepted().items() if site in self.study.sites}
        text = json.dumps(accepted, indent=1)
        file = self.folder / KEYS
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            write_text(file, text)
        return accepted

    def _one_run(self, each: Callable[[StudyStatus], None]) -> StudyStatus | None:
        """Start the processes and follow them; the status at the end, None if a process ended before."""
        (self.folder / STATUS).unlink(missing_ok=True)
        self._start_link()
        events = _Tail(self.folder / EVENTS)
        self._start_run()
        shown = None
        while True:
            self._register(self._write_keys())
            status, running = self._status(), self._is_running()
            if status is not None and status != shown:
                shown = status
                each(status)
            for event in events.read():
                if event.get("event") == SAVED and status is not None:
                    return status
                self.tell(str(event.get("text", "")))
            if status is not None and status.state == "stopped":
                return status
            if not running:
                return None
            time.sleep(POLL_INTERVAL)

    def _is_running(self) -> bool:
        return all(process is not None and process.poll() is None for process in (self._link, self._run))

    def _was_killed(self) -> bool:
        """Whether a signal of somebody else ended one of the processes."""
        return any(process is not None and (process.poll() or 0) < 0 for process in (self._link, self._run))

    def _status(self) -> StudyStatus | None:
        return study_status(self.folder) if (self.folder / STATUS).exists() else None

    def _start_link(self) -> None:
        study, files = self.study, self.certificates
        wait_until_free(study.port, seconds=FREE_SECONDS)
        for file in self._flower.glob("superlink.db*"):  # may be half written; keys are registered again
            file.unlink()
        self._registered.clear()
        listen = study.host if study.host in LOOPBACK else "0.0.0.0"
        arguments = [
            program("flower-superlink"), "--host", listen, "--port", str(study.port), "--database",
            str(self._flower / "superlink.db"), "--disable-runtime-dependency-installation",
            "--enable-supernode-auth", "--ssl-ca-certfile", str(files.authority), "--ssl-certfile",
            str(files.certificate), "--ssl-keyfile", str(files.key),
        ]  # fmt: skip
        log = self._flower / "superlink.log"
        environment = {
            **flower_environment(self._flower / "home-link"),
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
        }
        link = start_bound(arguments, log=log, environment=environment, folder=self._flower)
        self._link = link
        wait_for_port(
            "127.0.0.1", study.port, "the SuperLink", lambda: link.poll() is None,
            lambda: log.read_text(encoding="utf-8", errors="replace"),
        )  # fmt: skip
        self.tell(f"SuperLink on {study.address} with TLS; nodes need accepted keys")

    def _start_run(self) -> None:
        home = self._flower / "home-user"
        write_connection(home, CONNECTION, f"127.0.0.1:{self.study.port}", self.certificates.authority)
        words = [
            program("flwr"), "run", str(self._flower / "app"), CONNECTION, "--stream", "--run-config",
            f'{FOLDER_KEY}="{self.folder}"',
        ]  # fmt: skip
        self._run = start_bound(
            words, log=self._flower / "run.log", environment=flower_environment(home), folder=self._flower
        )

    def _register(self, keys: Mapping[str, str]) -> None:
        """Let the SuperLink know the keys that were accepted and that it does not know yet."""
        new = {site: key for site, key in keys.items() if key not in self._registered}
        if not new:
            return
        import httpx
        from flwr.proto.control_pb2 import RegisterNodeRequest
        from flwr.supercore.control import ControlHttpClient
        from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

        authority = self.certificates.authority.read_bytes()
        client = ControlHttpClient.from_server_address(
            f"127.0.0.1:{self.study.port}", False, authority, [RuntimeVersionHttpInterceptor("flwr CLI")]
        )
        try:
            for site, key in new.items():
                pem = bytes.fromhex(key_in_hexadecimal(key))
                try:
                    client.RegisterNode(RegisterNodeRequest(public_key=pem, name=site))
                except httpx.HTTPStatusError as error:
                    raise FederationFailed(f"the SuperLink refuses the key of site {site}: {error}") from None
                self._registered.add(key)
        except httpx.TransportError:  # the SuperLink ended, which whoever follows it notices
            return
        finally:
            client.close()

    def _log_ends(self) -> str:
        logs = [self._flower / name for name in ("superlink.log", "run.log")]
        return "\n".join(end_of(log.read_text(errors="replace")) for log in logs if log.exists())


class _Tail:
    """The entries of a log that are added after this was made."""

    def __init__(self, path: Path) -> None:
        self.log, self.seen = AuditLog(path), sum(1 for _ in AuditLog(path).read())

    def read(self) -> list[dict[str, Any]]:
        entries = list(self.log.read())[self.seen :]
        self.seen += len(entries)
        return entries
