"""A whole study on this machine: processes for sites and coordinator, on loopback with TLS and keys."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedscaffold.core.errors import InvalidInput
from fedscaffold.data.files import existing_file, is_parquet, read_table
from fedscaffold.data.tables import check_names, labels, load_pyarrow, pick_all, some
from fedscaffold.federation.study.journal import private_folder
from fedscaffold.federation.study.report.status import StudyStatus
from fedscaffold.federation.study.settings import StudySettings
from fedscaffold.flower.processes import end_process, flower_environment, free_port, start_bound
from fedscaffold.flower.study.invite import public_key_of, write_invites
from fedscaffold.flower.study.link import CoordinatorLink
from fedscaffold.flower.study.study_file import NAME, StudyFile, StudyFolder

MAX_SITES = 16  # each is a process
JOIN_SECONDS = 120.0  # for a site's process to check its table and make its key
LEAVE_SECONDS = 30.0  # for a site to write its page after the study
TIMEOUT = 300.0  # seconds that a site has to answer
MAIN = "from fedscaffold.cli.start import main; main()"
WIDEST = 60  # characters of a site's name


def site_files(
    files: Sequence[Path],
    client: str | None,
    folder: Callable[[], Path],
    columns: Iterable[str] = (),
    check: Callable[[int], Any] = lambda n_sites: None,
) -> dict[str, Path]:
    """A table for each site: the files themselves, or the parts of one file, split by a column.

    Parameters
    ----------
    files
        One file per site, or one file to split.
    client
        The column that says whose row it is; None for one file per site.
    folder
        folder() → where to write the parts; not called before everything has been checked.
    columns
        Names of columns that one file to split must have. Sites with files of their own check theirs themselves.
    check
        check(number of sites) refuses what a study of so many cannot have.
    """
    for file in files:
        is_parquet(existing_file(file))
    if client is not None:
        if len(files) != 1:
            raise InvalidInput(
                "--client splits one file; give one file, or leave --client out and give one per site"
            )
        return _split(read_table(files[0]), client, folder, columns, check)
    if len(files) < 2:
        raise InvalidInput("a study has two sites or more: give one file per site, or --client to split one")
    _check_number(len(files))
    check(len(files))
    names = [_site_name(file.name.split(".")[0]) for file in files]
    if len(set(names)) < len(names):
        raise InvalidInput(f"files must have different names, got {some(names)}")
    return dict(sorted(zip(names, (file.resolve() for file in files), strict=True)))


def _split(
    table: Any, column: str, folder: Callable[[], Path], columns: Iterable[str], check: Callable[[int], Any]
) -> dict[str, Path]:
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
    check(len(values))
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
    """A name that sites may have, from any text."""
    name = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in text)[:WIDEST]
    return name if NAME.fullmatch(name) else f"site{name}"[:WIDEST]


class LocalStudy:
    """Runs a study with processes of this machine, each site in its own, and ends them afterwards.

    Parameters
    ----------
    folder
        A folder for everything: coordinator/, and a folder for each site.
    tables
        The file of each site.
    settings
        Target, model and tolerance.
    tell
        Is told, in a sentence, what happens.
    """

    def __init__(
        self, folder: Path, tables: Mapping[str, Path], settings: StudySettings, tell: Callable[[str], None]
    ) -> None:
        self.folder, self.tables, self.settings, self.tell = (
            private_folder(folder).resolve(),
            tables,
            settings,
            tell,
        )
        self.out = self.folder / "coordinator" / "out"
        self._sites: dict[str, subprocess.Popen[bytes]] = {}

    def run(self, each: Callable[[StudyStatus], None]) -> StudyStatus:
        """Invite, join, accept and conduct; each(status) is called whenever the study's status changes."""
        file = private_folder(self.folder / "coordinator") / "study.toml"
        study = StudyFile(
            name="study", settings=self.settings, sites=tuple(self.tables), missing="error", timeout=TIMEOUT,
            address=f"127.0.0.1:{free_port()}",
        )  # fmt: skip
        file.write_text(study.text(), encoding="utf-8")
        try:
            for site, invite in zip(self.tables, write_invites(file, list(self.tables)), strict=True):
                self._join(site, invite)
            self._accept(StudyFolder(file))
            found = CoordinatorLink(file, self.out, self.tell).run(each)
            self._wait_for_sites(found)
            return found
        finally:
            for process in self._sites.values():
                end_process(process, seconds=10.0)

    def _join(self, site: str, invite: Path) -> None:
        home = private_folder(self.folder / site)
        words = [
            sys.executable, "-c", MAIN, "study", "join", str(invite), "--data", str(self.tables[site]), "--accept",
            "auto", "--state", str(home),
        ]  # fmt: skip
        self._sites[site] = start_bound(
            words, log=home / "join.log", environment=flower_environment(home), folder=home
        )

    def _accept(self, folder: StudyFolder) -> None:
        """Accept the key of each site when it is there; refused with what a site's process said if it ended."""
        end, refused, waiting = time.monotonic() + JOIN_SECONDS, list[str](), set(self.tables)
        while waiting and time.monotonic() < end:
            for site in sorted(waiting):
                key = self.folder / site / f"{site}.pub"
                if self._sites[site].poll() is not None:
                    refused.append(f"site {site}: {self._last_words(site)}")
                    waiting.discard(site)
                elif key.exists():
                    folder.accept(site, public_key_of(str(key))[1])
                    waiting.discard(site)
            time.sleep(0.1)
        refused += [f"site {site} did not start within {JOIN_SECONDS:g} seconds" for site in sorted(waiting)]
        if refused:
            raise InvalidInput("; ".join(refused))

    def _last_words(self, site: str) -> str:
        lines = (
            (self.folder / site / "join.log").read_text(encoding="utf-8", errors="replace").strip().splitlines()
        )
        return lines[-1].removeprefix("error: ") if lines else "its process ended"

    def _wait_for_sites(self, found: StudyStatus) -> None:
        """Let sites that were told the result write their pages."""
        end = time.monotonic() + LEAVE_SECONDS * (found.state == "finished")
        for process in self._sites.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, end - time.monotonic()))
