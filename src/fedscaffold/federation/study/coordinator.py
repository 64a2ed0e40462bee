"""The coordinator's side of a study: asks all sites, phase after phase, over any transport."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.storage.fields import Fields
from fedscaffold.core.types import Array
from fedscaffold.federation.agreement import Agreement
from fedscaffold.federation.history import new_run_id
from fedscaffold.federation.messages import ClientFailed, Reply, TrainRequest
from fedscaffold.federation.payloads import Payload, pack_request, unpack_reply
from fedscaffold.federation.study.certificate import add_sums, unpack_sums
from fedscaffold.federation.study.evaluate import SiteEvaluation
from fedscaffold.federation.study.greet import PROTOCOL, ColumnKind, SiteSchema
from fedscaffold.federation.study.measure import SiteMeasurement
from fedscaffold.federation.study.messages import (
    Address,
    SiteProblems,
    StudyMessage,
    pack,
    unpack,
    with_address,
)
from fedscaffold.federation.study.prepare import TableSums, agree_on_encoding
from fedscaffold.federation.study.report.status import StatusBoard
from fedscaffold.federation.study.report.traffic import Traffic
from fedscaffold.federation.study.settings import StudySettings
from fedscaffold.inference import ClosingSums

T = TypeVar("T")


class NotAccepted(SiteProblems):
    """Some sites do not accept the agreement; asking again would not change that."""


class Transport(Protocol):
    """Carries messages to sites and their replies back."""

    @property
    def sites(self) -> Sequence[str]:
        """Names of the sites, which are clients 0, 1, ... of training in this order."""

    def exchange(self, requests: Mapping[str, Payload]) -> Mapping[str, Payload]:
        """Send one message to each of some sites and return all their replies by site, or raise `SiteProblems`."""

    def deliver(self, requests: Mapping[str, Payload]) -> None:
        """Send a last message to each of some sites, as far as they can be reached."""

    @property
    def last_seconds(self) -> float:
        """How long the latest exchange took; a nominal number where results must not depend on the clock."""


@dataclass(kw_only=True)
class Coordinator:
    """Asks the sites of a study and validates what they answer.

    Parameters
    ----------
    transport
        Carries messages.
    settings
        What the people of the study decided.
    name
        Name of the study, which the sites' policies may allow or not.
    study_id
        Random identity of the study.
    board
        Is told how the study stands.
    traffic
        What arrived from each site, by phase.
    first_sums
        The first sums that sites told of all rows, and of the part that is not left out: what does not depend on
        the model is told once.
    """

    transport: Transport
    settings: StudySettings
    name: str = "study"
    study_id: str = field(default_factory=new_run_id)
    board: StatusBoard = field(default_factory=StatusBoard)
    traffic: dict[str, dict[str, Traffic]] = field(default_factory=dict)
    first_sums: dict[bool, dict[str, ClosingSums]] = field(default_factory=dict)

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
        message = StudyMessage("prepare", {"settings": self.settings.to_json(), "kinds": dict(kinds)})
        sums = self._ask(message, lambda reply, site: TableSums.from_json(reply.body, site, kinds, self.settings))
        agreement = agree_on_encoding(sums, kinds, self.settings)
        request = StudyMessage("agree", {"agreement": agreement.to_json()})
        accepted = self._ask(request, lambda reply, site: reply.body.get("accepted") is True)
        refused = [site for site, yes in accepted.items() if not yes]
        if refused:
            raise NotAccepted({site: f"the agreement was not accepted by {site}" for site in refused})
        return agreement

    def measure(self) -> dict[str, SiteMeasurement]:
        """What each site told about itself."""
        self.board.phase("measure")
        message = StudyMessage("measure", {})
        return self._ask(message, lambda reply, site: SiteMeasurement.from_json(reply.body, site))

    # evaluation

    def evaluate(self, theta: Array) -> dict[str, SiteEvaluation]:
        """How a model that was trained without them predicts the rows that each site left out."""
        message = StudyMessage("evaluate", {"min_cell": self.settings.min_cell}, {"theta": theta})
        return self._ask(message, lambda reply, site: SiteEvaluation.from_json(reply.body, site))

    def finish(self, told: Mapping[str, Any]) -> None:
        """Tell all sites that can be reached the result, which each keeps in its folder."""
        payload = with_address(pack(StudyMessage("finish", told)), self._address(False))
        self.transport.deliver(dict.fromkeys(self.transport.sites, payload))

    # the wire

    def closing_sums(self, theta: Array, agreement: Agreement, *, scores: bool, part: bool) -> ClosingSums:
        """Sums over all sites at θ from which certificates and standard errors follow; one exchange."""
        known = self.first_sums.get(part, {})

        def read(reply: StudyMessage, site: str) -> ClosingSums:
            return unpack_sums(
                reply.body, reply.arrays, site, agreement, theta, scores=scores, fixed=known.get(site)
            )

        wanted = {"hessian": True, "scores": scores, "fixed": not known}
        found = self._ask(StudyMessage("sums", wanted, {"theta": theta}), read, part=part)
        self.first_sums.setdefault(part, found)
        return add_sums(list(found.values()))

    def gradient_and_loss(self, theta: Array, *, part: bool) -> tuple[Array, float]:
        """∇f(θ) and f(θ) over all rows of all sites, with the penalty; one exchange."""

        def read(reply: StudyMessage, site: str) -> tuple[int, float, Array]:
            fields, arrays = (Fields(each, f"the sums of site {site}") for each in (reply.body, reply.arrays))
            rows = fields.integer("rows", least=1, most=2**53)
            return rows, fields.number("loss"), arrays.array("gradient", theta.shape)

        message = StudyMessage("sums", {"hessian": False}, {"theta": theta})
        each = self._ask(message, read, part=part).values()
        rows, loss = sum(n for n, _, _ in each), sum(part for _, part, _ in each)
        return sum((one for _, _, one in each), np.zeros_like(theta)) / rows, loss / rows

    def _ask(
        self, message: StudyMessage, read: Callable[[StudyMessage, str], T], *, part: bool = False
    ) -> dict[str, T]:
        """The same message to all sites; what `read` finds in their replies, in the sites' order."""
        payload = with_address(pack(message), self._address(part))
        replies = self._exchange(message.phase, dict.fromkeys(self.transport.sites, payload))
        found, problems = {}, {}
        for site in self.transport.sites:
            try:
                reply = unpack(replies[site], f"site {site}")
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
        self.board.exchanged(self.transport.last_seconds)
        return replies

    def send(self, requests: Sequence[TrainRequest], *, part: bool) -> Iterator[Reply]:
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
