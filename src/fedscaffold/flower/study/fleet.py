"""Flower's Fleet API at both ends of a study: all names that Flower does not promise to keep are in this file.

The coordinator serves the Fleet API in its own process, behind TLS and for accepted keys only. Of a SuperLink it
has nothing else: no API that starts runs, no apps, no database. So no request executes code, and the coordinator's
signing key is never in a place where Flower runs apps. A site's node answers in its own process too, with the
site's installation; Flower's SuperNode would run whatever app the coordinator sends.

`FlowerTransport` is the coordinator's transport on top of it, and `answer_flower` the loop of a site's node.
"""

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Self, cast

from fedscaffold.core.checks import shown
from fedscaffold.core.errors import InvalidInput, MissingDependency
from fedscaffold.federation.messages import Payload
from fedscaffold.federation.study.roster import SIGNATURE
from fedscaffold.federation.study.transport import RemoteTransport
from fedscaffold.flower import wire
from fedscaffold.flower.certificates import Certificates, key_in_hexadecimal

try:
    import httpx
    import uvicorn
    from cryptography.hazmat.primitives.asymmetric import ec
    from fastapi import FastAPI
    from flwr.app import Message, MessageType
    from flwr.app.message.message import make_message, remove_content_from_message
    from flwr.app.metadata import Metadata
    from flwr.common.constant import NOOP_ACCOUNT_NAME, NOOP_FLWR_AID, SUPERLINK_NODE_ID, Status
    from flwr.common.serde import message_to_proto
    from flwr.proto import fleet_pb2
    from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
    from flwr.proto.node_pb2 import Node
    from flwr.proto.task_pb2 import TaskStatus
    from flwr.server.superlink.linkstate import LinkStateFactory
    from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME, NOOP_FEDERATION_ID, TaskType
    from flwr.supercore.error import http_error_translator
    from flwr.supercore.inflatable import inflatable_object as trees
    from flwr.supercore.inflatable import inflatable_protobuf_utils as calls
    from flwr.supercore.inflatable import inflatable_utils as inflation
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
    from flwr.supercore.object_store import ObjectStoreFactory
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes
    from flwr.supercore.protobuf.translation import ProtobufTranslationMiddleware
    from flwr.superlink.federation import NoOpFederationManager
    from flwr.superlink.routers.fleet.node_auth import NodeAuthMiddleware
    from flwr.superlink.routers.fleet.router import router as fleet_router
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor
    from starlette.middleware import Middleware
    from starlette.middleware.base import BaseHTTPMiddleware
except ImportError as error:
    raise MissingDependency(
        f"studies over the network cannot use this version of Flower ({error}); install one that they can with: "
        "pip install 'fedscaffold[study]'"
    ) from error

FLOWER_LOG = logging.getLogger("flwr")
START_SECONDS = 30.0  # for the server to come up, which takes a tenth of a second
STOP_SECONDS = 5.0  # for it to end
MESSAGE_LIFE = 30 * 86400.0  # seconds until Flower forgets a message; it is asked again long before
NODE_BEAT = 10.0  # seconds, the least that Flower allows; after two without one a node counts as gone
LARGEST_MESSAGE = 2**28  # bytes of a request: three Hessians of 1,000 coefficients in wide numbers fit
ASK_SILENT = 60.0  # seconds until a site that is online and silent is asked again, then twice as many each time
LONGEST_SILENCE = 3600.0  # of these seconds
SECONDS_PER_HEARTBEAT = 5.0  # a coordinator counts a node as gone after twenty without one
FIRST_POLL, LONGEST_POLL, POLL_FACTOR = 0.05, 2.0, 1.1  # seconds between looks for messages, longer when idle
RETRY = 3.0  # seconds before connecting again
LINGER = 1.0  # seconds that a node stays after its last answer, which Flower forgets when it leaves


class Unreachable(Exception):
    """The coordinator does not answer, or does not let this node in; the text says which."""


