"""Both ends of a study over the network, by Flower's Fleet API: the coordinator's transport, a site's node."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from fedscaffold.federation.payloads import Payload
from fedscaffold.federation.study.roster import SIGNATURE
from fedscaffold.federation.study.transport import RemoteTransport
from fedscaffold.flower.study.fleet import FleetConnection, FleetServer, Unreachable

ASK_SILENT = 60.0  # seconds until a site that is online and silent is asked again, then twice as many each time
LONGEST_SILENCE = 3600.0  # of these seconds
SECONDS_PER_HEARTBEAT = 5.0  # a coordinator counts a node as gone after twenty without one
FIRST_POLL, LONGEST_POLL, POLL_FACTOR = 0.05, 2.0, 1.1  # seconds between looks for messages, longer when idle
RETRY = 3.0  # seconds before connecting again
LINGER = 1.0  # seconds that a node stays after its last answer, which Flower forgets when it leaves


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
