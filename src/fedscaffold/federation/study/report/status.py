"""How a study stands: one small file that the coordinator writes, for `study status` and the live page."""

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Self

from fedscaffold.core.checks import shown
from fedscaffold.core.errors import FedScaffoldError, InvalidInput
from fedscaffold.core.files import Fields, is_locked, json_value, read_text, write_text
from fedscaffold.core.provenance import now
from fedscaffold.federation.study.report.history import ErrorPoint

STATUS, LOCK = "status.json", "lock"
WHAT = "fedscaffold study status 1"
RECENT = 5  # exchanges and points from which the time left is judged
LONGEST = 2000  # characters of a sentence
MOST_REFUSALS = 100  # the newest are kept
PHASES = ("greet", "prepare", "measure", "train", "evaluate", "report")
State = Literal["running", "finished", "stopped", "killed"]
SiteState = Literal["invited", "online", "offline", "refused"]


@dataclass(frozen=True, kw_only=True)
class SiteStatus:
    """How one site stands.

    Parameters
    ----------
    state
        "invited" before it was seen, "online", "offline", or "refused".
    why
        Why it was refused, or refused itself; "" otherwise.
    since
        When this began, in UTC.
    """

    state: SiteState = "invited"
    why: str = ""
    since: str = ""


@dataclass(frozen=True, kw_only=True)
class StudyStatus:
    """What a coordinator's folder says about its study.

    Parameters
    ----------
    name, target, tolerance
        Name of the study, the column to predict, and the tolerance as the study's file has it; "" under a privacy
        budget, where the distance to the pooled model is not known.
    state
        "running", "finished", "stopped" by an error, or "killed" if the process is gone and could not say why.
    phase
        The phase that it is in, or was in when it ended.
    exchanges
        Number of exchanges with the sites, of all phases.
    rounds
        Number of exchanges of the training.
    history
        The error of the model that is trained, by exchange.
    aim
        What the newest error is compared with, in its unit; None before training.
    seconds_per_exchange
        A recent exchange by the clock.
    sites
        How each site stands.
    refused
        Others who were refused, such as keys that nobody accepted: who, why, since.
    notes
        What was decided and why, in sentences.
    started, updated
        When the study began, and when this was written, in UTC.
    error
        Why the study stopped; "" if it did not.

    Examples
    --------
    >>> from fedscaffold.federation import StudyStatus
    >>> status = StudyStatus(name="pilot", target="ill", tolerance="se:0.05", phase="train", rounds=7)
    >>> StudyStatus.from_json(status.to_json()) == status
    True
    """

    name: str
    target: str
    tolerance: str
    state: State = "running"
    phase: str = PHASES[0]
    exchanges: int = 0
    rounds: int = 0
    history: Sequence[ErrorPoint] = ()
    aim: float | None = None
    seconds_per_exchange: float = 0.0
    sites: Mapping[str, SiteStatus] = field(default_factory=dict)
    refused: Sequence[Mapping[str, str]] = ()
    notes: Sequence[str] = ()
    started: str = ""
    updated: str = ""
    error: str = ""

    @property
    def current_error(self) -> float | None:
        """The newest error in the unit of the tolerance, or relative where standard errors are not known."""
        return error_of(self.history[-1], self.tolerance) if self.history else None

    @property
    def seconds_left(self) -> float | None:
        """About how long the training will take still; None where that cannot be told."""
        left = exchanges_left(self.history, self.tolerance, self.aim)
        return None if left is None else left * self.seconds_per_exchange

    def to_json(self) -> dict[str, Any]:
        """The status as values that JSON can hold."""
        plain = {name: getattr(self, name) for name in ("name", "target", "tolerance", "state", "phase", "error")}
        numbers = {name: getattr(self, name) for name in ("exchanges", "rounds", "aim", "seconds_per_exchange")}
        return {
            "what": WHAT,
            **plain,
            **numbers,
            "started": self.started,
            "updated": self.updated,
            "history": [point.to_json() for point in self.history],
            "sites": {name: vars(site).copy() for name, site in self.sites.items()},
            "refused": [dict(one) for one in self.refused],
            "notes": list(self.notes),
            "current_error": self.current_error,
            "seconds_left": self.seconds_left,
        }

    @classmethod
    def from_json(cls, values: Any, source: str = "the status") -> Self:
        """The status that `to_json` gave."""
        fields = Fields(values, source)
        fields.choice("what", WHAT)
        texts = {name: fields.text(name, longest=LONGEST) for name in ("name", "target", "tolerance", "error")}
        state: Any = fields.choice("state", "running", "finished", "stopped", "killed")
        sites = fields.fields("sites")
        return cls(
            **texts,
            state=state,
            phase=fields.choice("phase", *PHASES),
            exchanges=fields.integer("exchanges", least=0),
            rounds=fields.integer("rounds", least=0),
            history=tuple(ErrorPoint.from_json(point) for point in fields.items("history")),
            aim=None if fields.value("aim") is None else fields.number("aim", least=0.0),
            seconds_per_exchange=fields.number("seconds_per_exchange", least=0.0),
            sites={name: _site(sites.fields(name)) for name in sites.names()},
            refused=tuple(_refusal(one, source) for one in fields.items("refused")),
            notes=tuple(str(note)[:LONGEST] for note in fields.items("notes")),
            started=fields.text("started"),
            updated=fields.text("updated"),
        )


def _site(fields: Fields) -> SiteStatus:
    state: Any = fields.choice("state", "invited", "online", "offline", "refused")
    return SiteStatus(state=state, why=fields.text("why", longest=LONGEST), since=fields.text("since"))


