"""The coordinator's side of a study: asks all sites, phase after phase, over any transport."""

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import numpy as np

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array
from fedscaffold.federation.agreement import Agreement
from fedscaffold.federation.messages import ClientFailed, Reply, TrainRequest
from fedscaffold.federation.payloads import Payload, pack_request, unpack_reply
from fedscaffold.federation.run_config import RunConfig
from fedscaffold.federation.server.backup import StateBackup
from fedscaffold.federation.server.ledger import Ledger
from fedscaffold.federation.server.round import run_round
from fedscaffold.federation.server.rules import RoundRules
from fedscaffold.federation.study.certificate import (
    FIXED_SCALARS,
    FIXED_VECTORS,
    SumsAsked,
    closing_sums_of,
    read_sums,
)
from fedscaffold.federation.study.evaluate import SiteEvaluation
from fedscaffold.federation.study.greet import PROTOCOL, ColumnKind, SiteSchema
from fedscaffold.federation.study.journal import Journal
from fedscaffold.federation.study.measure import Measurements, SiteMeasurement
from fedscaffold.federation.study.messages import (
    Address,
    SiteProblems,
    StudyMessage,
    pack,
    unpack,
    with_address,
)
from fedscaffold.federation.study.prepare import TableSums, add_tables, agree_on_encoding, check_sites
from fedscaffold.federation.study.report.status import StatusBoard
from fedscaffold.federation.study.report.traffic import Traffic
from fedscaffold.federation.study.settings import StudySettings
from fedscaffold.inference import ClosingSums

T = TypeVar("T")


class NotAccepted(SiteProblems):
    """Some sites do not accept the agreement; asking again would not change that."""


