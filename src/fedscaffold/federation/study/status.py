"""How a study stands: one small file that the coordinator writes, for `study status` and the live page."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from fedscaffold.core.errors import FedScaffoldError, InvalidInput
from fedscaffold.core.files import exclusive, is_locked, read_text, write_text
from fedscaffold.core.provenance import now
from fedscaffold.federation.study.plan import StudyPlan
from fedscaffold.federation.study.transport import private_folder
from fedscaffold.inference.training import ErrorPoint, aim

STATUS, LOCK = "status.json", "lock"
LOCK_WAIT = 30.0  # seconds to wait for a coordinator that was killed, whose processes have yet to end
Phase = Literal["accept", "survey", "train", "evaluate", "report"]
PHASES: tuple[str, ...] = get_args(Phase)
SiteState = Literal["invited", "online", "offline", "refused"]


class SiteStatus(BaseModel):
    """The state of one site, the reason if it does not take part, and the time of the change, in UTC."""

    model_config = ConfigDict(frozen=True)

    state: SiteState = "invited"
    why: str = ""
    since: str = ""


class StudyStatus(BaseModel):
    """The progress of a study, from its coordinator's folder.

    Parameters
    ----------
    tolerance
        The plan's tolerance; None under a privacy budget, as the distance to the pooled model is not known then.
    state
        "running", "finished", "stopped" by an error, or "killed" if the process is gone and could not say why.
    exchanges, seconds_per_exchange
        Number of exchanges with the sites, of all phases, and the duration of the latest.
    history
        The error of the model that is trained, by exchange of the training.
    started, updated
        When the study began, and when this was written, in UTC.

    Examples
    --------
    >>> from fedscaffold.federation import StudyStatus
    >>> StudyStatus(name="pilot", target="ill", tolerance="se:0.05").aim
    0.005
    """

    model_config = ConfigDict(frozen=True)

    format: Literal["fedscaffold study status 2"] = "fedscaffold study status 2"
    name: str
    target: str
    fingerprint: str = ""
    tolerance: str | float | None
    state: Literal["running", "finished", "stopped", "killed"] = "running"
    phase: Phase = "accept"
    exchanges: int = 0
    seconds_per_exchange: float = 0.0
    history: tuple[ErrorPoint, ...] = ()
    sites: dict[str, SiteStatus] = {}
    notes: tuple[str, ...] = ()
    started: str = ""
    updated: str = ""
    error: str = ""

    @property
    def in_standard_errors(self) -> bool:
        """Whether the newest error is in standard errors, as the tolerance; otherwise it is relative."""
        known = bool(self.history) and self.history[-1].standard_errors is not None
        return known and str(self.tolerance).startswith("se:")

    @property
    def current_error(self) -> float | None:
        """The newest error, in standard errors or relative; None before training."""
        if not self.history:
            return None
        return self.history[-1].standard_errors if self.in_standard_errors else self.history[-1].relative

    @property
    def aim(self) -> float | None:
        """The number that the newest error is compared with, in its unit; None under a privacy budget."""
        if self.tolerance is None:
            return None
        return aim(self.tolerance, in_standard_errors=self.in_standard_errors)


class StatusBoard:
    """The status of a study that runs; every change is written to the coordinator's folder.

    Parameters
    ----------
    folder
        The coordinator's folder; None keeps the status in memory alone.
    plan
        The plan of the study.

    Examples
    --------
    >>> import tempfile
    >>> from fedscaffold.federation import StudyPlan, StatusBoard, study_status
    >>> columns = {"age": {"range": [18, 99]}, "ill": {"levels": ["no", "yes"]}}
    >>> plan = StudyPlan(target="ill", kind="logistic", sites=["bonn", "lyon", "oslo"], columns=columns)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     board = StatusBoard(folder, plan)
    ...     with board.watch():
    ...         board.site("bonn", "online")
    ...     study_status(folder).state, study_status(folder).sites["bonn"].state
    ('finished', 'online')
    """

    def __init__(self, folder: str | os.PathLike[str] | None, plan: StudyPlan) -> None:
        self.folder = None if folder is None else Path(folder)
        tolerance = plan.tolerance if plan.epsilon is None else None
        sites = {site: SiteStatus() for site in plan.sites}
        names: Any = {"name": plan.name, "target": plan.target, "fingerprint": plan.fingerprint}
        self.status = StudyStatus(**names, tolerance=tolerance, sites=sites, started=now())

    def phase(self, name: str) -> None:
        """Report that a phase begins; an earlier one again, as to accept a completed plan, changes nothing."""
        if PHASES.index(name) > PHASES.index(self.status.phase):
            self._change(phase=name)

    def site(self, name: str, state: SiteState, why: str = "") -> None:
        """Report that a site came, went, or rejected a message."""
        before = self.status.sites.get(name)
        if before is None or (before.state, before.why) != (state, why):
            self._change(sites={**self.status.sites, name: SiteStatus(state=state, why=why, since=now())})

    def exchanged(self, seconds: float) -> None:
        """Report that an exchange with the sites is complete."""
        self._change(exchanges=self.status.exchanges + 1, seconds_per_exchange=seconds)

    def error(self, point: ErrorPoint) -> None:
        """Report the distance of the model to the pooled one."""
        self._change(history=(*self.status.history, point))

    def note(self, sentence: str) -> None:
        """Report a decision and its reason in a sentence."""
        self._change(notes=(*self.status.notes, sentence))

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Hold the folder while the block runs; report at its end that the study is complete, or why it stopped.

        A process that exits on request, or is interrupted, as Flower interrupts one whose SuperLink is gone,
        reports nothing: the study can go on, and another process may do so already. Raises `InUse` if one does.
        """
        if self.folder is not None:
            private_folder(self.folder)
        whose = f"the study's folder {self.folder}"
        with nullcontext() if self.folder is None else exclusive(self.folder / LOCK, whose, wait=LOCK_WAIT):
            self._change()
            try:
                yield
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:
                why = str(error) if isinstance(error, FedScaffoldError) else type(error).__name__
                self._change(state="stopped", error=why)
                raise
            self._change(state="finished", phase="report")

    def _change(self, **changes: Any) -> None:
        self.status = self.status.model_copy(update={**changes, "updated": now()})
        if self.folder is not None:
            write_text(self.folder / STATUS, self.status.model_dump_json(indent=1))


def study_status(folder: str | os.PathLike[str]) -> StudyStatus:
    """Return how the study in a coordinator's folder stands; raise `InvalidInput` if there is none.

    Examples
    --------
    >>> import tempfile
    >>> from fedscaffold.federation import study_status
    >>> study_status(tempfile.mkdtemp())  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    fedscaffold.core.errors.InvalidInput: cannot read the status of a study
    """
    path = Path(folder).expanduser() / STATUS
    try:
        status = StudyStatus.model_validate_json(read_text(path, "the status of a study"))
    except ValidationError as error:
        raise InvalidInput(f"{path} is not the status of a study: {error.errors()[0]['msg']}") from None
    gone = status.state == "running" and not is_locked(path.parent / LOCK)
    return status.model_copy(update={"state": "killed"}) if gone else status
