"""Secure studies of sites in this process, of which everything that reaches the coordinator is kept."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedscaffold.core.errors import FedScaffoldError
from fedscaffold.federation import SitePolicy, StudySettings
from fedscaffold.federation.client.rules import SiteRules
from fedscaffold.federation.client.store import MemoryStore
from fedscaffold.federation.payloads import Payload
from fedscaffold.federation.refusals import Refusal, RefusalCode
from fedscaffold.federation.study.messages import SECURE_STEP, SiteProblems
from fedscaffold.federation.study.result import StudyResult
from fedscaffold.federation.study.site import StudySite
from fedscaffold.federation.study.study import SECURE_STEPS, InProcess, conduct_study


def members(tables: Mapping[str, Any], settings: StudySettings, **options: Any) -> dict[str, StudySite]:
    return {
        name: StudySite(
            name=name, table=table, policy=SitePolicy.for_simulation(), engine="reference", secure=settings.secure,
            rules=options.get("rules", SiteRules(by_the_clock=False)), store=MemoryStore(f"secret {k}".encode()),
            secure_threshold=settings.threshold if settings.secure else lambda n: 2,
        )
        for k, (name, table) in enumerate(tables.items())
    }  # fmt: skip


def restart(site: StudySite) -> None:
    """What a site that was killed and started again has left: its folder, and nothing in memory."""
    site.__dict__.pop("_secure_sums", None)
    site._rows = None


@dataclass
class Watched(InProcess):
    """A transport that keeps all replies, and at which sites fall silent."""

    last_seconds: float = 1.0 / SECURE_STEPS
    received: list[tuple[str, Payload]] = field(default_factory=list)
    asked: int = 0
    silent: dict[int, set[str]] = field(default_factory=dict)  # by number of the exchange
    after_work: bool = False  # whether they answer first, and the answer is lost

    def exchange(self, requests: Mapping[str, Payload], *, enough: int | None = None) -> Mapping[str, Payload]:
        self.asked += 1
        gone = self.silent.get(self.asked, set())
        there = {site: payload for site, payload in requests.items() if site not in gone}
        replies: dict[str, Payload] = {}
        codes: dict[str, RefusalCode] = {}
        problems = {site: f"site {site} is silent" for site in gone if site in requests}
        for site, payload in requests.items():
            if site in gone and self.after_work:
                self.members[site].answer(payload)
            if site in gone:
                restart(self.members[site])
            if site in there:
                try:
                    replies[site] = self.members[site].answer(payload)
                except FedScaffoldError as error:
                    problems[site] = f"site {site}: {error}"
                    codes |= {site: error.code} if isinstance(error, Refusal) else {}
        self.received += list(replies.items())
        if gone & set(requests) and (enough is None or len(replies) < enough):  # it is back, and asked again
            return self.exchange(requests, enough=enough)
        if problems and (enough is None or len(replies) < enough):
            raise SiteProblems(problems, codes)
        return replies

    def masked(self) -> list[tuple[str, Any]]:
        """All masked vectors that arrived, with the sites that sent them."""
        return [(site, p.arrays["masked"]) for site, p in self.received if p.values.get(SECURE_STEP) == "mask"]


def conduct(
    transport: InProcess, settings: StudySettings, folder: Path | None = None, **options: Any
) -> StudyResult:
    return conduct_study(transport, settings, folder=folder, **options)
