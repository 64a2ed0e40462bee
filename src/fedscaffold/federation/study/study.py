"""`Study`: what a coordinator asks for, and a study with all sites in one process."""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from fedscaffold.core.errors import FedScaffoldError, InvalidInput
from fedscaffold.core.files import exclusive
from fedscaffold.core.protocols import Engine
from fedscaffold.data.files import read_table
from fedscaffold.federation.client.policy import SitePolicy
from fedscaffold.federation.client.rules import SiteRules
from fedscaffold.federation.client.store import MemoryStore
from fedscaffold.federation.payloads import Payload
from fedscaffold.federation.refusals import Refusal, RefusalCode
from fedscaffold.federation.study.attempts import PAUSE, Absent, until_done
from fedscaffold.federation.study.coordinator import Coordinator
from fedscaffold.federation.study.greet import agree_on_columns
from fedscaffold.federation.study.journal import Journal, private_folder
from fedscaffold.federation.study.messages import SiteProblems, Transport
from fedscaffold.federation.study.private.at_site import with_budget
from fedscaffold.federation.study.report.status import LOCK, StatusBoard
from fedscaffold.federation.study.result import StudyResult
from fedscaffold.federation.study.settings import StudySettings
from fedscaffold.federation.study.site import StudySite
from fedscaffold.federation.study.training import StudyTraining

LOCK_WAIT = 30.0  # seconds to wait for a coordinator that was killed, whose processes have yet to end
SECURE_STEPS = 5  # exchanges of a secure sum
NOMINAL_ROUND = 1.0  # seconds that a round counts for in one process, so that results do not depend on the clock


def conduct_study(
    transport: Transport,
    settings: StudySettings,
    *,
    name: str = "study",
    folder: str | os.PathLike[str] | None = None,
    board: StatusBoard | None = None,
    absent: Absent = "error",
    pause: float = PAUSE,
    save: Callable[[StudyResult], None] = lambda result: None,
) -> StudyResult:
    """All phases of a study over a transport, in which the coordinator sees nothing but the sites' answers.

    Parameters
    ----------
    transport
        Carries messages to the sites.
    settings
        What the people of the study decided.
    name
        Name of the study.
    folder
        The coordinator's folder, in which every exchange is kept: the same call continues a study that was
        stopped. None keeps nothing.
    board
        Is told how the study stands; by default one that writes to the folder.
    absent
        What follows when a site cannot take part: "error" ends the study, "wait" asks all sites again after a
        while, "leave out" begins again without the site.
    pause
        Seconds to wait.
    save
        save(result) is called before the sites are told the result, after which they may leave.
    """
    if board is None:
        board = StatusBoard(
            folder, name=name, target=settings.target, tolerance=settings.known_tolerance, sites=transport.sites
        )

    def attempt(transport: Transport, exchanges: Path | None) -> StudyResult:
        journal = Journal(transport, exchanges)
        coordinator = _coordinator(settings)(transport=journal, settings=settings, name=name, board=board)
        try:
            result = _all_phases(coordinator)
        except SiteProblems as error:
            if absent != "leave out" or not coordinator.sites_are_fixed:
                raise
            raise InvalidInput(
                f"{error}; no site can be left out after the first secure sum, since sums with and without it "
                "would tell its numbers: when it is back, start the study again"
            ) from None
        save(result)
        coordinator.finish(result.for_sites())
        return result

    with ExitStack() as held:
        own = None if folder is None else private_folder(folder)
        if own is not None:
            held.enter_context(exclusive(own / LOCK, f"the study's folder {own}", wait=LOCK_WAIT))
        held.enter_context(board.watch())
        return until_done(attempt, transport, own, board, absent=absent, pause=pause)


def _coordinator(settings: StudySettings) -> type[Coordinator]:
    if not settings.secure:
        return Coordinator
    from fedscaffold.federation.study.secure.coordinator import SecureCoordinator

    return SecureCoordinator


def _all_phases(coordinator: Coordinator) -> StudyResult:
    settings = coordinator.settings
    if settings.epsilon is not None:
        from fedscaffold.federation.study.private.conduct import private_phases

        return private_phases(coordinator)
    schemas = coordinator.greet()
    agreement = coordinator.prepare(agree_on_columns(schemas, settings))
    measured = coordinator.measure()
    hessians = all(agreement.dim <= schema.max_hessian_dim for schema in schemas.values())
    training = StudyTraining(coordinator=coordinator, agreement=agreement, measured=measured, hessians=hessians)
    coordinator.board.phase("train")
    trained = training.run()
    evaluation = {}
    if settings.evaluate:
        coordinator.board.phase("evaluate")
        without = replace(training, part=True, rounds=0, notes=[], history=[], latest=None).run(
            start=trained.theta
        )
        evaluation = coordinator.evaluate(without.theta, agreement)
    return StudyResult(
        settings=settings,
        agreement=agreement,
        totals=measured,
        training=trained,
        evaluation=evaluation,
        traffic=coordinator.traffic,
        name=coordinator.name,
    )


