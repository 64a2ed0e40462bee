"""Attempts at a study: when a site cannot take part, the others wait for it or begin again without it."""

import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from fedscaffold.core.errors import CheckpointMismatch, FedScaffoldError, InvalidInput
from fedscaffold.core.files import Fields, json_value, write_text
from fedscaffold.federation.payloads import Payload
from fedscaffold.federation.study.coordinator import NotAccepted
from fedscaffold.federation.study.messages import SiteProblems, Transport
from fedscaffold.federation.study.report.status import StatusBoard
from fedscaffold.federation.study.result import StudyResult

Absent = Literal["error", "wait", "leave out"]
PAUSE = 30.0  # seconds before the sites are asked again
FEWEST = 2  # sites of a study
FILE = "attempts.json"
Run = Callable[[Transport, Path | None], StudyResult]


class CannotBeginAgain(InvalidInput):
    """What stopped a study that must go on with the exchanges that it has, and not begin again."""


@dataclass
class Without:
    """A transport to some of the sites.

    Parameters
    ----------
    transport
        Reaches all sites.
    left_out
        Names of those that do not take part.
    """

    transport: Transport
    left_out: Sequence[str]

    @property
    def sites(self) -> Sequence[str]:
        """Names of the sites that take part."""
        return [site for site in self.transport.sites if site not in self.left_out]

    @property
    def last_seconds(self) -> float:
        """How long the latest exchange took."""
        return self.transport.last_seconds

    def exchange(self, requests: Mapping[str, Payload], *, enough: int | None = None) -> Mapping[str, Payload]:
        """Send one message to each of some sites and return their replies by site."""
        return self.transport.exchange(requests, enough=enough)

    def deliver(self, requests: Mapping[str, Payload]) -> None:
        """Send a last message to each of some sites."""
        self.transport.deliver(requests)


class Attempts:
    """Which attempt a study is at, kept in its folder.

    Parameters
    ----------
    folder
        The coordinator's folder; None keeps nothing.
    """

    def __init__(self, folder: Path | None) -> None:
        self.path = None if folder is None else folder / FILE
        self.number, self.left_out = 1, dict[str, str]()
        if self.path is not None and self.path.exists():
            try:
                fields = Fields(json_value(self.path.read_bytes()), str(self.path), error=CheckpointMismatch)
            except ValueError as error:
                raise CheckpointMismatch(f"{self.path} cannot be read: {error}") from None
            left_out = fields.fields("left_out")
            self.number = fields.integer("attempt", least=1)
            self.left_out = {site: left_out.text(site, longest=10_000) for site in left_out.names()}

    @property
    def journal(self) -> Path | None:
        """The folder in which the exchanges of this attempt are kept."""
        return None if self.path is None else self.path.parent / f"attempt-{self.number:03d}"

    def again(self) -> None:
        """Begin this attempt anew, without what was answered in it."""
        if self.journal is not None:
            old = self.journal.with_name(f"{self.journal.name}.old")
            shutil.rmtree(old, ignore_errors=True)
            if self.journal.exists():
                self.journal.rename(old)  # at once: what is left of a journal must not be taken for one
            shutil.rmtree(old, ignore_errors=True)

    def next(self, left_out: Mapping[str, str]) -> None:
        """Begin the next attempt, without some sites more."""
        self.number, self.left_out = self.number + 1, {**self.left_out, **left_out}
        if self.path is not None:
            write_text(self.path, json.dumps({"attempt": self.number, "left_out": self.left_out}, indent=1))


def until_done(
    run: Run, transport: Transport, folder: Path | None, board: StatusBoard, *, absent: Absent, pause: float
) -> StudyResult:
    """Run a study, and again after what keeps a site from taking part, as `absent` says.

    Parameters
    ----------
    run
        run(transport, folder of exchanges) → the result, of one attempt.
    transport
        Reaches all sites.
    folder
        The coordinator's folder.
    board
        Is told who is refused or left out, and why.
    absent
        "error" ends the study, "wait" asks all sites again after a while, "leave out" begins again without the
        site.
    pause
        Seconds to wait.
    """
    attempts = Attempts(folder)
    while True:
        try:
            found = run(Without(transport, list(attempts.left_out)), attempts.journal)
        except SiteProblems as error:
            for site, why in error.problems.items():
                board.site(site, "refused", why)
            if absent == "error" or (absent == "wait" and isinstance(error, NotAccepted)):
                attempts.next({})
                raise
            if absent == "wait":
                attempts.again()
                time.sleep(pause)
                continue
            for site, why in error.problems.items():
                board.note(f"Site {site} is left out: {why}.")
            attempts.next(error.problems)
            if len(transport.sites) - len(attempts.left_out) < FEWEST:
                raise InvalidInput(f"fewer than {FEWEST} sites are left: {error}") from None
        except (CheckpointMismatch, CannotBeginAgain):  # a study's own folder, or another's, must stay as it is
            raise
        except FedScaffoldError:
            attempts.next({})
            raise
        else:
            notes = [f"Site {site} was left out: {why}." for site, why in attempts.left_out.items()]
            return replace(found, training=replace(found.training, notes=(*notes, *found.training.notes)))
