"""The coordinator's side of a study's secure sums: all steps over a transport, repeated until there is a sum.

A sum is over all sites of the study or there is none. A site that falls silent before it has sent its masked
numbers ends an attempt, of which nothing becomes known; the next one has new keys. After that as many sites as the
threshold are enough. Only finished sums are kept in the journal: a coordinator that was killed asks for an
unfinished one anew, so that no mask is ever used for two contents.
"""

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedscaffold.core.errors import InvalidInput
from fedscaffold.federation.payloads import Payload
from fedscaffold.federation.refusals import RefusalCode
from fedscaffold.federation.secure_sum import SumFailed, SumSettings, conduct_sum
from fedscaffold.federation.secure_sum.fixed_point import BeyondRange
from fedscaffold.federation.study.journal import Journal, Kept
from fedscaffold.federation.study.messages import SiteProblems
from fedscaffold.federation.study.report.traffic import Traffic
from fedscaffold.federation.study.secure import steps
from fedscaffold.federation.study.secure.blocks import SumBlock, decode, total_length, wider, within_range

MOST_ATTEMPTS = 20  # at one sum
WIDER, MOST_WIDER = 2.0**12, 4  # how much a range grows when a site's numbers are beyond it, and how often
Address = Callable[[Payload], Payload]


@dataclass(kw_only=True)
class SecureSums:
    """Conducts the secure sums of a study.

    Parameters
    ----------
    journal
        Reaches the sites, and keeps finished sums.
    threshold
        Number of sites that must be there to the end.
    address
        address(payload) → the payload with the study that it belongs to.
    note
        Is told, in a sentence, when a sum is repeated.
    widened
        How often the range of each phase's numbers grew.
    """

    journal: Journal
    threshold: int
    address: Address
    note: Callable[[str], None]
    widened: dict[str, int] = field(default_factory=dict)

    def total(
        self, phase: str, questions: Mapping[str, Payload], blocks: Sequence[SumBlock], **about: Any
    ) -> tuple[dict[str, Any], dict[str, Traffic]]:
        """The sum over all sites of their numbers for a question, by block, and what each site sent for it.

        Parameters
        ----------
        phase
            The phase of the study.
        questions
            The question to each site.
        blocks
            Which numbers are asked for.
        about
            What the sites need to know besides, as values that JSON can hold.
        """
        told = Payload({"blocks": json.dumps([phase, *blocks, about])})
        found = self.journal.keep(
            {**questions, "": told}, lambda: self._until_done(phase, questions, blocks, about)
        )
        self.widened[phase] = found.description.integer("widened", least=0, most=MOST_WIDER)
        sent = found.description.fields("traffic")
        traffic = {site: _traffic(*sent.integers(site, least=0, count=3)) for site in sent.names()}
        return decode(found.arrays["total"], wider(blocks, WIDER ** self.widened[phase]), len(questions)), traffic

    def _until_done(
        self, phase: str, questions: Mapping[str, Payload], blocks: Sequence[SumBlock], about: Mapping[str, Any]
    ) -> Kept:
        widened = self.widened.get(phase, 0)
        for _ in range(MOST_ATTEMPTS):
            if widened > MOST_WIDER:
                raise InvalidInput("numbers of the sites are not finite, or too large for secure sums")
            attempt = _Attempt(self, questions, wider(blocks, WIDER**widened), about)
            try:
                return attempt.run(widened)
            except SumFailed as error:
                self.note(f"A secure sum is repeated: {error}.")
            except BeyondRange as error:
                widened += 1
                self.note(f"A secure sum is repeated: {error}.")
            except SiteProblems as error:
                if len(error.codes) < len(error.problems) or set(error.codes.values()) != {RefusalCode.SUM_LOST}:
                    raise
                self.note(f"A secure sum is repeated: {error}.")
        raise InvalidInput(
            f"a secure sum failed {MOST_ATTEMPTS} times: a site is started again and again, or for every message, "
            "as Flower's own SuperNode does"
        )


def _traffic(messages: int, numbers: int, size: int) -> Traffic:
    return Traffic(messages=messages, numbers=numbers, bytes=size)


class _Attempt:
    """One attempt at a sum, with a name and keys of its own."""

    def __init__(
        self,
        sums: SecureSums,
        questions: Mapping[str, Payload],
        blocks: Sequence[SumBlock],
        about: Mapping[str, Any],
    ) -> None:
        self.sums, self.questions = sums, questions
        self.about = {"sites": list(questions), "threshold": sums.threshold, "blocks": list(blocks), **about}
        self.settings = SumSettings(
            sum_id=f"{sums.journal.study_id} {sums.journal.count} {secrets.token_hex(16)}",
            clients=tuple(questions), length=total_length(blocks), threshold=sums.threshold,
        )  # fmt: skip
        self.traffic = dict.fromkeys(questions, Traffic())
        self.seconds = 0.0

    def run(self, widened: int) -> Kept:
        words, _ = conduct_sum(self.settings, self.exchange)
        total = within_range(words)
        if total is None:
            raise BeyondRange("numbers of some site are beyond the range")
        traffic = {site: [one.messages, one.numbers, one.bytes] for site, one in self.traffic.items()}
        return Kept({"total": total}, {"traffic": traffic, "widened": widened}, self.seconds)

    def exchange(self, step: str, messages: Mapping[str, Any]) -> dict[str, Any]:
        """The replies of the sites to a step, validated field by field."""
        if step == steps.FIRST:
            requests = {
                site: steps.pack_step(step, self.settings.sum_id, None, question, **self.about)
                for site, question in self.questions.items()
            }
        else:
            requests = {
                site: self.sums.address(steps.pack_step(step, self.settings.sum_id, message))
                for site, message in messages.items()
            }
        enough = None if step in steps.ALL_NEEDED else self.settings.threshold
        transport = self.sums.journal.transport
        replies = transport.exchange(requests, enough=enough)
        self.seconds += transport.last_seconds
        found, problems = {}, {}
        for site, reply in replies.items():
            self.traffic[site] += Traffic.of(reply)
            try:
                found[site] = steps.unpack_reply(reply, step, site, self.settings.length)
            except InvalidInput as error:
                problems[site] = str(error)
        silent = [site for site in requests if site not in replies]
        if enough is None:
            problems |= {site: f"site {site} did not answer" for site in silent}
        if problems:
            raise SiteProblems(problems)
        return found