@dataclass
class InProcess:
    """A transport to sites in this process; every message is packed and unpacked as on a wire.

    Parameters
    ----------
    members
        The sites by name.
    """

    members: Mapping[str, StudySite]
    last_seconds: float = NOMINAL_ROUND

    @property
    def sites(self) -> Sequence[str]:
        """Names of the sites."""
        return list(self.members)

    def exchange(self, requests: Mapping[str, Payload], *, enough: int | None = None) -> Mapping[str, Payload]:
        """Let each site answer; what one of them refuses is told with its name."""
        replies, problems, codes = dict[str, Payload](), dict[str, str](), dict[str, RefusalCode]()
        for site, payload in requests.items():
            try:
                replies[site] = self.members[site].answer(payload)
            except FedScaffoldError as error:
                problems[site] = f"site {site}: {error}"
                codes |= {site: error.code} if isinstance(error, Refusal) else {}
        if problems and (enough is None or len(replies) < enough):
            raise SiteProblems(problems, codes)
        return replies

    def deliver(self, requests: Mapping[str, Payload]) -> None:
        """Let each site keep what it is told last."""
        self.exchange(requests)


@dataclass(frozen=True, kw_only=True)
class Study(StudySettings):
    """A study: one model for sites that keep their tables, with every decision made from what sites tell.

    It has all parameters of `StudySettings`, and a name.

    Parameters
    ----------
    name
        Name of the study.

    Examples
    --------
    >>> import numpy as np
    >>> import pandas as pd
    >>> import fedscaffold as fs
    >>> rng = np.random.default_rng(0)
    >>> def visits(n):
    ...     age = rng.normal(50, 10, n)
    ...     return pd.DataFrame({"age": age, "ill": rng.random(n) < 1 / (1 + np.exp(-(age - 50) / 10))})
    >>> study = fs.federation.Study(target="ill", kind="logistic")
    >>> tables = {"bonn": visits(200), "lyon": visits(300), "oslo": visits(100)}
    >>> result = study.run(tables, engine="reference")
    >>> result.reached
    True
    """

    name: str = "study"

    @property
    def settings(self) -> StudySettings:
        """The study without its name, as sites are told it."""
        return StudySettings(**{each.name: getattr(self, each.name) for each in fields(StudySettings)})

    def run(
        self,
        sites: Mapping[str, Any],
        *,
        seed: int | None = None,
        rules: SiteRules | None = None,
        policy: SitePolicy | None = None,
        engine: str | Engine = "auto",
    ) -> StudyResult:
        """The study with all sites in this process: what it would give over a network, in a fraction of a second.

        Parameters
        ----------
        sites
            A table for each site's name: a frame of any library that `data.from_frame` takes, or the path of a
            .csv or .parquet file.
        seed
            Seed of batches and of the rows that are left out, instead of the study's; the same seed gives the same
            result.
        rules
            What sites tell.
        policy
            What sites allow in training; by default everything.
        engine
            Computes local steps; see `fedscaffold.run`.
        """
        if len(sites) < 2:
            raise InvalidInput(f"a study has two sites or more, got {len(sites)}")
        settings = self.settings if seed is None else replace(self.settings, seed=seed)
        settings.check_number_of_sites(len(sites))
        members = {
            str(name): StudySite(
                name=str(name),
                table=read_table(table) if isinstance(table, str | os.PathLike) else table,
                rules=rules or SiteRules(by_the_clock=False, min_cell=settings.min_cell),
                policy=with_budget(policy or SitePolicy.for_simulation(), settings),
                settings=settings,
                engine=engine,
                store=MemoryStore(f"site {k} of seed {settings.seed}".encode()),
                secure=settings.secure,
            )
            for k, (name, table) in enumerate(sites.items())
        }
        result = conduct_study(in_process(members, settings), settings, name=self.name)
        return replace(result, log={name: site.log for name, site in members.items()})


def in_process(members: Mapping[str, StudySite], settings: StudySettings) -> InProcess:
    """A transport to sites in this process, to which a secure sum takes as long as another exchange."""
    return InProcess(members, NOMINAL_ROUND / (SECURE_STEPS if settings.secure else 1))