@dataclass(kw_only=True)
class Coordinator:
    """Asks the sites of a study and validates what they answer.

    Parameters
    ----------
    transport
        Carries messages, and keeps what was answered.
    settings
        What the people of the study decided.
    name
        Name of the study, which the sites' policies may allow or not.
    board
        Is told how the study stands.
    traffic
        What arrived from each site, by phase.
    fixed_sums
        Sums over all sites that do not depend on the model and are told once: of all rows, and of the part that is
        not left out.
    seconds_per_exchange
        What the shortest exchange took, which is what a round costs apart from the sites' work.
    """

    transport: Journal
    settings: StudySettings
    name: str = "study"
    board: StatusBoard = field(default_factory=StatusBoard)
    traffic: dict[str, dict[str, Traffic]] = field(default_factory=dict)
    fixed_sums: dict[bool, dict[str, Any]] = field(default_factory=dict)
    seconds_per_exchange: float = math.inf

    @property
    def study_id(self) -> str:
        """Random identity of the study."""
        return self.transport.study_id

    def run_id(self, *, part: bool) -> str:
        """The identity of a training of this study, the same when the study is continued."""
        which = "training without some rows" if part else "training"
        return hashlib.sha256(f"{self.study_id} {which}".encode()).hexdigest()[:32]

    # preparation

    def greet(self) -> dict[str, SiteSchema]:
        """Names and kinds of the columns of every site's table."""
        self.board.phase("greet")
        message = StudyMessage("greet", {"protocol": PROTOCOL, "settings": self.settings.to_json()})
        return self._ask(message, lambda reply, site: SiteSchema.from_json(reply.body, site))

    def prepare(self, kinds: Mapping[str, ColumnKind]) -> Agreement:
        """The encoding that all sites use and have accepted."""
        self.board.phase("prepare")
        return self.agree(agree_on_encoding(self.add_tables(kinds), kinds, self.settings))

    def agree(self, agreement: Agreement) -> Agreement:
        """The agreement, once all sites have accepted it."""
        self.board.phase("prepare")
        request = StudyMessage("agree", {"agreement": agreement.to_json()})
        accepted = self._ask(request, lambda reply, site: reply.body.get("accepted") is True)
        refused = [site for site, yes in accepted.items() if not yes]
        if refused:
            raise NotAccepted({site: f"the agreement was not accepted by {site}" for site in refused})
        return agreement

    def add_tables(self, kinds: Mapping[str, ColumnKind]) -> TableSums:
        """Counts and sums of the columns of all sites together."""
        message = StudyMessage("prepare", {"settings": self.settings.to_json(), "kinds": dict(kinds)})
        sums = self._ask(message, lambda reply, site: TableSums.from_json(reply.body, site, kinds, self.settings))
        check_sites(sums, kinds, self.settings)
        return add_tables(list(sums.values()))

    def measure(self) -> Measurements:
        """What the sites told about themselves."""
        self.board.phase("measure")
        message = StudyMessage("measure", {})
        return Measurements.of(self._ask(message, lambda reply, site: SiteMeasurement.from_json(reply.body, site)))

    # training

    def train(
        self, config: RunConfig, ledger: Ledger, measured: Measurements, *, limit: float, part: bool
    ) -> Ledger:
        """One round of Scaffold with all sites; the server's state after it."""
        n_rows = np.array([one.n_rows for one in measured.each.values()], dtype=np.float64)
        return run_round(
            config, ledger, n_rows / n_rows.sum(), partial(self._send, part=part), backup=StateBackup(None),
            limit=limit, rules=RoundRules(min_clients=n_rows.size, outlier_factor=None),
        ).ledger  # fmt: skip

    def closing_sums(self, theta: Array, agreement: Agreement, *, scores: bool, part: bool) -> ClosingSums:
        """Sums over all sites at θ from which certificates and standard errors follow; one exchange."""
        asked = SumsAsked(hessian=True, scores=scores, fixed=part not in self.fixed_sums)
        total = self.add_sums(asked, theta, agreement, part=part)
        if asked.fixed:
            self.fixed_sums[part] = {name: total[name] for name in (*FIXED_SCALARS, *FIXED_VECTORS)}
        return closing_sums_of(total, self.fixed_sums[part], agreement, theta)

    def gradient_and_loss(self, theta: Array, agreement: Agreement, *, part: bool) -> tuple[Array, float]:
        """∇f(θ) and f(θ) over all rows of all sites, with the penalty; one exchange."""
        total = self.add_sums(SumsAsked(hessian=False), theta, agreement, part=part)
        if total["rows"] < 1:
            raise InvalidInput("the sites have no rows")
        return total["gradient"] / total["rows"], total["loss"] / total["rows"]

    def add_sums(self, asked: SumsAsked, theta: Array, agreement: Agreement, *, part: bool) -> dict[str, Any]:
        """Sums over all sites at θ, by name; each site's are added as they are read."""
        total: dict[str, Any] = {}

        def add(reply: StudyMessage, site: str) -> None:
            one = read_sums(reply.body, reply.arrays, site, agreement, asked)
            total.update({name: total[name] + one[name] if name in total else one[name] for name in one})

        self._ask(StudyMessage("sums", asked.to_json(), {"theta": theta}), add, part=part)
        return total

    # evaluation

    def evaluate(self, theta: Array, agreement: Agreement) -> dict[str, SiteEvaluation]:
        """How a model that was trained without them predicts the rows that each site left out."""
        message = StudyMessage("evaluate", {"min_cell": self.settings.min_cell}, {"theta": theta})
        return self._ask(message, lambda reply, site: SiteEvaluation.from_json(reply.body, site))

    def finish(self, told: Mapping[str, Any]) -> None:
        """Tell all sites that can be reached the result, which each keeps in its folder."""
        payload = with_address(pack(StudyMessage("finish", told)), self._address(False))
        self.transport.deliver(dict.fromkeys(self.transport.sites, payload))

    @property
    def sites_are_fixed(self) -> bool:
        """Whether the study can no longer go on without one of its sites."""
        return False

    # the wire

    def _ask(
        self, message: StudyMessage, read: Callable[[StudyMessage, str], T], *, part: bool = False
    ) -> dict[str, T]:
        """The same message to all sites; what `read` finds in their replies, in the sites' order."""
        payload = with_address(pack(message), self._address(part))
        replies = dict(self._exchange(message.phase, dict.fromkeys(self.transport.sites, payload)))
        found, problems = {}, {}
        for site in self.transport.sites:
            try:
                reply = unpack(replies.pop(site), f"site {site}")
                if reply.phase != message.phase:
                    raise InvalidInput(f"site {site} answered {reply.phase} when it was asked to {message.phase}")
                found[site] = read(reply, site)
            except InvalidInput as error:
                problems[site] = str(error)
        if problems:
            raise SiteProblems(problems)
        return found

    def _address(self, part: bool) -> Address:
        return Address(self.study_id, self.name, part)

    def _exchange(self, phase: str, requests: Mapping[str, Payload]) -> Mapping[str, Payload]:
        """The sites' replies, counted by site and phase."""
        replies = self.transport.exchange(requests)
        silent = {site: f"site {site} did not answer" for site in requests if site not in replies}
        if silent:
            raise SiteProblems(silent)
        for site, reply in replies.items():
            by_phase = self.traffic.setdefault(site, {})
            by_phase[phase] = by_phase.get(phase, Traffic()) + Traffic.of(reply)
        self._count_seconds()
        return replies

    def _count_seconds(self) -> None:
        self.seconds_per_exchange = min(self.seconds_per_exchange, self.transport.last_seconds)
        self.board.exchanged(self.transport.last_seconds)

    def _send(self, requests: Sequence[TrainRequest], *, part: bool) -> Iterator[Reply]:
        """The transport of a round of training."""
        sites, address = list(self.transport.sites), self._address(part)
        asked = {sites[request.client]: request for request in requests}
        packed = {site: with_address(pack_request(request), address) for site, request in asked.items()}
        replies = self._exchange("train", packed)
        for site, request in asked.items():
            try:
                yield unpack_reply(replies[site], request)
            except InvalidInput as error:
                yield ClientFailed(client=request.client, reason=str(error))
