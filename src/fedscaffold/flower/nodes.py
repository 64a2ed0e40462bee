"""The nodes of a Flower federation: their clients, and requests to them."""

import logging
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from flwr.app import Array as FlowerArray
from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedscaffold.core.checks import shown
from fedscaffold.core.errors import InvalidInput
from fedscaffold.federation.log import LOG as PROTOCOL_LOG
from fedscaffold.federation.messages import (
    ClientFailed,
    ClientHello,
    ClientRefused,
    Reply,
    TrainRequest,
    pack,
    unpack_hello,
    unpack_reply,
)
from fedscaffold.federation.run_config import RunConfig
from fedscaffold.flower import wire

T = TypeVar("T")
FLOWER_LOG = logging.getLogger("flwr")  # among whose lines those of the protocol and of this package stand
LOG = FLOWER_LOG.getChild("fedscaffold")
POLL_INTERVAL = 0.25  # seconds between two looks for replies
DISCOVER_INTERVAL = 3.0  # seconds between two looks for new nodes while replies are awaited
SELF_REGISTERED_WITHIN = 1.0  # seconds between a node's own registration and its activation, at most
HELLO_TIMEOUT = 60.0  # seconds that a node has to introduce itself before it is asked again


class Node(NamedTuple):
    """A node as Flower knows it; a restart changes its number, or the time of its activation."""

    number: int
    activated: str


class Nodes:
    """The node of each client, also after the node was started again, and the exchange of messages with it.

    A new node is asked which client it is; one that fails to answer is asked again after a minute. A client whose
    node is started again while the server waits for its reply is asked again, since that reply is lost.

    Parameters
    ----------
    grid
        Flower's grid.
    config
        The run's configuration.
    allowed_keys
        The public key that each client's node must have, in hexadecimal; None if any node may say which client it
        is.
    pin_keys
        Whether a client's node must keep the public key that it had first: a node with another key that says it is
        the same client is ignored. None for nodes that an operator registered, as with node authentication;
        without it every start of a node makes a new key.
    keys
        Public keys of clients from an earlier part of the run, in hexadecimal, to which pinned ones are added.
    """

    def __init__(
        self,
        grid: Grid,
        config: RunConfig,
        *,
        allowed_keys: Mapping[int, str] | None,
        pin_keys: bool | None,
        keys: dict[int, str],
    ) -> None:
        self.grid, self.config = grid, config
        self.allowed_keys, self.pin_keys, self.keys = allowed_keys, pin_keys, keys
        self.hellos: dict[int, ClientHello] = {}
        self._node_of: dict[int, Node] = {}
        self._offline: set[int] = set()  # clients that did not come online when they were waited for
        self._pending_hellos: dict[str, Node] = {}
        self._ask_hello_at: dict[Node, float] = {}

    def wait_for(self, clients: Iterable[int], *, seconds: float) -> set[int]:
        """Look for nodes until all of these clients are online or the time is over; return the clients online."""
        wanted, end = set(clients), time.monotonic() + seconds
        while True:
            online = wanted & self.discover()
            if online == wanted or time.monotonic() >= end:
                return online
            time.sleep(POLL_INTERVAL)

    def discover(self) -> set[int]:
        """Ask new nodes which client they are, read the answers so far, and return the clients online."""
        infos = {Node(info.node_id, info.last_activated_at): info for info in self.grid.get_nodes()}
        now = time.monotonic()
        new = [node for node in sorted(infos) if now >= self._ask_hello_at.get(node, 0.0)]
        self._ask_hello_at |= dict.fromkeys(new, now + HELLO_TIMEOUT)
        self._pending_hellos |= self._push(
            [(Message(RecordDict(), n.number, MessageType.QUERY, ttl=HELLO_TIMEOUT), n) for n in new]
        )
        for name, reply in self._pull(self._pending_hellos):
            node = self._pending_hellos.pop(name)
            if node not in infos:
                continue
            try:
                if reply.has_error():
                    reason = shown(reply.error.reason, longest=300)
                    raise InvalidInput(f"it does not say which client it is: {reason}")
                hello = unpack_hello(wire.from_records(reply.content))
                if isinstance(hello, ClientRefused):
                    raise InvalidInput(f"it does not take part: {hello.code.meaning}")
                self._ask_hello_at[node] = math.inf
                self._enter(node, infos[node], hello)
            except InvalidInput as error:
                LOG.warning("node %d is ignored: %s", node.number, error)
        return {client for client, node in self._node_of.items() if node in infos}

    def send(self, requests: Sequence[TrainRequest], *, timeout: float, connect_timeout: float) -> Iterator[Reply]:
        """Send requests and yield replies, for `timeout` seconds at most.

        Clients that are not online have `connect_timeout` seconds to come online; one that did not is not waited
        for again as long as others are. A client whose node changes in the meantime is asked again, and an error
        from its former node is ignored.
        """
        online = self._wait_once({request.client for request in requests}, connect_timeout)
        for request in requests:
            if request.client not in online:
                yield ClientFailed(client=request.client, reason="it is not online")
        waiting = {request.client: request for request in requests if request.client in online}
        packed: dict[int, FlowerArray] = {}
        asked_at: dict[int, Node] = {}
        sent: dict[str, tuple[int, Node]] = {}
        begun = discovered = time.monotonic()
        while waiting and time.monotonic() < begun + timeout:
            messages = []
            for client, request in waiting.items():
                if asked_at.get(client) != self._node_of[client]:
                    node = asked_at[client] = self._node_of[client]
                    ttl = max(1.0, begun + timeout - time.monotonic())
                    content, group = wire.to_records(pack(request), packed), str(request.round)
                    message = Message(content, node.number, MessageType.TRAIN, ttl=ttl, group_id=group)
                    messages.append((message, (client, node)))
            sent |= self._push(messages)
            for name, reply in self._pull(sent):
                client, node = sent.pop(name)
                if client in waiting and not (reply.has_error() and node != asked_at[client]):
                    yield _read(waiting.pop(client), reply)
            if waiting and time.monotonic() >= discovered + DISCOVER_INTERVAL:
                self.discover()
                discovered = time.monotonic()
            if waiting:
                time.sleep(POLL_INTERVAL)
        for client in waiting:
            yield ClientFailed(client=client, reason=f"no answer within {timeout:g} seconds")

    def _wait_once(self, clients: set[int], connect_timeout: float) -> set[int]:
        """Return the clients online after a wait, which is for clients that were offline before only if alone."""
        self.wait_for(clients - self._offline or clients, seconds=connect_timeout)
        online = self.discover() & clients
        self._offline = (self._offline | clients) - online
        return online

    def _enter(self, node: Node, info: Any, hello: ClientHello) -> None:
        client, key = hello.client, info.public_key.hex()
        if client >= self.config.n_clients:
            raise InvalidInput(
                f"it says that it is client {client}, but there are {self.config.n_clients} clients"
            )
        if hello.dim != self.config.dim:
            raise InvalidInput(
                f"client {client}'s model has {hello.dim} parameters, the server's {self.config.dim}; do they "
                "have the same columns or layers?"
            )
        if self.allowed_keys is not None and self.allowed_keys.get(client) != key:
            raise InvalidInput(f"it says that it is client {client}, but its key is not the one given for it")
        pinned = _registered_by_operator(info) if self.pin_keys is None else self.pin_keys
        if pinned and self.keys.setdefault(client, key) != key:
            raise InvalidInput(f"it says that it is client {client}, whose node has another key")
        if client in self._node_of:
            LOG.warning(
                "client %d is now node %d, before node %d", client, node.number, self._node_of[client].number
            )
        self._node_of[client] = node
        self.hellos[client] = hello

    def _push(self, messages: list[tuple[Message, T]]) -> dict[str, T]:
        """Send messages, each with a label; return the labels of accepted ones by message id."""
        accepted = set(self.grid.push_messages([message for message, _ in messages])) if messages else set()
        return {m.metadata.message_id: label for m, label in messages if m.metadata.message_id in accepted}

    def _pull(self, sent: Mapping[str, Any]) -> list[tuple[str, Message]]:
        """Return the replies that have arrived, each with the id of the message that it replies to."""
        replies = self.grid.pull_messages(list(sent)) if sent else []
        named = ((reply.metadata.reply_to_message_id, reply) for reply in replies)
        return [(name, reply) for name, reply in named if name in sent]


