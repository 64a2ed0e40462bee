"""Which of Flower's nodes is which client, and how orders reach them."""

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from flwr.app import ArrayRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedscaffold.core.errors import InvalidInput
from fedscaffold.federation.log import LOG
from fedscaffold.federation.messages import Failed, Hello, Reply, TrainRequest
from fedscaffold.federation.run_config import RunConfig
from fedscaffold.flower import wire

T = TypeVar("T")
PULL_EVERY = 0.25  # seconds
MEET_EVERY = 3.0
GREETING = 60.0  # how long a node may take to say who it is, before it is asked again


class Node(NamedTuple):
    """A node as Flower knows it; a restart changes its number, or when it was activated."""

    number: int
    activated: str


class Nodes:
    """Finds each client's node, also when it was started again.

    A node that is new is asked who it is, by the key partition-id of its configuration; one that fails to say is
    asked again after a minute. A client whose node is
    started again while the server waits for its reply is asked again, since the reply is lost.

    Parameters
    ----------
    grid
        Flower's.
    terms
        Of the run.
    pin_keys
        Whether the first key that a client shows is the only one from then on: then a node with another key that
        says it is that client is ignored. Without node authentication every start of a node makes a new key.
    keys
        Of clients that are known from before, in hexadecimal.
    """

    def __init__(self, grid: Grid, terms: RunConfig, *, pin_keys: bool, keys: Mapping[int, str]) -> None:
        self.grid, self.terms, self.pin_keys = grid, terms, pin_keys
        self.keys = dict(keys)
        self.hellos: dict[int, Hello] = {}
        self._of: dict[int, Node] = {}
        self._given_up: set[int] = set()
        self._asking: dict[str, Node] = {}
        self._ask_again: dict[Node, float] = {}

    def wait_for(self, clients: Iterable[int], *, seconds: float) -> set[int]:
        """Meet nodes until all of these clients are online or time is over; those who are."""
        wanted, end = set(clients), time.monotonic() + seconds
        while True:
            there = wanted & self.meet()
            if there == wanted or time.monotonic() >= end:
                return there
            time.sleep(PULL_EVERY)

    def meet(self) -> set[int]:
        """Ask those nodes who they are that are new, hear those who answer now; the clients that are online."""
        infos = {Node(info.node_id, info.last_activated_at): info for info in self.grid.get_nodes()}
        now = time.monotonic()
        new = [node for node in sorted(infos) if now >= self._ask_again.get(node, 0.0)]
        self._ask_again |= dict.fromkeys(new, now + GREETING)
        self._asking |= self._push(
            [(Message(RecordDict(), n.number, MessageType.QUERY, ttl=GREETING), n) for n in new]
        )
        for name, reply in self._pull(self._asking):
            node = self._asking.pop(name)
            if node not in infos:
                continue
            try:
                if reply.has_error():
                    raise InvalidInput(f"it does not say who it is: {reply.error.reason}")
                self._ask_again[node] = math.inf
                self._enter(node, infos[node].public_key.hex(), wire.unpacked_hello(reply.content))
            except InvalidInput as error:
                LOG.warning("node %d is ignored: %s", node.number, error)
        return {client for client, node in self._of.items() if node in infos}

    def ask(self, orders: Sequence[TrainRequest], *, seconds: float, connect_timeout: float) -> Iterator[Reply]:
        """Send orders and take replies, for so many seconds at most; wait less for those who are not online.

        Who did not come online in that time is not waited for again while there are others.
        A client whose node changes in the meantime is asked again, and of its first message only an answer counts.
        """
        there = self._patiently({order.client for order in orders}, connect_timeout)
        for order in orders:
            if order.client not in there:
                yield Failed(client=order.client, reason="it is not online")
        waiting = {order.client: order for order in orders if order.client in there}
        shared: dict[int, ArrayRecord] = {}
        asked_at: dict[int, Node] = {}
        sent: dict[str, tuple[int, Node]] = {}
        begun = met = time.monotonic()
        while waiting and time.monotonic() < begun + seconds:
            messages = []
            for client, order in waiting.items():
                if asked_at.get(client) != self._of[client]:
                    node = asked_at[client] = self._of[client]
                    left = max(1.0, begun + seconds - time.monotonic())
                    content = wire.packed(order, shared)
                    message = Message(content, node.number, MessageType.TRAIN, ttl=left, group_id=str(order.round))
                    messages.append((message, (client, node)))
            sent |= self._push(messages)
            for name, reply in self._pull(sent):
                client, node = sent.pop(name)
                if client in waiting and not (reply.has_error() and node != asked_at[client]):
                    del waiting[client]
                    yield _read(client, reply)
            if waiting and time.monotonic() >= met + MEET_EVERY:
                self.meet()
                met = time.monotonic()
            if waiting:
                time.sleep(PULL_EVERY)
        for client in waiting:
            yield Failed(client=client, reason=f"no answer within {seconds:g} seconds")

    def _patiently(self, clients: set[int], connect_timeout: float) -> set[int]:
        """Those of them who are online after a wait, which those who let wait in vain before get only if alone."""
        self.wait_for(clients - self._given_up or clients, seconds=connect_timeout)
        online = self.meet() & clients
        self._given_up = (self._given_up | clients) - online
        return online

    def _enter(self, node: Node, key: str, hello: Hello) -> None:
        client = hello.client
        if not 0 <= client < self.terms.n_clients:
            raise InvalidInput(f"it says that it is client {client}, but there are {self.terms.n_clients}")
        if hello.dim != self.terms.dim:
            raise InvalidInput(
                f"client {client}'s model has {hello.dim} parameters, the server's {self.terms.dim}; do they have "
                "the same columns or layers?"
            )
        if hello.records < 1:
            raise InvalidInput(f"client {client} holds no records")
        if self.pin_keys and self.keys.setdefault(client, key) != key:
            raise InvalidInput(f"it says that it is client {client}, whose key is another")
        if client in self._of:
            LOG.warning("client %d is now node %d, before node %d", client, node.number, self._of[client].number)
        self._of[client] = node
        self.hellos[client] = hello

    def _push(self, messages: list[tuple[Message, T]]) -> dict[str, T]:
        """Send them, all at once; what goes with those that were taken, by their names."""
        taken = set(self.grid.push_messages([message for message, _ in messages])) if messages else set()
        return {m.metadata.message_id: what for m, what in messages if m.metadata.message_id in taken}

    def _pull(self, sent: Mapping[str, Any]) -> list[tuple[str, Message]]:
        """Replies that are there now, each with the name of what it replies to."""
        replies = self.grid.pull_messages(list(sent)) if sent else []
        named = ((reply.metadata.reply_to_message_id, reply) for reply in replies)
        return [(name, reply) for name, reply in named if name in sent]


def _read(client: int, reply: Message) -> Reply:
    if reply.has_error():
        return Failed(client=client, reason=str(reply.error.reason))
    try:
        found = wire.unpacked_reply(reply.content)
    except InvalidInput as error:
        return Failed(client=client, reason=str(error))
    if found.client != client:
        return Failed(client=client, reason=f"it says that it is client {found.client}")
    return found
