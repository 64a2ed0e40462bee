"""A coordinator that learns only sums over all sites: it asks as others do, and gets totals by secure sums.

Told openly by each site are names and kinds of columns, the size of Hessians that it allows, its public key, names
of categories and classes that occur at least `min_cell` times in its table, whether it accepts the agreement, and
codes of refusals.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedscaffold.core.privacy import ClientLevel
from fedscaffold.core.types import Array
from fedscaffold.federation.agreement import Agreement
from fedscaffold.federation.payloads import Payload, pack_request
from fedscaffold.federation.refusals import RefusalCode
from fedscaffold.federation.run_config import RunConfig
from fedscaffold.federation.server.ledger import Ledger, next_ledger, reset_client_states, train_request
from fedscaffold.federation.study.certificate import SumsAsked
from fedscaffold.federation.study.coordinator import Coordinator, NotAccepted
from fedscaffold.federation.study.evaluate import SiteEvaluation
from fedscaffold.federation.study.greet import ColumnKind, SiteSchema
from fedscaffold.federation.study.measure import Measurements
from fedscaffold.federation.study.messages import SiteProblems, StudyMessage, pack, with_address
from fedscaffold.federation.study.prepare import TableSums, other_codings
from fedscaffold.federation.study.report.traffic import Traffic
from fedscaffold.federation.study.secure import numbers
from fedscaffold.federation.study.secure.blocks import SumBlock
from fedscaffold.federation.study.secure.conduct import SecureSums
from fedscaffold.federation.study.secure.ranges import range_of
from fedscaffold.federation.study.secure.tables import Labels, TableWords, read_labels


@dataclass(kw_only=True)
class SecureCoordinator(Coordinator):
    """Asks the sites of a study for sums over all of them.

    Parameters
    ----------
    identities
        The sites' public keys, in hexadecimal, as they told them.
    n_rows
        Number of rows of all sites, once it is known.
    """

    identities: dict[str, str] = field(default_factory=dict)
    n_rows: int = 0

    def __post_init__(self) -> None:
        self.sums = SecureSums(
            journal=self.transport,
            threshold=self.settings.threshold(len(self.transport.sites)),
            address=lambda payload: with_address(payload, self._address(False)),
            note=self.board.note,
        )

    @property
    def sites_are_fixed(self) -> bool:
        """Whether a sum was finished: with and without a site, two sums would tell that site's numbers."""
        return self.n_rows > 0

    def greet(self) -> dict[str, SiteSchema]:
        """Names and kinds of the columns of every site's table; the sites' keys go to all of them."""
        self.board.note(
            f"Secure sums: the coordinator learns only sums over all sites; {self.sums.threshold} of "
            f"{len(self.transport.sites)} sites must be there to the end of each."
        )
        schemas = super().greet()
        without = {
            site: f"site {site} told no key for secure sums; has it the package cryptography?"
            for site, schema in schemas.items()
            if not schema.identity
        }
        if without:
            raise SiteProblems(without)
        self.identities = {site: schema.identity for site, schema in schemas.items()}
        message = StudyMessage("peers", {"identities": self.identities})
        accepted = self._ask(message, lambda reply, site: reply.body.get("accepted") is True)
        refused = [site for site, yes in accepted.items() if not yes]
        if refused:
            raise NotAccepted({site: f"the other sites' keys were not accepted by {site}" for site in refused})
        return schemas

    def add_tables(self, kinds: Mapping[str, ColumnKind]) -> TableSums:
        """Counts and sums of the columns of all sites together."""
        labels = self._labels(kinds)
        words = TableWords(kinds=kinds, settings=self.settings, labels=labels)
        body = {"settings": self.settings.to_json(), "kinds": dict(kinds), "labels": dict(labels)}
        total = self._sum(StudyMessage("prepare", body), [SumBlock("table", words.length)])
        found = words.decode(total["table"])
        self.n_rows = found.rows
        return found

    def _labels(self, kinds: Mapping[str, ColumnKind]) -> Labels:
        """The values of each category, and of the target if it has classes, that are frequent at some site."""
        settings = self.settings
        named = {settings.target: [str(value) for value in settings.classes]} if settings.classes else {}
        open_target = settings.family.classes and not named
        if not open_target and "category" not in kinds.values():
            return named
        message = StudyMessage("labels", {"settings": settings.to_json(), "kinds": dict(kinds)})

        def read(reply: Any, site: str) -> Labels:
            return read_labels(reply.body.get("labels"), f"the labels of site {site}", kinds, settings)

        told = self._ask(message, read)
        if open_target:
            classes = {site: set(one[settings.target]) for site, one in told.items()}
            problems = other_codings(classes, settings.target)
            if problems:
                raise SiteProblems(problems)
        names = {name for one in told.values() for name in one}
        union = {name: sorted({label for one in told.values() for label in one[name]}) for name in sorted(names)}
        return union | named

    def measure(self) -> Measurements:
        """The largest of what the sites measure about themselves."""
        self.board.phase("measure")
        total = self._sum(StudyMessage("measure", {}), numbers.blocks_of_measurements())
        return numbers.measurements_from(total, self.transport.sites, self.n_rows)

    def train(
        self, config: RunConfig, ledger: Ledger, measured: Measurements, *, limit: float, part: bool
    ) -> Ledger:
        """One round of Scaffold with all sites, of which the mean of their models becomes known."""
        privacy = config.privacy
        spare = range_of(privacy, config.n_clients) if isinstance(privacy, ClientLevel) else numbers.SPARE
        blocks = [SumBlock("change", config.dim, spare)]
        while True:
            requests = [train_request(config, ledger, client) for client in range(config.n_clients)]
            questions = {
                site: with_address(pack_request(request), self._address(part))
                for site, request in zip(self.transport.sites, requests, strict=True)
            }
            try:
                change = self._total("train", questions, blocks, rows=measured.n_rows)["change"]
            except SiteProblems as error:
                if set(error.codes.values()) != {RefusalCode.STATE_LOST} or len(error.codes) < len(error.problems):
                    raise
                self.board.note(f"All control variates begin anew: {error}.")
                ledger = reset_client_states(config, ledger)
                continue
            mean = ledger.server.theta + change[None]
            server = config.method_at(ledger.round).aggregate(ledger.server, mean, np.ones(1))
            return next_ledger(config, ledger, server, dict.fromkeys(range(config.n_clients), 1.0))

    def add_sums(self, asked: SumsAsked, theta: Array, agreement: Agreement, *, part: bool) -> dict[str, Any]:
        """Sums over all sites at θ, by name."""
        message = StudyMessage("sums", asked.to_json(), {"theta": theta})
        blocks = numbers.blocks_of_sums(asked, agreement, self.n_rows)
        return numbers.sums_from(self._sum(message, blocks, part=part), asked)

    def evaluate(self, theta: Array, agreement: Agreement) -> dict[str, SiteEvaluation]:
        """How a model that was trained without them predicts the rows that the sites left out, all together."""
        message = StudyMessage("evaluate", {"min_cell": self.settings.min_cell}, {"theta": theta})
        total = self._sum(message, numbers.blocks_of_evaluation(agreement, self.n_rows))
        return {numbers.ALL_SITES: numbers.evaluation_from(total, min_cell=self.settings.min_cell)}

    def _sum(self, message: StudyMessage, blocks: Sequence[SumBlock], *, part: bool = False) -> dict[str, Any]:
        """The sum over all sites of their numbers for the same question."""
        question = with_address(pack(message), self._address(part))
        return self._total(message.phase, dict.fromkeys(self.transport.sites, question), blocks)

    def _total(
        self, phase: str, questions: Mapping[str, Payload], blocks: Sequence[SumBlock], **about: Any
    ) -> dict[str, Any]:
        found, traffic = self.sums.total(phase, questions, blocks, **about)
        for site, one in traffic.items():
            by_phase = self.traffic.setdefault(site, {})
            by_phase[phase] = by_phase.get(phase, Traffic()) + one
        self.seconds_per_exchange = self.transport.last_seconds  # of a sum; other exchanges are shorter
        self.board.exchanged(self.transport.last_seconds)
        return found