class FleetServer:
    """The coordinator's end: sites are known by their keys, and each has at most one message to answer.

    Flower's own lines, which would otherwise stand on the terminal, go to the file `log`.
    """

    def __init__(self, *, host: str, port: int, certificates: Certificates, log: Path | None = None) -> None:
        self.host, self.port, self.certificates, self.log = host, port, certificates, log
        factory = LinkStateFactory(
            FLWR_IN_MEMORY_DB_NAME, NoOpFederationManager(), ObjectStoreFactory(FLWR_IN_MEMORY_DB_NAME)
        )
        self._state = cast(Any, factory.state())
        self._app = FastAPI(  # Flower's Fleet API with authentication of nodes, and no other route
            openapi_url=None,
            middleware=[
                Middleware(_SizeLimit), Middleware(BaseHTTPMiddleware, dispatch=http_error_translator),
                Middleware(ProtobufTranslationMiddleware), Middleware(NodeAuthMiddleware),
            ],
        )  # fmt: skip
        self._app.state.linkstate_factory = factory
        self._app.state.enable_supernode_auth = True  # only keys that were registered before
        self._app.include_router(fleet_router)
        self._nodes: dict[str, int] = {}
        self._keys: dict[str, bytes] = {}
        self._asked: dict[str, str] = {}  # the id of each site's message
        self._arriving: dict[str, str] = {}  # the id of each site's reply, while its parts arrive
        self._run = self._state.create_run(
            None, None, None, {}, NOOP_FEDERATION_ID, None, NOOP_FLWR_AID, TaskType.SERVER_APP
        )
        for task in self._state.task_store.values():  # of the run; without a token, it never expires
            task.status.CopyFrom(TaskStatus(status=Status.RUNNING))

    def __enter__(self) -> Self:
        listener = socket.socket(socket.AF_INET6 if ":" in self.host else socket.AF_INET)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((self.host, self.port))
        except OSError as error:
            listener.close()
            raise InvalidInput(
                f"cannot listen on port {self.port}: {error.strerror}; choose another port for the study's address"
            ) from None
        self._handlers, self._propagates = FLOWER_LOG.handlers[:], FLOWER_LOG.propagate
        to_file = logging.NullHandler() if self.log is None else logging.FileHandler(self.log, encoding="utf-8")
        to_file.setLevel(logging.INFO)  # without a line for every look for messages
        FLOWER_LOG.handlers[:] = [to_file]
        FLOWER_LOG.propagate = False
        config = uvicorn.Config(
            self._app, log_config=None, access_log=False, lifespan="off", ws="none", server_header=False,
            ssl_certfile=str(self.certificates.certificate), ssl_keyfile=str(self.certificates.key),
            timeout_graceful_shutdown=2,
        )  # fmt: skip
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [listener]}, daemon=True)
        self._thread.start()
        end = time.monotonic() + START_SECONDS
        while not self._server.started and self._thread.is_alive() and time.monotonic() < end:
            time.sleep(0.01)
        if not self._server.started:
            self.__exit__()
            raise InvalidInput(f"the server on port {self.port} did not start")
        return self

    def __exit__(self, *error: object) -> None:
        self._server.should_exit = True
        self._thread.join(STOP_SECONDS)
        for handler in FLOWER_LOG.handlers:
            handler.close()
        FLOWER_LOG.handlers[:], FLOWER_LOG.propagate = self._handlers, self._propagates

    def register(self, site: str, key: str) -> None:
        """Let the node with a public key, in OpenSSH's format, in as a site; a former key of it is not let in."""
        pem = bytes.fromhex(key_in_hexadecimal(key))
        if self._keys.get(site) == pem:
            return
        if site in self._nodes:
            self._forget(site)
            self._state.delete_node(NOOP_FLWR_AID, self._nodes.pop(site))
        self._nodes[site] = self._state.create_node(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, pem, NODE_BEAT, name=site)
        self._keys[site] = pem

    def online(self) -> dict[str, str]:
        """Return the sites that are connected, each with a text that changes when it connects again."""
        site_of = {node: site for site, node in self._nodes.items()}
        found = self._state.get_node_info(node_ids=list(site_of), statuses=["online"])
        return {site_of[info.node_id]: str(info.last_activated_at) for info in found}

    def ask(self, site: str, payload: Payload) -> None:
        """Put a message for a site that is online in place of an earlier one."""
        self._forget(site)
        metadata = Metadata(
            run_id=self._run, message_id="", src_node_id=SUPERLINK_NODE_ID, dst_node_id=self._nodes[site],
            reply_to_message_id="", group_id="", created_at=time.time(), ttl=MESSAGE_LIFE,
            message_type=MessageType.TRAIN,
        )  # fmt: skip
        message = make_message(metadata=metadata, content=wire.to_one_record(payload))
        message.metadata.__dict__["_message_id"] = message.object_id
        with trees.no_object_id_recompute():
            session, objects = self._state.start_session(self._run), trees.get_all_nested_objects(message)
            stored, missing = self._state.store_message_and_object_tree(
                remove_content_from_message(message), trees.get_object_tree(message), session
            )
            if not stored:  # it has just left
                return
            for name in missing:
                self._state.store_object(self._run, session, name, objects[name].deflate())
        self._asked[site] = message.object_id

    def collect(self) -> dict[str, Payload | str]:
        """Return the replies that have arrived by site, each once; a text says why there will be none."""
        found: dict[str, Payload | str] = {}
        site_of = {name: site for site, name in self._asked.items()}
        for message in self._state.get_message_res(set(site_of), self._run):
            site = site_of[message.metadata.reply_to_message_id]
            if message.has_error():
                found[site] = shown(message.error.reason, longest=200)
            else:
                self._arriving[site] = message.metadata.message_id
        for site, name in list(self._arriving.items()):
            try:
                reply = self._inflated(name)
                if reply is None:
                    continue
                found[site] = wire.from_one_record(reply.content)
            except Exception as error:  # whatever Flower trips over in a message that may hold anything
                found[site] = f"its reply cannot be read: {shown(str(error), longest=200)}"
        for site in found:
            self._forget(site)
        return found

    def _inflated(self, name: str) -> Message | None:
        """Return a message from its parts; None if some have not arrived yet."""
        parts = {}
        for tree in trees.iterate_object_tree(self._state.object_store.get_object_tree(name)):
            content = self._state.get_object(self._run, tree.object_id)
            if content is None:
                raise ValueError("a part was lost")
            if not content:
                return None
            parts[tree.object_id] = content
        found = inflation.inflate_object_from_contents(name, parts)
        if not isinstance(found, Message) or found.has_error():
            raise ValueError("it is not a message")
        return found

    def _forget(self, site: str) -> None:
        """Remove a site's message and the reply to it."""
        asked, arriving = self._asked.pop(site, None), self._arriving.pop(site, None)
        if asked is not None:
            self._state.delete_messages({asked})  # with the reply
        for name in (asked, arriving):
            if name is not None:
                self._state.object_store.delete(name)


