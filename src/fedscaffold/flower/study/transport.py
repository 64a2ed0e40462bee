"""The coordinator's transport: messages to the sites' nodes through Flower's grid."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from fedscaffold.core.checks import shown
from fedscaffold.core.errors import InvalidInput
from fedscaffold.federation.payloads import Payload
from fedscaffold.federation.refusals import MEANING, RefusalCode
from fedscaffold.federation.signing import Signer
from fedscaffold.federation.study.messages import SiteProblems, refusal_in
from fedscaffold.federation.study.report.status import StatusBoard
from fedscaffold.flower import wire
from fedscaffold.flower.nodes import Node

POLL_INTERVAL = 0.2  # seconds between two looks for replies
DISCOVER_INTERVAL = 2.0  # seconds between two looks for nodes
ASK_AGAIN = 15.0  # seconds after a refusal, in which people can mend what was wrong
REMIND_INTERVAL = 60.0  # seconds between two lines about who is waited for
DELIVER_SECONDS = 60.0  # for sites to fetch the result
SPARE_SECONDS = 10.0  # for sites that a secure sum can be finished without
ASK_SILENT = 60.0  # seconds until a site that is online and silent is asked again, then twice as many each time
MESSAGE_LIFE = 3600.0  # seconds until Flower forgets a message; it is sent again then at the latest
BEGIN_AGAIN = (  # asking again would not help
    RefusalCode.NO_AGREEMENT,
    RefusalCode.DATA_CHANGED,
    RefusalCode.OTHER_MODEL,
    RefusalCode.SUM_LOST,
    RefusalCode.SUM_RANGE,
    RefusalCode.STATE_LOST,
)


class Sent(NamedTuple):
    """A request that is under way, sent at a time of the monotonic clock, and again after some seconds."""

    site: str
    node: Node
    at: float
    patience: float


class FlowerTransport:
    """Carries a study's messages to nodes, which are known by the keys that were accepted for them.

    Parameters
    ----------
    grid
        Flower's grid.
    sites
        Names of the sites.
    keys
        keys() → the public key of each site's node, in hexadecimal, as far as they have been accepted.
    signer
        Signs requests.
    leave_out_after
        Seconds after which a site that does not answer is a problem; None to wait for ever, and to ask a site that
        refuses again.
    board
        Is told who is online, offline or refused.
    tell
        Is told, in a sentence, what happens.
    """

    def __init__(
        self,
        grid: Grid,
        *,
        sites: Sequence[str],
        keys: Callable[[], Mapping[str, str]],
        signer: Signer,
        leave_out_after: float | None,
        board: StatusBoard,
        tell: Callable[[str], None],
    ) -> None:
        self.grid, self.sites, self.keys, self.signer = grid, list(sites), keys, signer
        self.leave_out_after, self.board, self.tell = leave_out_after, board, tell
        self.last_seconds = 0.0
        self._nodes: dict[str, Node] = {}
        self._discovered = -DISCOVER_INTERVAL

    def exchange(self, requests: Mapping[str, Payload], *, enough: int | None = None) -> Mapping[str, Payload]:
        """Send one message to each of some sites and return all their replies, or raise `SiteProblems`.

        Where so many replies are `enough`, those that come within some seconds are returned.
        """
        replies, problems, codes = self._collect(requests, self.leave_out_after, enough)
        if enough is None or len(replies) < enough:
            silent = [site for site in requests if site not in replies and site not in problems]
            problems |= {site: self._silent(site) for site in silent}
            if problems:
                raise SiteProblems(problems, codes)
        return {site: replies[site] for site in requests if site in replies}

    def deliver(self, requests: Mapping[str, Payload]) -> None:
        """Send a last message to each of some sites; those that do not answer within a minute are named."""
        replies, _, _ = self._collect(requests, DELIVER_SECONDS)
        missing = [site for site in requests if site not in replies]
        if missing:
            self.tell(f"the result did not reach {', '.join(missing)}")

    def _collect(
        self, requests: Mapping[str, Payload], most_seconds: float | None, enough: int | None = None
    ) -> tuple[dict[str, Payload], dict[str, str], dict[str, RefusalCode]]:
        """The replies that arrive within some seconds, or all of them, and why some sites will give none.

        Where so many replies are `enough`, the others have `SPARE_SECONDS` from the beginning.
        """
        replies: dict[str, Payload] = {}
        problems: dict[str, str] = {}
        codes: dict[str, RefusalCode] = {}
        seconds: dict[str, float] = {}
        asked: dict[str, Sent] = {}  # the newest request to each site
        not_before: dict[str, float] = {}  # when a site that refused is asked again
        under_way: dict[str, Sent] = {}  # by the message's id
        begun = reminded = time.monotonic()
        while waiting := [site for site in requests if site not in replies and site not in problems]:
            self._discover()
            under_way |= self._push(requests, waiting, asked, not_before)
            for sent, reply in self._pull(under_way):
                if sent.site not in waiting or (reply.has_error() and sent != asked.get(sent.site)):
                    continue
                try:
                    found = self._read(sent, reply, not_before)
                except SiteProblems as error:
                    problems, codes = problems | error.problems, codes | error.codes
                    continue
                if found is not None:
                    replies[sent.site], seconds[sent.site] = found, time.monotonic() - sent.at
            now = time.monotonic()
            if most_seconds is not None and now > begun + most_seconds:
                break
            if enough is not None and len(replies) >= enough and now > begun + SPARE_SECONDS:
                break
            if now > reminded + REMIND_INTERVAL:
                reminded = now
                self.tell("waiting for " + ", ".join(f"{site} ({self._state(site)})" for site in waiting))
            if len(replies) + len(problems) < len(requests):
                time.sleep(POLL_INTERVAL)
        self.last_seconds = max(seconds.values(), default=0.0)
        return replies, problems, codes

    def _discover(self) -> None:
        """Find the nodes of the sites by their keys, from time to time."""
        if time.monotonic() < self._discovered + DISCOVER_INTERVAL:
            return
        self._discovered = time.monotonic()
        site_of = {key: site for site, key in self.keys().items()}
        online = {}
        for info in self.grid.get_nodes():
            site = site_of.get(info.public_key.hex())
            if site is not None:
                online[site] = Node(info.node_id, info.last_activated_at)
        for site in self.sites:
            if site in online and site not in self._nodes:
                self.board.site(site, "online")
                self.tell(f"site {site} is online")
            elif site in self._nodes and site not in online:
                self.board.site(site, "offline")
                self.tell(f"site {site} is offline")
        self._nodes = online

    def _push(
        self, requests: Mapping[str, Payload], waiting: Sequence[str], asked: dict[str, Sent],
        not_before: Mapping[str, float],
    ) -> dict[str, Sent]:  # fmt: skip
        """Send to those online whose node is new, whose refusal is some time ago, or who are silent for long.

        A message or its reply may be lost on the way; sites give the same reply to the same request.
        """
        now, messages = time.monotonic(), []
        for site in waiting:
            node, before, patience = self._nodes.get(site), asked.get(site), ASK_SILENT
            if node is None or now < not_before.get(site, 0.0):
                continue
            if before is not None and before.node == node and before.at > not_before.get(site, 0.0):
                if now < before.at + before.patience:
                    continue
                self.tell(f"site {site} has not answered for {before.patience:g} s; asking it again")
                patience = min(2.0 * before.patience, MESSAGE_LIFE)
            records = wire.to_one_record(self.signer.sign(requests[site], site))
            message = Message(records, node.number, MessageType.TRAIN, ttl=MESSAGE_LIFE)
            asked[site] = Sent(site, node, now, patience)
            messages.append((message, asked[site]))
        accepted = set(self.grid.push_messages([message for message, _ in messages])) if messages else set()
        for message, sent in messages:
            if message.metadata.message_id not in accepted:
                del asked[sent.site]
        return {m.metadata.message_id: sent for m, sent in messages if m.metadata.message_id in accepted}

    def _pull(self, under_way: dict[str, Sent]) -> list[tuple[Sent, Message]]:
        found = []
        for reply in self.grid.pull_messages(list(under_way)) if under_way else ():
            sent = under_way.pop(reply.metadata.reply_to_message_id, None)
            if sent is not None:
                found.append((sent, reply))
        return found

    def _read(self, sent: Sent, reply: Message, not_before: dict[str, float]) -> Payload | None:
        """The payload of a reply; None if the site is to be asked again."""
        site = sent.site
        if reply.has_error():
            why = f"the node of site {site} failed: {shown(reply.error.reason, longest=200)}"
        else:
            try:
                payload = wire.from_one_record(reply.content)
            except InvalidInput as error:
                raise SiteProblems({site: f"the reply of site {site} cannot be read: {error}"}) from None
            code = refusal_in(payload)
            if code is None:
                self.board.site(site, "online")
                return payload
            why = f"site {site} refuses: {MEANING[code]}"
            if self.leave_out_after is not None or code in BEGIN_AGAIN:
                raise SiteProblems({site: why}, {site: code})
        self.board.site(site, "refused", why)
        self.tell(f"{why}; asking it again every {ASK_AGAIN:g} s")
        not_before[site] = time.monotonic() + ASK_AGAIN
        return None

    def _silent(self, site: str) -> str:
        return f"site {site} did not answer within {self.leave_out_after:g} seconds ({self._state(site)})"

    def _state(self, site: str) -> str:
        if site in self._nodes:
            return "online"
        return "offline" if site in self.keys() else "no key of it was accepted"
