"""The coordinator's side of a study: asks all sites, phase after phase, over any transport."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

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
from fedscaffold.federation.study.greet import ColumnKind, SiteSchema
from fedscaffold.federation.study.measure import SiteMeasurement
from fedscaffold.federation.study.messages import StudyMessage, pack, unpack
from fedscaffold.federation.study.prepare import TableSums, agree_on_encoding
from fedscaffold.federation.study.report.status import StatusBoard
from fedscaffold.federation.study.report.traffic import Traffic
from fedscaffold.federation.study.settings import StudySettings
from fedscaffold.inference import ClosingSums


class Transport(Protocol):
    """Carries messages to sites and their replies back."""

    @property
    def sites(self) -> Sequence[str]:
        """Names of the sites, which are clients 0, 1, ... of training in this order."""

    def exchange(self, requests: Mapping[str, Payload]) -> Mapping[str, Payload]:
        """Send one message to each of some sites and return their replies by site."""

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
    """

    transport: Transport
    settings: StudySettings
    name: str = "study"
    study_id: str = field(default_factory=new_run_id)
    board: StatusBoard = field(default_factory=StatusBoard)
    traffic: dict[str, dict[str, Traffic]] = field(default_factory=dict)

    def run_id(self, run_name: str) -> str:
        """The identity of a run of this study, the same when the study is continued."""
        return hashlib.sha256(f"{self.study_id} {run_name}".encode()).hexdigest()[:32]

    # preparation

    def greet(self) -> dict[str, SiteSchema]:
        """Names and kinds of the columns of every site's table."""
        self.board.phase("greet")
        replies = self._ask(StudyMessage("greet", {"settings": self.settings.to_json()}))
        return {site: SiteSchema.from_json(reply.body, site) for site, reply in replies.items()}

    def prepare(self, kinds: Mapping[str, ColumnKind]) -> Agreement:
        """The encoding that all sites use and have accepted."""
        self.board.phase("prepare")
        message = StudyMessage("prepare", {"settings": self.settings.to_json(), "kinds": dict(kinds)})
        sums = {
            site: TableSums.from_json(reply.body, site, kinds, self.settings)
            for site, reply in self._ask(message).items()
        }
        agreement = agree_on_encoding(sums, kinds, self.settings)
        replies = self._ask(StudyMessage("agree", {"agreement": agreement.to_json()}))
        refused = [site for site, reply in replies.items() if reply.body.get("accepted") is not True]
        if refused:
            raise InvalidInput(f"the agreement was not accepted by {', '.join(refused)}")
        return agreement

    def measure(self) -> dict[str, SiteMeasurement]:
        """What each site told about itself."""
        self.board.phase("measure")
        replies = self._ask(StudyMessage("measure", {}))
        return {site: SiteMeasurement.from_json(reply.body, site) for site, reply in replies.items()}

    # evaluation

    def evaluate(self, theta: Array) -> dict[str, SiteEvaluation]:
        """How a model that was trained without them predicts the rows that each site left out."""
        message = StudyMessage("evaluate", {"min_cell": self.settings.min_cell}, {"theta": theta})
        return {site: SiteEvaluation.from_json(reply.body, site) for site, reply in self._ask(message).items()}

    # the wire

    def closing_sums(self, theta: Array, agreement: Agreement, *, scores: bool, part: bool) -> ClosingSums:
        """Sums over all sites at θ from which certificates and standard errors follow; one exchange."""
        message = StudyMessage("sums", {"hessian": True, "scores": scores, "part": part}, {"theta": theta})
        return add_sums(
            [
                unpack_sums(reply.body, reply.arrays, site, agreement, theta, scores=scores)
                for site, reply in self._ask(message).items()
            ]
        )

    def gradient_and_loss(self, theta: Array, *, part: bool) -> tuple[Array, float]:
        """∇f(θ) and f(θ) over all rows of all sites, with the penalty; one exchange."""
        message = StudyMessage("sums", {"hessian": False, "scores": False, "part": part}, {"theta": theta})
        rows, loss, gradient = 0, 0.0, np.zeros_like(theta)
        for site, reply in self._ask(message).items():
            fields, arrays = (Fields(each, f"the sums of site {site}") for each in (reply.body, reply.arrays))
            rows += fields.integer("rows", least=1, most=2**53)
            loss += fields.number("loss")
            gradient = gradient + arrays.array("gradient", theta.shape)
        return gradient / rows, loss / rows

    def _ask(self, message: StudyMessage) -> dict[str, StudyMessage]:
        """The same message to all sites; their replies in the sites' order."""
        payload = pack(message)
        replies = self._exchange(message.phase, dict.fromkeys(self.transport.sites, payload))
        found = {}
        for site in self.transport.sites:
            if site not in replies:
                raise InvalidInput(f"site {site} did not answer")
            reply = unpack(replies[site], f"site {site}")
            if reply.phase != message.phase:
                raise InvalidInput(f"site {site} answered {reply.phase} when it was asked to {message.phase}")
            found[site] = reply
        return found

    def _exchange(self, phase: str, requests: Mapping[str, Payload]) -> Mapping[str, Payload]:
        """The sites' replies, counted by site and phase."""
        replies = self.transport.exchange(requests)
        for site, reply in replies.items():
            by_phase = self.traffic.setdefault(site, {})
            by_phase[phase] = by_phase.get(phase, Traffic()) + Traffic.of(reply)
        self.board.exchanged(self.transport.last_seconds)
        return replies

    def send(self, requests: Sequence[TrainRequest]) -> Iterator[Reply]:
        """The transport of a round of training."""
        sites = list(self.transport.sites)
        asked = {sites[request.client]: request for request in requests}
        replies = self._exchange("train", {site: pack_request(request) for site, request in asked.items()})
        for site, request in asked.items():
            if site in replies:
                try:
                    yield unpack_reply(replies[site], request)
                except InvalidInput as error:
                    yield ClientFailed(client=request.client, reason=str(error))
