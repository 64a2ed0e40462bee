"""Transports, which carry messages of a study to the sites, and the journal in which their answers are kept.

The coordinator's questions are a function of the answers before. So a study that is started again asks the same
questions, and reads the answers that it already has from its folder, to the same bits; the first question without
an answer goes to the sites. `InProcess` is the transport without a network; messages to sites that are elsewhere
are signed.

`PostTransport` carries messages as files in a folder that the coordinator and the sites can reach: a share, a
synchronised folder or SFTP. No port is opened and no Flower is needed. Each site has a folder inside the study's,
with at most one request and the reply to it. Files appear whole or not at all; if the service behind the folder
copies them piece by piece, a piece is not taken for a message, since every file has a digest. A name is the digest
of its request, so that copies, delays and another order change nothing. All readers of the folder can read the
messages: numbers of single sites if sums are open, masked numbers otherwise.
"""

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec

from fedscaffold.core import npz
from fedscaffold.core.errors import CheckpointMismatch, InvalidInput
from fedscaffold.core.files import Fields, folder_at
from fedscaffold.federation.log import LOG
from fedscaffold.federation.messages import Payload
from fedscaffold.federation.refusals import RefusalCode
from fedscaffold.federation.study.roster import check_signature, digest_of, sign
from fedscaffold.federation.study.site import StudySite, refusal_in

WHAT = "fedscaffold study exchange 2"
REMIND = 60.0  # seconds between two lines about who is waited for
ASK_AGAIN = 15.0  # seconds after a failure that people or time may mend
MENDABLE = (RefusalCode.BUSY, RefusalCode.CANNOT_WRITE, RefusalCode.STATE_UNREADABLE, RefusalCode.INTERNAL)
REQUEST, REPLY = "request-", "reply-"
POLL = 0.05  # seconds between two looks into the folder, which cost nothing on a local disk
LONGEST_POLL = 2.0  # seconds between looks after a while without news: shares are slower than disks
VALUES = "values"


class SiteProblems(InvalidInput):
    """Reasons why some sites cannot take part.

    Parameters
    ----------
    problems
        A sentence for each of these sites.
    codes
        The codes with which some of them rejected a message.

    Examples
    --------
    >>> from fedscaffold.federation.study.transport import SiteProblems
    >>> print(SiteProblems({"lyon": "site lyon did not answer in time"}))
    site lyon did not answer in time
    """

    def __init__(self, problems: Mapping[str, str], codes: Mapping[str, RefusalCode] | None = None) -> None:
        super().__init__("; ".join(problems.values()))
        self.problems, self.codes = dict(problems), dict(codes or {})


class Transport(Protocol):
    """A way to carry messages to sites and their replies back."""

    @property
    def last_seconds(self) -> float:
        """Duration of the latest exchange; a nominal number if results must not depend on the clock."""

    def exchange(self, requests: Mapping[str, Payload]) -> Mapping[str, Payload]:
        """Send a message to each of some sites and return all their replies, or raise `SiteProblems`."""

    def deliver(self, requests: Mapping[str, Payload]) -> None:
        """Send a last message to each of some sites, as far as they can be reached."""


def check_replies(replies: Mapping[str, Payload]) -> Mapping[str, Payload]:
    """Return replies, or raise `SiteProblems` if some sites rejected the message."""
    codes = {site: code for site, reply in replies.items() if (code := refusal_in(reply)) is not None}
    if codes:
        raise SiteProblems({site: f"site {site}: {code.meaning}" for site, code in codes.items()}, codes)
    return replies


@dataclass
class InProcess:
    """A transport to sites in this process.

    Parameters
    ----------
    members
        The sites by name.
    """

    members: Mapping[str, StudySite]
    last_seconds: float = 1.0  # nominal, so that results do not depend on the clock

    def exchange(self, requests: Mapping[str, Payload]) -> Mapping[str, Payload]:
        """Let each site answer."""
        return check_replies({site: self.members[site].answer(payload) for site, payload in requests.items()})

    def deliver(self, requests: Mapping[str, Payload]) -> None:
        """Let each site keep the last message."""
        self.exchange(requests)


def private_folder(path: str | os.PathLike[str]) -> Path:
    """Return a folder, made for its owner alone if it is missing."""
    folder = Path(path)
    if not folder.is_dir():
        folder_at(folder).chmod(0o700)
    return folder