class _SizeLimit:
    """Middleware that rejects requests without a length, or with one that no message of a study has."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        length = dict(scope.get("headers", ())).get(b"content-length", b"")
        if scope["type"] == "http" and not (length.isdigit() and int(length) <= LARGEST_MESSAGE):
            await send({"type": "http.response.start", "status": 413, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        await self.app(scope, receive, send)


class Fetched(NamedTuple):
    """A message that a node fetched: its payload, and Flower's message, to which the reply refers."""

    payload: Payload
    message: Any


class FleetConnection:
    """A site's end: a node that fetches messages and sends replies; `authority` is a certificate in PEM."""

    def __init__(self, *, address: str, authority: str, key: ec.EllipticCurvePrivateKey) -> None:
        self.address = address
        self._public = public_key_to_bytes(key.public_key())
        self._client = FleetHttpClient.from_server_address(
            address, False, authority.encode(),
            [RuntimeVersionHttpInterceptor("SuperNode"), NodeAuthHttpInterceptor(key, key.public_key())],
        )  # fmt: skip
        self._node = Node()

    def activate(self) -> None:
        """Say that this node is there; raise `Unreachable` if there is no answer."""
        request = fleet_pb2.ActivateNodeRequest(public_key=self._public, heartbeat_interval=NODE_BEAT)
        self._node = Node(node_id=self._call(self._client.ActivateNode, request).node_id)

    def deactivate(self) -> None:
        """Say that this node leaves."""
        with suppress(httpx.HTTPError, ValueError):  # it will be noticed by the missing heartbeats
            self._client.DeactivateNode(fleet_pb2.DeactivateNodeRequest(node_id=self._node.node_id))

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def beat(self) -> bool:
        """Send a heartbeat; return whether the coordinator still knows this node."""
        request = SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=NODE_BEAT)
        try:
            return bool(self._client.SendNodeHeartbeat(request).success)
        except httpx.TransportError:
            return True  # the loop that fetches messages notices too
        except httpx.HTTPStatusError:
            return False

    def fetch(self) -> Fetched | None:
        """Return the next message; None if there is none now."""
        found = self._call(self._client.PullMessages, fleet_pb2.PullMessagesRequest(node=self._node))
        if not found.messages_list:
            return None
        tree, run = found.message_object_trees[0], found.messages_list[0].metadata.run_id
        try:
            message = inflation.pull_and_inflate_object_from_tree(
                tree,
                calls.make_pull_object_fn_protobuf(self._client.PullObject, self._node, run),
                calls.make_confirm_message_received_fn_protobuf(
                    self._client.ConfirmMessageReceived, self._node, run
                ),
                return_type=Message,
            )
        except (httpx.HTTPError, OSError, RuntimeError, ValueError) as error:
            raise _lost("a message", error) from None
        message.metadata.__dict__["_message_id"] = tree.object_id
        return Fetched(wire.from_one_record(message.content), message)

    def reply(self, received: Fetched, payload: Payload) -> None:
        """Send the reply to a message; the time that it took, which may depend on rows, is reported as 0."""
        reply = Message(wire.to_one_record(payload), reply_to=received.message)
        reply.metadata.__dict__["_message_id"] = reply.object_id
        with trees.no_object_id_recompute():
            request = fleet_pb2.PushMessagesRequest(
                node=self._node, messages_list=[message_to_proto(remove_content_from_message(reply))],
                message_object_trees=[trees.get_object_tree(reply)], clientapp_runtime_list=[0.0],
            )  # fmt: skip
            pushed = self._call(self._client.PushMessages, request)
            send = calls.make_push_object_fn_protobuf(
                self._client.PushObject, self._node, reply.metadata.run_id, pushed.session_id
            )
            try:
                objects, asked = trees.get_all_nested_objects(reply), set(pushed.objects_to_push)
                inflation.push_objects(objects, send, object_ids_to_push=asked)
            except (httpx.HTTPError, OSError, RuntimeError, ValueError) as error:
                raise _lost("a reply", error) from None

    def _call(self, method: Callable[[Any], Any], request: Any) -> Any:
        try:
            return method(request)
        except httpx.HTTPStatusError as error:
            if error.response.status_code in (502, 503, 504):
                raise Unreachable(f"the coordinator at {self.address} is not ready yet; trying again") from None
            raise Unreachable(
                "the coordinator has not accepted this site's key yet, or still waits for an earlier node of it; "
                "trying again"
            ) from None
        except httpx.HTTPError as error:
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                raise Unreachable(
                    f"the server at {self.address} is not the coordinator of the invitation: its certificate "
                    "is another; ask for a new invitation"
                ) from None
            raise Unreachable(f"the coordinator cannot be reached at {self.address}; trying again") from None


