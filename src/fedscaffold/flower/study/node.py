"""A site's node: speaks Flower's Fleet API with the coordinator's SuperLink and answers in its own process.

Flower's own SuperNode starts a process for every message and runs whatever app the coordinator sends. This node
does neither: the site's own installation answers, and its table stays in memory.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedscaffold.core.checks import shown
from fedscaffold.core.errors import InvalidInput, MissingDependency
from fedscaffold.federation.payloads import Payload
from fedscaffold.flower import wire

try:
    import httpx
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key
    from flwr.app import Message
    from flwr.app.message import remove_content_from_message
    from flwr.common.serde import message_to_proto
    from flwr.proto.fleet_pb2 import (
        ActivateNodeRequest,
        DeactivateNodeRequest,
        PullMessagesRequest,
        PushMessagesRequest,
    )
    from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
    from flwr.proto.node_pb2 import Node
    from flwr.supercore.inflatable.inflatable_object import (
        get_all_nested_objects,
        get_object_tree,
        no_object_id_recompute,
    )
    from flwr.supercore.inflatable.inflatable_protobuf_utils import (
        make_confirm_message_received_fn_protobuf,
        make_pull_object_fn_protobuf,
        make_push_object_fn_protobuf,
    )
    from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree, push_objects
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor
except ImportError as error:  # Flower's Fleet API is not among what it promises to keep
    raise MissingDependency(
        f"a site's node cannot use this version of Flower ({error}); install one that it can with: pip install "
        "'fedscaffold[flower]' 'flwr==1.41.*'"
    ) from error

HEARTBEAT_INTERVAL = 10.0  # seconds, the least that Flower allows; after two without one a node counts as gone
SECONDS_PER_HEARTBEAT = 5.0
FIRST_POLL, LONGEST_POLL, POLL_FACTOR = 0.3, 3.0, 1.2  # seconds between looks for messages, longer when idle
RETRY = 3.0  # seconds before connecting again
LINGER = 5.0  # seconds that a node stays after its last answer, which Flower forgets when it leaves
Answer = Callable[[Callable[[], Payload]], Payload]


class Unreachable(Exception):
    """The coordinator does not answer, or does not let this node in; the text says which."""


class StudyNode:
    """Connects a site to its coordinator, and keeps trying.

    Parameters
    ----------
    address
        HOST:PORT of the coordinator.
    authority
        The certificate authority's certificate, in PEM.
    private_key
        The node's private key, in OpenSSH's format.
    answer
        answer(read) → the reply to the request that `read` returns.
    tell
        Is told, in a sentence, what happens to the connection.
    """

    def __init__(
        self, *, address: str, authority: str, private_key: Path, answer: Answer, tell: Callable[[str], None]
    ) -> None:
        try:
            key = load_ssh_private_key(private_key.read_bytes(), None)
        except (OSError, ValueError) as error:
            raise InvalidInput(f"cannot read the node's key {private_key}: {error}") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise InvalidInput(f"{private_key} is not a key for a node")
        self.address, self.answer, self.tell = address, answer, tell
        self.public_key = public_key_to_bytes(key.public_key())
        signed = NodeAuthHttpInterceptor(key, key.public_key())
        self.client = FleetHttpClient.from_server_address(
            address, False, authority.encode(), [RuntimeVersionHttpInterceptor("SuperNode"), signed]
        )
        self._told = ""

    def run(self, done: Callable[[], bool]) -> None:
        """Answer messages until `done()`; connect again whenever the connection is lost."""
        while not done():
            try:
                node = self._activate()
                self._tell_once(f"connected to {self.address}")
                self._serve(node, done)
            except Unreachable as error:
                self._tell_once(str(error))
                time.sleep(RETRY)
        self.client.close()

    def _serve(self, node: Any, done: Callable[[], bool]) -> None:
        stop = threading.Event()
        beats = threading.Thread(target=self._send_heartbeats, args=(node, stop), daemon=True)
        beats.start()
        try:
            pause = FIRST_POLL
            while not done() and not stop.is_set():
                busy = self._answer_one(node)
                pause = FIRST_POLL if busy else min(pause * POLL_FACTOR, LONGEST_POLL)
                if not busy:
                    time.sleep(pause)
            if done():
                time.sleep(LINGER)
        finally:
            stop.set()
            beats.join()
            self._deactivate(node)
        if not done():
            raise Unreachable(f"the coordinator at {self.address} no longer knows this site; connecting again")

    def _send_heartbeats(self, node: Any, stop: threading.Event) -> None:
        request = SendNodeHeartbeatRequest(node=node, heartbeat_interval=HEARTBEAT_INTERVAL)
        while not stop.wait(SECONDS_PER_HEARTBEAT):
            try:
                if not self.client.SendNodeHeartbeat(request).success:
                    stop.set()
            except httpx.TransportError:
                continue  # the main thread notices too
            except httpx.HTTPStatusError:
                stop.set()

    def _answer_one(self, node: Any) -> bool:
        """Answer one message if one is there; whether one was."""
        found = self._call(self.client.PullMessages, PullMessagesRequest(node=node))
        if not found.messages_list:
            return False
        tree, run_id = found.message_object_trees[0], found.messages_list[0].metadata.run_id
        try:
            message = pull_and_inflate_object_from_tree(
                tree,
                make_pull_object_fn_protobuf(self.client.PullObject, node, run_id),
                make_confirm_message_received_fn_protobuf(self.client.ConfirmMessageReceived, node, run_id),
                return_type=Message,
            )
        except (httpx.HTTPError, OSError, RuntimeError, ValueError) as error:
            raise _lost("a message", error) from None
        message.metadata.__dict__["_message_id"] = tree.object_id
        began = time.monotonic()
        payload = self.answer(lambda: wire.from_one_record(message.content))
        reply = Message(wire.to_one_record(payload), reply_to=message)
        self._push(node, reply, time.monotonic() - began)
        return True

    def _push(self, node: Any, reply: Message, seconds: float) -> None:
        reply.metadata.__dict__["_message_id"] = reply.object_id
        with no_object_id_recompute():
            request = PushMessagesRequest(
                node=node, messages_list=[message_to_proto(remove_content_from_message(reply))],
                message_object_trees=[get_object_tree(reply)], clientapp_runtime_list=[seconds],
            )  # fmt: skip
            pushed = self._call(self.client.PushMessages, request)
            try:
                push_objects(
                    get_all_nested_objects(reply),
                    make_push_object_fn_protobuf(
                        self.client.PushObject, node, reply.metadata.run_id, pushed.session_id
                    ),
                    object_ids_to_push=set(pushed.objects_to_push),
                )
            except (httpx.HTTPError, OSError, RuntimeError, ValueError) as error:
                raise _lost("a reply", error) from None

    def _activate(self) -> Any:
        request = ActivateNodeRequest(public_key=self.public_key, heartbeat_interval=HEARTBEAT_INTERVAL)
        return Node(node_id=self._call(self.client.ActivateNode, request).node_id)

    def _deactivate(self, node: Any) -> None:
        with suppress(httpx.HTTPError, ValueError):  # it will notice by the missing heartbeats
            self.client.DeactivateNode(DeactivateNodeRequest(node_id=node.node_id))

    def _call(self, method: Callable[[Any], Any], request: Any) -> Any:
        try:
            return method(request)
        except httpx.HTTPStatusError as error:
            status = error.response.status_code
            if status in (502, 503, 504):
                raise Unreachable(f"the coordinator at {self.address} is not ready yet; trying again") from None
            raise Unreachable(
                "the coordinator has not accepted this site's key yet, or still waits for an earlier node of it; "
                "trying again"
            ) from None
        except httpx.HTTPError as error:
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                raise Unreachable(
                    f"whoever answers at {self.address} is not the coordinator of the invitation: its certificate "
                    "is another; ask for a new invitation"
                ) from None
            raise Unreachable(f"the coordinator cannot be reached at {self.address}; trying again") from None

    def _tell_once(self, sentence: str) -> None:
        if sentence != self._told:
            self._told = sentence
            self.tell(sentence)


def _lost(what: str, error: Exception) -> Unreachable:
    """What ends a connection on which something was lost: the coordinator asks a node that connects again anew."""
    return Unreachable(f"{what} was lost ({shown(str(error), longest=200)}); connecting again")