class Journal:
    """A transport that keeps answers in a folder, and returns the answers of an earlier start again.

    Parameters
    ----------
    transport
        Carries messages that were not answered before.
    folder
        The coordinator's folder, made for its owner alone; None keeps nothing.
    on_exchange
        Called with the duration of each exchange that is complete, now or before.
    """

    def __init__(
        self,
        transport: Transport,
        folder: str | os.PathLike[str] | None,
        on_exchange: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self.transport, self.on_exchange = transport, on_exchange
        self.folder = None if folder is None else private_folder(folder)
        self.count, self.last_seconds = 0, 0.0

    def exchange(self, requests: Mapping[str, Payload]) -> Mapping[str, Payload]:
        """Return the sites' replies, from the folder if the same was asked at this place before."""
        self.count += 1
        asked = hashlib.sha256(
            "".join(digest_of(one, site) for site, one in requests.items()).encode()
        ).hexdigest()
        path = None if self.folder is None else self.folder / f"exchange-{self.count:06d}.npz"
        if path is not None and path.exists():
            replies = self._stored(path, asked)
        else:
            replies = self.transport.exchange(requests)
            self.last_seconds = self.transport.last_seconds
            if path is not None:
                self._store(path, asked, replies)
        self.on_exchange(self.last_seconds)
        return replies

    def _store(self, path: Path, asked: str, replies: Mapping[str, Payload]) -> None:
        arrays = {f"{k}/{name}": a for k, one in enumerate(replies.values()) for name, a in one.arrays.items()}
        values = {site: dict(reply.values) for site, reply in replies.items()}
        description = {"what": WHAT, "asked": asked, "sites": list(replies), "values": values}
        npz.write(path, arrays, {**description, "seconds": self.last_seconds}, private=True)

    def _stored(self, path: Path, asked: str) -> Mapping[str, Payload]:
        try:
            arrays, description = npz.read(path)
        except (OSError, ValueError) as error:
            raise CheckpointMismatch(f"{path} cannot be read: {error}; delete it and all later ones") from None
        fields = Fields(description, str(path), error=CheckpointMismatch)
        fields.choice("what", WHAT)
        if fields.text("asked") != asked:
            raise CheckpointMismatch(
                f"{path} answers another question than the one asked now: the study's settings, its sites or the "
                "version of fedscaffold have changed; choose another folder"
            )
        self.last_seconds = fields.number("seconds", least=0.0)
        values = fields.fields("values")
        return {
            site: Payload(values.fields(site).as_dict(), _arrays_of(arrays, k))
            for k, site in enumerate(str(name) for name in fields.items("sites"))
        }


def _arrays_of(arrays: Mapping[str, Any], k: int) -> dict[str, Any]:
    return {name.removeprefix(f"{k}/"): array for name, array in arrays.items() if name.startswith(f"{k}/")}


class RemoteTransport:
    """A transport that waits: the base of `PostTransport` and of Flower's, which move single messages.

    Parameters
    ----------
    sites
        Names of the sites.
    keys
        The accepted public key of each site, in OpenSSH's format.
    signer
        The coordinator's key, which signs requests.
    timeout
        Seconds after which a site that does not answer is a problem; None to wait for ever, and to ask a site
        that failed again.
    linger
        Seconds that sites have to fetch the last message.
    say
        Called with a sentence about each event.
    on_site
        Called with a site, its state as in `StudyStatus`, and the reason.
    """

    poll, longest_poll = 0.02, 0.2  # seconds between two looks for replies, longer after a while without news

    def __init__(
        self,
        *,
        sites: Sequence[str],
        keys: Mapping[str, str],
        signer: ec.EllipticCurvePrivateKey,
        timeout: float | None = None,
        linger: float = 60.0,
        say: Callable[[str], None] = lambda sentence: None,
        on_site: Callable[[str, str, str], None] = lambda site, state, why: None,
    ) -> None:
        self.sites, self.keys, self.signer = list(sites), dict(keys), signer
        self.timeout, self.linger, self.say, self.on_site = timeout, linger, say, on_site
        self.last_seconds = 0.0
        self._answered = set[str]()

    def exchange(self, requests: Mapping[str, Payload]) -> Mapping[str, Payload]:
        """Send a message to each of some sites and return all their replies, or raise `SiteProblems`."""
        replies = self._collect(requests, self.timeout)
        try:
            check_replies(replies)
        except SiteProblems as error:
            for site, why in error.problems.items():
                self.on_site(site, "refused", why)
                self.forget(site)  # it is asked again if the study begins again
            raise
        silent = [site for site in requests if site not in replies]
        if silent:
            raise SiteProblems(
                {site: f"site {site} did not answer within {self.timeout:g} seconds" for site in silent}
            )
        return {site: replies[site] for site in requests}

    def deliver(self, requests: Mapping[str, Payload]) -> None:
        """Send a last message to each of some sites; name the sites that do not fetch it in time."""
        replies = self._collect(requests, self.linger)
        if missing := [site for site in requests if site not in replies]:
            self.say(f"the last message has not been fetched by {', '.join(missing)}")

    # the part that depends on what carries messages

    def move(self, requests: Mapping[str, Payload]) -> Iterable[tuple[str, Payload | str]]:
        """Send requests that are not under way yet; return the replies that came, a text for an unreadable one."""
        raise NotImplementedError

    def forget(self, site: str) -> None:
        """Drop the message that is under way to a site, so that it is asked again."""
        raise NotImplementedError

    # the part that does not

    def _collect(self, requests: Mapping[str, Payload], most_seconds: float | None) -> dict[str, Payload]:
        """Return the replies that come in time."""
        signed = {site: sign(payload, site, self.signer) for site, payload in requests.items()}
        digests = {site: digest_of(payload, site) for site, payload in signed.items()}
        replies, resting = dict[str, Payload](), dict[str, float]()
        begun = reminded = time.monotonic()
        pause = self.poll
        while waiting := [site for site in requests if site not in replies]:
            now = time.monotonic()
            asked = {site: signed[site] for site in waiting if resting.get(site, 0.0) <= now}
            news = False
            for site, found in self.move(asked):
                reply, why = self._checked(site, found, digests[site])
                if reply is not None:
                    replies[site], news = reply, True
                    if site not in self._answered:
                        self._answered.add(site)
                        self.on_site(site, "online", "")
                    continue
                resting[site] = now + ASK_AGAIN
                self.forget(site)
                self.say(f"{why}; asking it again in {ASK_AGAIN:g} s")
                self.on_site(site, "refused", why)
            if most_seconds is not None and now > begun + most_seconds:
                break
            if now > reminded + REMIND:
                reminded = now
                self.say(f"waiting for {', '.join(waiting)}")
            if len(replies) < len(requests):
                pause = self.poll if news else min(1.05 * pause, self.longest_poll)
                time.sleep(pause)
        self.last_seconds = time.monotonic() - begun
        return replies

    def _checked(self, site: str, found: Payload | str, question: str) -> tuple[Payload | None, str]:
        """Return a reply that may be used, or None and the reason why the site is to be asked again."""
        if isinstance(found, str):
            return None, f"site {site}: {found}"
        try:
            reply = check_signature(found, question, self.keys.get(site, ""))
        except InvalidInput as error:
            return None, f"site {site}: {error}"
        code = refusal_in(reply)
        if self.timeout is None and code in MENDABLE:
            return None, f"site {site}: {code.meaning}"
        return reply, ""


class PostTransport(RemoteTransport):
    """A transport of a study's messages through the study's folder on a share."""

    def __init__(self, folder: str | os.PathLike[str], **more: Any) -> None:
        super().__init__(**more)
        self.poll, self.longest_poll = POLL, LONGEST_POLL
        self.folders = {site: folder_at(folder_at(Path(folder)) / site) for site in self.sites}

    def move(self, requests: Mapping[str, Payload]) -> Iterator[tuple[str, Payload | str]]:
        """Put requests into the sites' folders, in place of earlier ones, and yield the replies that lie there."""
        for site, request in requests.items():
            digest = digest_of(request, site)
            path = self.folders[site] / f"{REQUEST}{digest}.npz"
            if _read(path) is None:
                self._clear(site, but=digest)
                _write(path, request)
            found = _read(self.folders[site] / f"{REPLY}{digest}.npz")
            if found is not None:
                yield site, found

    def forget(self, site: str) -> None:
        """Remove a site's request and reply."""
        self._clear(site)

    def _clear(self, site: str, but: str = "none") -> None:
        """Remove messages of earlier exchanges, whose replies the coordinator has kept.

        Requests go first: a site that finds no reply beside a request that is still there has not answered it.
        """
        for kind in (REQUEST, REPLY):
            for path in self.folders[site].glob(f"{kind}*.npz"):
                if but not in path.name:
                    path.unlink(missing_ok=True)


def answer_post(
    folder: str | os.PathLike[str],
    *,
    site: str,
    answer: Callable[[Payload], Payload],
    done: Callable[[], bool],
) -> None:
    """Answer the requests in a site's folder, which is in the study's, until `done()`."""
    own, pause = folder_at(folder_at(Path(folder)) / site), POLL
    while not done():
        busy = False
        for path in sorted(own.glob(f"{REQUEST}*.npz")):
            request = _read(path)
            digest = path.name.removeprefix(REQUEST).removesuffix(".npz")
            reply = own / f"{REPLY}{digest}.npz"
            if request is None or digest_of(request, site) != digest or _read(reply) is not None:
                continue  # not there in full yet, or answered
            if not path.exists():
                continue  # answered, and removed by the coordinator since
            try:
                _write(reply, answer(request))
                busy = True
            except InvalidInput as error:  # a share may be away; asked again, the answer is the same
                LOG.warning("%s; trying again", error)
        pause = POLL if busy else min(1.05 * pause, LONGEST_POLL)
        if not done():
            time.sleep(pause)


def _write(path: Path, payload: Payload) -> None:
    try:
        npz.write(path, payload.arrays, {VALUES: dict(payload.values)}, private=False)
    except OSError as error:
        raise InvalidInput(f"cannot write {path}: {error.strerror}") from None


def _read(path: Path) -> Payload | None:
    """Return the message in a file; None if there is none, or not all of it yet."""
    try:
        arrays, description = npz.read(path)
        if any(array.dtype not in (np.float64, np.uint64) for array in arrays.values()):
            return None
        return Payload(Fields(description, str(path)).fields(VALUES).as_dict(), arrays)
    except (OSError, ValueError, InvalidInput):
        return None