def _lost(what: str, error: Exception) -> Unreachable:
    """Return the end of a connection on which something was lost; a node that connects again is asked anew."""
    return Unreachable(f"{what} was lost ({shown(str(error), longest=200)}); connecting again")


class Sent(NamedTuple):
    """A request that is under way: to which connection of a site, since when, and how long it is waited for."""

    question: str
    connection: str
    at: float
    patience: float


class FlowerTransport(RemoteTransport):
    """The transport of a study to nodes, which are known by the keys that were accepted for them.

    A message or its reply may be lost on the way: a site that connects again, or is silent for long, is asked
    again, and gives the same reply to the same request.
    """

    def __init__(self, server: FleetServer, **more: Any) -> None:
        super().__init__(**more)
        self.server = server
        self._online: Mapping[str, str] = {}
        self._under_way: dict[str, Sent] = {}
        for site, key in self.keys.items():
            server.register(site, key)

    def move(self, requests: Mapping[str, Payload]) -> Iterable[tuple[str, Payload | str]]:
        """Ask the sites that are online, and return the replies that have arrived."""
        self._look()
        questions = {site: str(request.values[SIGNATURE]) for site, request in requests.items()}
        found, now = dict[str, Payload | str](), time.monotonic()
        for site, reply in self.server.collect().items():
            before = self._under_way.pop(site, None)
            gone = isinstance(reply, str) and site not in self._online  # it is asked again when it is back
            if before is not None and before.question == questions.get(site) and not gone:
                found[site] = reply
        for site, question in questions.items():
            connection, before, patience = self._online.get(site), self._under_way.get(site), ASK_SILENT
            if connection is None or site in found:
                continue
            if before is not None and (before.question, before.connection) == (question, connection):
                if now < before.at + before.patience:
                    continue
                self.say(f"site {site} has not answered for {before.patience:g} s; asking it again")
                patience = min(2.0 * before.patience, LONGEST_SILENCE)
            self._under_way[site] = Sent(question, connection, now, patience)
            self.server.ask(site, requests[site])
        return found.items()

    def forget(self, site: str) -> None:
        """Ask a site again the next time."""
        self._under_way.pop(site, None)

    def _look(self) -> None:
        """Note which sites came and went."""
        online = self.server.online()
        for site in self.sites:
            if (site in online) != (site in self._online):
                state = "online" if site in online else "offline"
                self.on_site(site, state, "")
                self.say(f"site {site} is {state}")
        self._online = online


