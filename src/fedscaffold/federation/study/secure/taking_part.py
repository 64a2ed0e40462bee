"""A site's part in secure sums: it keeps its numbers for a sum in memory, and sends them masked only."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.files import Fields
from fedscaffold.federation.payloads import Payload
from fedscaffold.federation.refusals import Refusal, RefusalCode
from fedscaffold.federation.secure_sum import SecureSumClient, SumSettings
from fedscaffold.federation.secure_sum.fixed_point import BeyondRange, Words
from fedscaffold.federation.secure_sum.in_process import take_step
from fedscaffold.federation.study.messages import SECURE_STEP, address_of, phase_of
from fedscaffold.federation.study.secure import steps
from fedscaffold.federation.study.secure.blocks import (
    SumBlock,
    beyond_range,
    encode,
    in_range,
    read_blocks,
    total_length,
)
from fedscaffold.federation.study.secure.peers import check_sites, identity_of, keep_sites, known_peers

if TYPE_CHECKING:
    from fedscaffold.federation.study.site import StudySite

LONGEST_ID = 200
CLIENT = "client"  # what a question tells each site alone: which client of a round it is


Numbers = Callable[[Payload, Fields, Sequence[SumBlock]], Mapping[str, Any]]


class _Open(NamedTuple):
    """A sum that this site takes part in."""

    sum_id: str  # as the coordinator calls it
    client: SecureSumClient
    words: Words
    phase: str
    answered: dict[str, tuple[str, Payload]]  # by step: a digest of the request, and the reply


class TakingPart:
    """The sums of one site, one after the other.

    Parameters
    ----------
    site
        The site.
    numbers
        numbers(question, told, blocks) → the site's numbers by block.
    """

    def __init__(self, site: "StudySite", numbers: Numbers) -> None:
        self.site, self.numbers = site, numbers
        self._open: _Open | None = None

    def answer(self, payload: Payload) -> tuple[Payload, str]:
        """The reply to a step, and the phase of its question; the same request again gets the same reply."""
        try:
            step, told, question = steps.unpack_step(payload)
            sum_id = told.text("sum", longest=LONGEST_ID)
        except InvalidInput as error:
            raise Refusal(RefusalCode.BAD_REQUEST, str(error)) from None
        open_sum = self._open
        if open_sum is None or open_sum.sum_id != sum_id:
            if step != steps.FIRST:
                raise Refusal(RefusalCode.SUM_LOST)
            open_sum = self._open = self._begin(sum_id, told, question)
        digest = _digest(payload)
        known, reply = open_sum.answered.get(step, ("", None))
        if reply is None:
            reply = self._take(open_sum, step, told)
            open_sum.answered[step] = (digest, reply)
        elif known != digest:
            raise Refusal(RefusalCode.BAD_REQUEST, f"the step {step} of a secure sum was asked for twice")
        return reply, open_sum.phase

    def _begin(self, sum_id: str, told: Fields, question: Payload) -> _Open:
        """Compute this site's numbers for a sum, and make the keys of it; nothing has left yet."""
        self._open = None
        try:
            names = tuple(str(name) for name in told.items("sites"))
            blocks = read_blocks(told, "blocks")
            settings = SumSettings(
                sum_id=f"{sum_id} {self._asked(told, question)}", clients=names, length=total_length(blocks),
                threshold=told.integer("threshold", least=self.site.secure_threshold(len(names))),
            )  # fmt: skip
        except InvalidInput as error:
            raise Refusal(RefusalCode.BAD_REQUEST, str(error)) from None
        peers = known_peers(self.site.store)
        if self.site.name not in names or any(name not in peers for name in names):
            raise Refusal(RefusalCode.PEERS_CHANGED, "a sum is asked for over sites whose keys are not known")
        check_sites(self.site.store, names)
        try:
            words = in_range(encode(self.numbers(question, told, blocks), blocks, len(names)))
        except BeyondRange as error:  # is told by the sum alone: a refusal would tell it of this site
            self.site.store.audit.write("beyond-range", text=str(error))
            words = beyond_range(blocks)
        except InvalidInput as error:
            raise Refusal(RefusalCode.SUM_RANGE, str(error)) from None
        client = SecureSumClient(self.site.name, settings, identity_of(self.site.store), peers)
        return _Open(sum_id, client, words, phase_of(question), {})

    def _asked(self, told: Fields, question: Payload) -> str:
        """A digest of all that this site's numbers follow from besides its rows, and that all sites must be asked.

        It is a part of the sum's name, to which keys and signatures are bound: sites that were asked for different
        things, at different models or in different codings, refuse each other's keys. Otherwise one site could be
        asked in earnest and the others for zeros, and the sum would tell the numbers of the one. The coordinator
        need not know it, since it never removes masks between sites of a study.
        """
        shared = {name: value for name, value in question.values.items() if name != CLIENT}
        accepted = self.site.accepted(address_of(question))
        coding = None if accepted is None else accepted["agreement"]
        return _digest(Payload({"told": told.as_dict(), "question": shared, "coding": coding}, question.arrays))

    def _take(self, open_sum: _Open, step: str, told: Fields) -> Payload:
        """Take a step; only sums over all sites are ever finished."""
        sites = open_sum.client.settings.clients
        try:
            content = steps.read_content(step, told)
            if step == "agree" and sorted(content) != sorted(sites):
                raise InvalidInput("a sum of a study is over all its sites, or it is repeated")
            if step == "unmask":
                keep_sites(self.site.store, sites)
            return steps.pack_reply(
                step, open_sum.phase, take_step(open_sum.client, step, content, open_sum.words)
            )
        except InvalidInput as error:
            self._open = None  # its keys are of no use any more
            raise Refusal(RefusalCode.SUM_LOST, f"step {step} of a secure sum: {error}") from None


def log_entry(reply: Payload) -> dict[str, Any]:
    """What the site's log says about a step's reply: masked vectors by size and digest, keys by digest."""
    step = str(reply.values[SECURE_STEP])
    body = str(reply.values.get("body", ""))
    what = {
        "announce": "public keys of this sum",
        "share": "shares of this sum's secrets, encrypted for the other sites",
        "mask": "this site's numbers, masked",
        "agree": "a signature under the list of sites",
        "unmask": "shares of the other sites' masks",
    }
    return {"secure": step, "what": what[step], "sha256": hashlib.sha256(body.encode()).hexdigest()}


def _digest(payload: Payload) -> str:
    found = hashlib.sha256(json.dumps(dict(payload.values), sort_keys=True, default=str).encode())
    for name in sorted(payload.arrays):
        found.update(json.dumps([name, np.shape(payload.arrays[name])]).encode())
        found.update(np.ascontiguousarray(payload.arrays[name]).data)
    return found.hexdigest()
