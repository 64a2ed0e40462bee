"""Which of Flower's nodes is which client, and how orders reach them."""

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from flwr.app import ArrayRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedscaffold.core.errors import InvalidInput
from fedscaffold.flower import wire
from fedscaffold.flower.log import LOG
from fedscaffold.flower.messages import Failed, Hello, Order, Reply
from fedscaffold.flower.terms import Terms

PULL_EVERY = 0.25  # seconds
MEET_EVERY = 3.0
GREETING = 60.0  # how long a node may take to say who it is


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

    def __init__(self, grid: Grid, terms: Terms, *, pin_keys: bool, keys: Mapping[int, str]) -> None:
        self.grid, self.terms, self.pin_keys = grid, terms, pin_keys
        self.keys = dict(keys)
        self.hellos: dict[int, Hello] = {}
        self._of: dict[int, Node] = {}
        self._ask_again: dict[Node, float] = {}

    def wait_for(self, clients: Iterable[int], *, seconds: float) -> set[int]:
        """Meet nodes until all of these clients are online or time is over; those who are."""
        wanted, end = set(clients), time.monotonic() + seconds
        while True:
            there = wanted & self.meet()
            if there == wanted or time.monotonic() >= end:
                return there
            time.sleep(min(1.0, seconds))

    def meet(self) -> set[int]:
        """Ask those nodes who they are that are new; the clients that are online."""
        infos = {Node(info.node_id, info.last_activated_at): info for info in self.grid.get_nodes()}
        new = sorted(node for node in infos if time.monotonic() >= self._ask_again.get(node, 0.0))
        messages = {Message(RecordDict(), node.number, MessageType.QUERY, ttl=GREETING): node for node in new}
        sent = self._push(list(messages))
        end = time.monotonic() + GREETING
        while sent and time.monotonic() < end:
            for asked, reply in self._pull(sent):
                node = messages[asked]
                self._ask_again[node] = math.inf
                try:
                    if reply.has_error():
                        self._ask_again[node] = time.monotonic() + GREETING
                        raise InvalidInput(f"it does not say who it is: {reply.error.reason}")
                    self._enter(node, infos[node].public_key.hex(), wire.unpacked_hello(reply.content))
                except InvalidInput as error:
                    LOG.warning("node %d is ignored: %s", node.number, error)
            if sent:
                time.sleep(PULL_EVERY)
        return {client for client, node in self._of.items() if node in infos}

    def ask(self, orders: Sequence[Order], *, seconds: float, patience: float) -> Iterator[Reply]:
        """Send orders and take replies, for so many seconds at most; wait less for those who are not online."""
        there = self.wait_for([order.client for order in orders], seconds=patience)
        shared: dict[int, ArrayRecord] = {}
        for order in orders:
            if order.client not in there:
                yield Failed(client=order.client, reason="it is not online")
        waiting = [order for order in orders if order.client in there]
        end = time.monotonic() + seconds
        messages, asked_at = dict[Message, Order](), dict[int, Node]()
        sent: dict[str, Message] = {}
        met = time.monotonic()
        while waiting:
            again = [order for order in waiting if asked_at.get(order.client) != self._of[order.client]]
            for order in again:
                node = asked_at[order.client] = self._of[order.client]
                left = max(1.0, end - time.monotonic())
                content = wire.packed(order, shared)
                message = Message(content, node.number, MessageType.TRAIN, ttl=left, group_id=str(order.round))
                messages[message] = order
                sent |= self._push([message])
            for asked, reply in self._pull(sent):
                order = messages[asked]
                if order in waiting and asked.metadata.dst_node_id == asked_at[order.client].number:
                    waiting.remove(order)
                    yield _read(order.client, reply)
            if time.monotonic() >= end:
                break
            if time.monotonic() >= met + MEET_EVERY:
                self.meet()
                met = time.monotonic()
            if waiting:
                time.sleep(PULL_EVERY)
        for order in waiting:
            yield Failed(client=order.client, reason=f"no answer within {seconds:g} seconds")

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

    def _push(self, messages: list[Message]) -> dict[str, Message]:
        """Send them; those that were taken, by their names."""
        if not messages:
            return {}
        taken = set(self.grid.push_messages(messages))
        return {m.metadata.message_id: m for m in messages if m.metadata.message_id in taken}

    def _pull(self, sent: dict[str, Message]) -> Iterator[tuple[Message, Message]]:
        """(message, reply) of those that have one now; they are taken out of what was sent."""
        if not sent:
            return
        for reply in self.grid.pull_messages(list(sent)):
            asked = sent.pop(reply.metadata.reply_to_message_id, None)
            if asked is not None:
                yield asked, reply


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