def _refusal(values: Any, source: str) -> dict[str, str]:
    fields = Fields(values, f"{source}: refused")
    return {name: fields.text(name, longest=LONGEST) for name in ("who", "why", "since")}


def error_of(point: ErrorPoint, tolerance: str) -> float:
    """A point's error in standard errors if the tolerance is and they are known, else relative."""
    in_errors = tolerance.startswith("se:") and point.standard_errors is not None
    return point.standard_errors if in_errors and point.standard_errors is not None else point.relative


def exchanges_left(history: Sequence[ErrorPoint], tolerance: str, aim: float | None) -> float | None:
    """How many exchanges are left until the error is within the aim, if it goes down as it did lately."""
    if aim is None or not history:
        return None
    last = error_of(history[-1], tolerance)
    if last <= aim:
        return 0.0
    same = [p for p in history[-RECENT:] if (p.standard_errors is None) == (history[-1].standard_errors is None)]
    begin, exchanges = error_of(same[0], tolerance), same[-1].exchange - same[0].exchange
    if exchanges <= 0 or not last < begin:
        return None
    return math.log(last / aim) / math.log(begin / last) * exchanges


class StatusBoard:
    """Keeps the status of a study that runs, and writes every change to the coordinator's folder.

    Parameters
    ----------
    folder
        The coordinator's folder; None keeps the status in memory alone.
    name, target, tolerance
        As in `StudyStatus`.
    sites
        Names of the sites, which are invited at first.

    Examples
    --------
    >>> import tempfile
    >>> from fedscaffold.federation import StatusBoard, study_status
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     board = StatusBoard(folder, name="pilot", target="ill", tolerance="se:0.05", sites=["bonn"])
    ...     with board.watch():
    ...         board.site("bonn", "online")
    ...     study_status(folder).sites["bonn"].state
    'online'
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | None = None,
        *,
        name: str = "study",
        target: str = "",
        tolerance: str | float = "",
        sites: Sequence[str] = (),
    ) -> None:
        self.path = None if folder is None else Path(folder) / STATUS
        self.status = StudyStatus(
            name=name,
            target=target,
            tolerance=str(tolerance),
            sites={site: SiteStatus() for site in sites},
            started=now(),
        )
        self._seconds: list[float] = []

    def phase(self, name: str) -> None:
        """Tell that a phase of the study begins."""
        if name not in PHASES:
            raise InvalidInput(f"a study has the phases {', '.join(PHASES)}, got {shown(name)}")
        if name != self.status.phase or not self.status.exchanges:
            self._change(phase=name)

    def site(self, name: str, state: SiteState, why: str = "") -> None:
        """A site came, went, or was refused."""
        before = self.status.sites.get(name)
        if before is None or (before.state, before.why) != (state, why[:LONGEST]):
            found = SiteStatus(state=state, why=why[:LONGEST], since=now())
            self._change(sites={**self.status.sites, name: found})

    def refused(self, who: str, why: str) -> None:
        """Somebody who is no site of the study, or a message, was refused."""
        one = {"who": who[:LONGEST], "why": why[:LONGEST], "since": now()}
        self._change(refused=(*self.status.refused, one)[-MOST_REFUSALS:])

    def exchanged(self, seconds: float) -> None:
        """An exchange with the sites is complete."""
        self._seconds = [*self._seconds, seconds][-RECENT:]
        middle = sorted(self._seconds)[len(self._seconds) // 2]
        self._change(exchanges=self.status.exchanges + 1, seconds_per_exchange=middle)

    def error(self, point: ErrorPoint, aim: float) -> None:
        """The training knows how far its model is from the pooled one."""
        self._change(history=(*self.status.history, point), rounds=point.exchange, aim=aim)

    def round(self, number: int) -> None:
        """So many exchanges of a training are complete that does not know its error."""
        self._change(rounds=number)

    def note(self, sentence: str) -> None:
        """Tell in a sentence what was decided and why."""
        self._change(notes=(*self.status.notes, sentence))

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Tell that the study is complete when the block ends, or why it stopped.

        A process that is told to exit, or interrupted, as Flower interrupts one whose SuperLink is gone, says
        nothing: the study can go on, and another process may do so already.
        """
        try:
            yield
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            told = str(error) if isinstance(error, FedScaffoldError) else type(error).__name__
            self._change(state="stopped", error=told[:LONGEST])
            raise
        self._change(state="finished", phase="report")

    def _change(self, **changes: Any) -> None:
        self.status = replace(self.status, updated=now(), **changes)
        if self.path is not None:
            write_text(self.path, json.dumps(self.status.to_json(), allow_nan=False, indent=1))


def study_status(folder: str | os.PathLike[str]) -> StudyStatus:
    """How the study in a coordinator's folder stands.

    Parameters
    ----------
    folder
        The coordinator's folder.

    Examples
    --------
    >>> import tempfile
    >>> from fedscaffold.federation import StatusBoard, study_status
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     StatusBoard(folder, name="pilot", target="ill", tolerance=0.01).phase("train")
    ...     study_status(folder).state
    'killed'
    """
    path = Path(folder).expanduser() / STATUS
    text = read_text(path, "the status of a study")
    try:
        values = json_value(text)
    except ValueError:
        raise InvalidInput(f"{path} is not the status of a study") from None
    status = StudyStatus.from_json(values, str(path))
    if status.state == "running" and not is_locked(path.parent / LOCK):
        return replace(status, state="killed")
    return status