def answer_flower(
    connection: FleetConnection,
    *,
    answer: Callable[[Payload], Payload],
    done: Callable[[], bool],
    say: Callable[[str], None],
) -> None:
    """Answer messages until `done()`; connect again whenever the connection is lost.

    `answer` gives the signed reply to a request; `say` is called with a sentence when the state of the connection
    changes.
    """
    said = ""

    def say_once(sentence: str) -> None:
        nonlocal said
        if sentence != said:
            say(sentence)
        said = sentence

    try:
        while not done():
            try:
                connection.activate()
                say_once(f"connected to {connection.address}")
                _serve(connection, answer, done)
            except Unreachable as error:
                say_once(str(error))
                time.sleep(RETRY)
    finally:
        connection.close()


def _serve(connection: FleetConnection, answer: Callable[[Payload], Payload], done: Callable[[], bool]) -> None:
    gone = threading.Event()

    def beat() -> None:
        while not gone.wait(SECONDS_PER_HEARTBEAT):
            if not connection.beat():
                gone.set()

    beats = threading.Thread(target=beat, daemon=True)
    beats.start()
    try:
        pause = FIRST_POLL
        while not done() and not gone.is_set():
            received = connection.fetch()
            if received is not None:
                connection.reply(received, answer(received.payload))
                pause = FIRST_POLL
            else:
                time.sleep(pause)
                pause = min(pause * POLL_FACTOR, LONGEST_POLL)
        if done():
            time.sleep(LINGER)
    finally:
        gone.set()
        beats.join()
        connection.deactivate()
    if not done():
        raise Unreachable(f"the coordinator at {connection.address} no longer knows this site; connecting again")
