"""Conduct a study as its coordinator, over the network or by files, or with a process for each site."""

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from fedscaffold.core.errors import CheckpointMismatch, FedScaffoldError, InUse, InvalidInput
from fedscaffold.core.files import folder_at, write_text
from fedscaffold.data.files import existing_file, is_parquet, read_table
from fedscaffold.data.tables import check_names, labels, load_pyarrow, pick_all, some
from fedscaffold.federation.messages import Payload
from fedscaffold.federation.study.plan import SITE_NAME, StudySettings
from fedscaffold.federation.study.site import DOCUMENT, KIND
from fedscaffold.federation.study.status import StatusBoard
from fedscaffold.federation.study.study import Study, conduct
from fedscaffold.federation.study.transport import PostTransport, RemoteTransport, private_folder
from fedscaffold.federation.verify import begin_bundle, save_result
from fedscaffold.flower.study.study_file import STOPPED, RunSettings, StudyFile, StudyFolder, write_invites
from fedscaffold.models.fit import Fit

END_WITH_PARENT = 1  # PR_SET_PDEATHSIG of Linux
KEY_INTERVAL = 1.0  # seconds between two looks for keys that were accepted meanwhile
STOP_SECONDS = 5.0  # for sites to learn that a study has stopped
MAX_SITES = 16  # each is a process
JOIN_SECONDS = 120.0  # for a site's process to check its table and make its key
LEAVE_SECONDS = 30.0  # for a site to write its page after the study
TIMEOUT = 300.0  # seconds that a site has to answer
MAIN = "from fedscaffold.cli.start import main; main()"
WIDEST = 36  # characters of a site's name, and four for "site"


def conduct_study(
    file: Path,
    out: Path,
    *,
    shared: Path | None = None,
    say: Callable[[str], None] = lambda sentence: None,
    board_of: Callable[[StatusBoard], Any] = lambda board: board,
) -> Fit:
    """Conduct the study of a file, or go on with it; the result is written to the coordinator's folder.

    Parameters
    ----------
    file
        STUDY.toml.
    out
        The coordinator's folder.
    shared
        A folder by which messages travel as files; None for the network.
    say
        Called with a sentence about whatever happens.
    board_of
        Wraps the board that shows how the study stands.

    Raises
    ------
    FedScaffoldError
        If the study stops; a message about it goes to the sites that can be reached.
    """
    study, folder = StudyFile.load(file), StudyFolder(file)
    private_folder(out)  # a folder that cannot be made is an error before any site is waited for
    if shared is not None:
        folder_at(shared)
    keys = _all_keys(study, folder, say)
    begin_bundle(out, study.plan, keys)
    board = board_of(StatusBoard(out, study.plan))
    more: dict[str, Any] = {
        "sites": study.plan.sites, "keys": keys, "signer": folder.signer(), "timeout": study.run.patience,
        "linger": study.run.linger,
        "say": say, "on_site": board.site,
    }  # fmt: skip
    with ExitStack() as stack:
        transport: RemoteTransport
        if shared is not None:
            transport = PostTransport(shared / study.plan.name, **more)
        else:
            from fedscaffold.flower.study.fleet import FleetServer, FlowerTransport

            certificates = folder.certificates(study.run.host)
            server = FleetServer(
                host=study.run.listen, port=study.run.port, certificates=certificates, log=out / "flower.log"
            )
            transport = FlowerTransport(stack.enter_context(server), **more)
            say(f"listening on {study.run.address} with TLS, for {len(keys)} accepted keys")
        try:
            return conduct(
                study.plan, transport, keys=keys, folder=out, board=board,
                save=lambda result: save_result(out, result),
            )  # fmt: skip
        except (InUse, CheckpointMismatch):
            raise
        except FedScaffoldError as error:
            document = json.dumps({"study": study.plan.name, STOPPED: f"the study has stopped: {error}"})
            last = Payload({KIND: "result", DOCUMENT: document})
            transport.linger = STOP_SECONDS
            transport.deliver(dict.fromkeys(study.plan.sites, last))
            raise


def _all_keys(study: StudyFile, folder: StudyFolder, say: Callable[[str], None]) -> dict[str, str]:
    """Return the keys of all sites, once they are accepted; raise if some are not and absent is "error"."""
    said: list[str] = []
    while True:
        keys = folder.accepted()
        missing = [site for site in study.plan.sites if site not in keys]
        if not missing:
            return {site: keys[site] for site in study.plan.sites}
        sentence = f"no key has been accepted yet of {', '.join(missing)}"
        if study.run.absent == "error":
            raise InvalidInput(f"{sentence}; `fedscaffold study accept` accepts keys")
        if missing != said:
            say(f"{sentence}; waiting")
            said = missing
        time.sleep(KEY_INTERVAL)


