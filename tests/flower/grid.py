"""A Grid without processes: messages to nodes are handled when their replies are asked for."""

from collections.abc import Callable, Iterable
from typing import Any
from uuid import uuid4

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.run import Run

Handle = Callable[["Node", Message], Message | None]


class Node:
    """A SuperNode: a number, a key, and a configuration."""

    def __init__(self, number: int, config: dict[str, Any], key: bytes = b"") -> None:
        self.number, self.config, self.key = number, config, key or number.to_bytes(8, "big")
        self.activated = "0"
        self.online = True


class FakeGrid(Grid):
    """Nodes that run an app; `handle` may do something else with a message."""

    def __init__(self, app: ClientApp, nodes: list[Node]) -> None:
        self.app, self.nodes = app, nodes
        self.handle: Handle = self.run_app
        self.waiting: dict[str, Message] = {}
        self.seen: list[Message] = []

    def run_app(self, node: Node, message: Message) -> Message | None:
        """What a SuperNode does."""
        context = Context(
            run_id=1, node_id=node.number, node_config=node.config, state=RecordDict(), run_config={}
        )
        try:
            return self.app(message, context)
        except Exception as error:
            return Message(Error(code=0, reason=str(error)), reply_to=message)

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [
            NodeInfo(node_id=node.number, public_key=node.key, last_activated_at=node.activated)
            for node in self.nodes
            if node.online
        ]

    def get_node_ids(self) -> Iterable[int]:
        return [info.node_id for info in self.get_nodes()]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        names = []
        for message in messages:
            name = str(uuid4())
            message.metadata.__dict__["_message_id"] = name
            self.waiting[name] = message
            self.seen.append(message)
            names.append(name)
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        replies = []
        for name in sorted(message_ids, reverse=True):
            if name not in self.waiting:
                continue
            message = self.waiting[name]
            node = next((n for n in self.nodes if n.number == message.metadata.dst_node_id), None)
            if node is None or not node.online:
                reply: Message | None = Message(Error(code=0, reason="node unavailable"), reply_to=message)
            else:
                reply = self.handle(node, message)
            if reply is not None:
                self.waiting.pop(name, None)
                replies.append(reply)
        return replies

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))

    def set_run(self, run: Run) -> None:
        raise AssertionError("not called")

    @property
    def run(self) -> Run:
        raise AssertionError("not called")

    def create_message(self, *arguments: Any, **more: Any) -> Message:
        raise AssertionError("not called")
