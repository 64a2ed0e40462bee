"""The coordinator's transport over the network: messages to the sites' nodes through Flower's Fleet API."""

import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from fedscaffold.federation.payloads import Payload
from fedscaffold.federation.remote import RemoteTransport
from fedscaffold.federation.signing import SIGNATURE
from fedscaffold.flower.study.fleet import FleetServer

ASK_SILENT = 60.0  # seconds until a site that is online and silent is asked again, then twice as many each time
LONGEST_SILENCE = 3600.0  # of these seconds


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

    Parameters
    ----------
    server
        Serves the Fleet API.
    linger
        Seconds that sites have to fetch the last message; by post it stays in the folder.
    more
        See `RemoteTransport`.
    """

    def __init__(self, server: FleetServer, *, linger: float = 60.0, **more: Any) -> None:
        super().__init__(**more)
        self.server, self.linger = server, linger
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

    def deliver(self, requests: Mapping[str, Payload], seconds: float | None = None) -> None:
        """Send a last message to each of some sites, as long as the coordinator lingers."""
        super().deliver(requests, self.linger if seconds is None else seconds)

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