def site_files(
    files: Sequence[Path],
    client: str | None,
    folder: Callable[[], Path],
    columns: Iterable[str] = (),
) -> dict[str, Path]:
    """Return a table for each site: the files themselves, or the parts of one file, split by the column `client`.

    Parts are written to `folder()`, which is not called before everything has been checked. One file to split must
    have the `columns`; sites with separate files check theirs themselves.
    """
    for file in files:
        is_parquet(existing_file(file))
    if client is not None:
        if len(files) != 1:
            raise InvalidInput(
                "--client splits one file; give one file, or leave --client out and give one per site"
            )
        return _split(read_table(files[0]), client, folder, columns)
    if len(files) < 2:
        raise InvalidInput("a study has two sites or more: give one file per site, or --client to split one")
    _check_number(len(files))
    names = [_site_name(file.name.split(".")[0]) for file in files]
    if len(set(names)) < len(names):
        raise InvalidInput(f"files must have different names, got {some(names)}")
    return dict(sorted(zip(names, (file.resolve() for file in files), strict=True)))


def _split(table: Any, column: str, folder: Callable[[], Path], columns: Iterable[str]) -> dict[str, Path]:
    pa = load_pyarrow()
    import pyarrow.compute as compute
    from pyarrow import parquet

    check_names(table.schema.names)
    owner, *_ = pick_all(table.schema.names, (column, *columns))
    named = pa.chunked_array([labels(owner, chunk) for chunk in table.column(owner).chunks])
    if named.null_count:
        raise InvalidInput(f"the client column {column!r} has {named.null_count} missing values; fill them first")
    values = sorted(named.unique().to_pylist())
    _check_number(len(values))
    names = [_site_name(str(value)) for value in values]
    if len(set(names)) < len(names):
        names = [f"site-{k + 1}" for k in range(len(values))]
    found = {}
    for name, value in zip(names, values, strict=True):
        part = table.filter(compute.equal(named, pa.scalar(value, named.type))).drop_columns([owner])
        found[name] = folder() / f"{name}.parquet"
        parquet.write_table(part, found[name])
    return found


def _check_number(count: int) -> None:
    if not 2 <= count <= MAX_SITES:
        raise InvalidInput(
            f"this runs 2 to {MAX_SITES} sites on one machine, here are {count}; `fedscaffold fit` simulates any "
            "number"
        )


def _site_name(text: str) -> str:
    """Return a name that sites may have, from any text."""
    name = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in text)[:WIDEST]
    return name if SITE_NAME.fullmatch(name) else f"site{name}"[:WIDEST]


class LocalStudy:
    """A study with processes of this machine, one for each site, which end with it.

    The folder gets coordinator/, and sites/ with a folder for each.
    """

    def __init__(
        self, folder: Path, tables: Mapping[str, Path], settings: StudySettings, say: Callable[[str], None]
    ) -> None:
        counted = settings.epsilon is not None  # a budget of rows needs their number
        first = {
            site: read_table(path) if counted or not k else None for k, (site, path) in enumerate(tables.items())
        }
        chosen = {name: getattr(settings, name) for name in settings.model_fields_set}
        self.plan = Study(**chosen).plan_for(first)
        self.folder, self.tables, self.say = private_folder(folder).resolve(), tables, say
        self.out = self.folder / "coordinator" / "out"
        self._sites: dict[str, subprocess.Popen[bytes]] = {}

    def run(self, **more: Any) -> Fit:
        """Invite, join, accept and conduct; see `conduct_study` for further arguments."""
        file = private_folder(self.folder / "coordinator") / "study.toml"
        address = f"127.0.0.1:{free_port()}"
        settings = RunSettings(address=address, absent="error", timeout=TIMEOUT)
        write_text(file, StudyFile(self.plan, settings).text())
        try:
            for site, invite in zip(self.plan.sites, write_invites(file), strict=True):
                self._join(site, invite)
            self._accept(StudyFolder(file))
            found = conduct_study(file, self.out, say=self.say, **more)
            self._wait_for_sites()
            return found
        finally:
            for process in self._sites.values():
                end_process(process, seconds=10.0)

    def _join(self, site: str, invite: Path) -> None:
        home = private_folder(self.folder / "sites" / site)
        words = [
            sys.executable, "-c", MAIN, "study", "join", str(invite), "--data", str(self.tables[site]), "--accept",
            "auto", "--state", str(home / "site"),
        ]  # fmt: skip
        self._sites[site] = start_bound(
            words, log=home / "join.log", environment=flower_environment(home), folder=home
        )

    def _accept(self, folder: StudyFolder) -> None:
        """Accept the key of each site when it is there; raise with the last words of processes that ended."""
        end, rejected, waiting = time.monotonic() + JOIN_SECONDS, list[str](), set(self.tables)
        while waiting and time.monotonic() < end:
            for site in sorted(waiting):
                key = self.folder / "sites" / site / "site" / f"{site}.pub"
                if self._sites[site].poll() is not None:
                    rejected.append(f"site {site}: {self._last_words(site)}")
                    waiting.discard(site)
                elif key.exists():
                    folder.accept(self.plan, [str(key)])
                    waiting.discard(site)
            time.sleep(0.1)
        rejected += [f"site {site} did not start within {JOIN_SECONDS:g} seconds" for site in sorted(waiting)]
        if rejected:
            raise InvalidInput("; ".join(rejected))

    def _last_words(self, site: str) -> str:
        log = (self.folder / "sites" / site / "join.log").read_text(encoding="utf-8", errors="replace").strip()
        return log.rpartition("error: ")[2] if log else "its process ended"

    def _wait_for_sites(self) -> None:
        """Let sites that have the result write their pages."""
        end = time.monotonic() + LEAVE_SECONDS
        for process in self._sites.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, end - time.monotonic()))


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