def _registered_by_operator(info: Any) -> bool:
    """Return whether the node was registered before it was started, as with node authentication.

    A node that registers itself, as without, is activated as soon as that is done.
    """
    try:
        waited = datetime.fromisoformat(info.last_activated_at) - datetime.fromisoformat(info.registered_at)
    except ValueError:
        return False
    return waited.total_seconds() > SELF_REGISTERED_WITHIN


def _read(request: TrainRequest, reply: Message) -> Reply:
    client = request.client
    if reply.has_error():
        return ClientFailed(client=client, reason=str(reply.error.reason))
    try:
        found = unpack_reply(wire.from_records(reply.content), request, wire.decode_vector)
    except InvalidInput as error:
        return ClientFailed(client=client, reason=f"its reply cannot be read: {error}")
    if found.client != client:
        return ClientFailed(client=client, reason=f"its reply says that it is client {found.client}")
    return found


class _FlowerHandlers(logging.Handler):
    """A handler that passes lines on to the handlers that Flower's logger has at that time."""

    def emit(self, record: logging.LogRecord) -> None:
        for handler in FLOWER_LOG.handlers:
            if record.levelno >= handler.level:
                handler.handle(record)


def show_protocol_log() -> None:
    """Write the lines of the protocol's log to Flower's handlers from now on."""
    if not any(isinstance(handler, _FlowerHandlers) for handler in PROTOCOL_LOG.handlers):
        PROTOCOL_LOG.addHandler(_FlowerHandlers())
        PROTOCOL_LOG.setLevel(logging.DEBUG)  # Flower's handlers have their own levels
