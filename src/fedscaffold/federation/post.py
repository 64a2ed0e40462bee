"""A study by post: signed messages as files in a folder that the coordinator and the sites can reach.

A share, a synchronised folder or SFTP will do: no port is opened and no Flower is needed. Each site has a folder
inside the study's, with at most one request and the reply to it. Files appear whole or not at all; if the service
behind the folder copies them piece by piece, a piece is not taken for a message, since every file has a digest. A
name is the digest of its request, so that copies, delays and another order change nothing.

Everybody who can read the folder can read the messages: what a study with open sums sends, or masked numbers.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from fedscaffold.core import npz
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.files import Fields, folder_at
from fedscaffold.federation.log import LOG
from fedscaffold.federation.payloads import Payload
from fedscaffold.federation.refusals import MEANING
from fedscaffold.federation.signing import Signer, check_reply, digest_of, sign_reply
from fedscaffold.federation.study.messages import SiteProblems, refusal_in

REQUEST, REPLY = "request-", "reply-"
POLL = 0.05  # seconds between two looks into the folder, which cost nothing on a local disk
LONGEST_POLL = 2.0  # seconds between looks after a while without news: shares are slower than disks
SPARE_SECONDS = 10.0  # for sites that a secure sum can be finished without
REMIND = 60.0  # seconds between two lines about who is waited for
DELIVER_SECONDS = 60.0  # for sites to fetch the result
VALUES = "values"


class PostTransport:
    """Carries a study's messages to its sites through a folder.

    Parameters
    ----------
    folder
        The study's folder on the share.
    sites
        Names of the sites.
    keys
        keys() → the accepted public key of each site, in OpenSSH's format.
    signer
        Signs requests.
    most_seconds
        Seconds after which a site that does not answer is a problem; None to wait for ever.
    say
        Called with a sentence about who is waited for.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        sites: Sequence[str],
        keys: Callable[[], Mapping[str, str]],
        signer: Signer,
        most_seconds: float | None = None,
        say: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        self.sites, self.keys, self.signer, self.most_seconds, self.say = (
            list(sites),
            keys,
            signer,
            most_seconds,
            say,
        )
        self.folders = {site: folder_at(folder_at(Path(folder)) / site) for site in sites}
        self.last_seconds = 0.0

    def exchange(self, requests: Mapping[str, Payload], *, enough: int | None = None) -> Mapping[str, Payload]:
        """Return the reply of each site, or raise `SiteProblems`; see `Transport`."""
        replies = self._collect(requests, self.most_seconds, enough)
        codes = {site: code for site, one in replies.items() if (code := refusal_in(one)) is not None}
        problems = {site: f"site {site} rejects the request: {MEANING[code]}" for site, code in codes.items()}
        good = {site: replies[site] for site in requests if site in replies and site not in problems}
        if enough is not None and len(good) >= enough:
            return good
        problems |= {site: f"site {site} did not answer in time" for site in requests if site not in replies}
        if problems:
            for site in codes:  # the site is asked again if the study begins again
                self._clear(site)
            raise SiteProblems(problems, codes)
        return good

    def deliver(self, requests: Mapping[str, Payload]) -> None:
        """Send a last message to each of some sites; name those that do not fetch it within a minute."""
        replies = self._collect(requests, DELIVER_SECONDS, None)
        if missing := [site for site in requests if site not in replies]:
            self.say(f"the result has not been fetched yet by {', '.join(missing)}; it stays in the folder")

    def _collect(
        self, requests: Mapping[str, Payload], most_seconds: float | None, enough: int | None
    ) -> dict[str, Payload]:
        """Write requests; return the replies that come in time."""
        asked = {site: self._ask(site, self.signer.sign(payload, site)) for site, payload in requests.items()}
        begun = reminded = time.monotonic()
        replies, pause = dict[str, Payload](), POLL
        while waiting := [site for site in asked if site not in replies]:
            found = {site: reply for site in waiting if (reply := self._reply(site, asked[site])) is not None}
            replies |= found
            waited = time.monotonic() - begun
            if most_seconds is not None and waited > most_seconds:
                break
            if enough is not None and len(replies) >= enough and waited > SPARE_SECONDS:
                break
            if time.monotonic() > reminded + REMIND:
                reminded = time.monotonic()
                self.say(f"waiting for {', '.join(waiting)}")
            if len(replies) < len(asked):
                pause = POLL if found else min(1.05 * pause, LONGEST_POLL)
                time.sleep(pause)
        self.last_seconds = time.monotonic() - begun
        return replies

    def _ask(self, site: str, request: Payload) -> str:
        """Put a request into a site's folder, in place of what lies there; return its digest."""
        digest = digest_of(request, site)
        path = self.folders[site] / f"{REQUEST}{digest}.npz"
        self._clear(site, but=digest)
        if _read(path) is None:
            _write(path, request)
        return digest

    def _reply(self, site: str, digest: str) -> Payload | None:
        path = self.folders[site] / f"{REPLY}{digest}.npz"
        found, key = _read(path), self.keys().get(site)
        if found is None or key is None:
            return None
        try:
            return check_reply(found, digest, key)
        except InvalidInput as error:
            self.say(f"a reply of site {site} was removed: {error}")
            path.unlink(missing_ok=True)
            return None

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
    private_key: Path,
    answer: Callable[[Callable[[], Payload]], Payload],
    done: Callable[[], bool],
) -> None:
    """Answer the requests in a site's folder until `done()`.

    Parameters
    ----------
    folder
        The study's folder on the share.
    site
        Name of the site.
    private_key
        The file of the site's key, which signs its replies.
    answer
        answer(read) → the reply to the request that `read` returns.
    done
        done() → whether the study is over for this site.
    """
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
            signed = sign_reply(answer(partial(_same, request)), digest, private_key)
            try:
                _write(reply, signed)
                busy = True
            except (
                InvalidInput
            ) as error:  # a share may be away for a while; asked again, the site answers the same
                LOG.warning("%s; trying again", error)
        pause = POLL if busy else min(1.05 * pause, LONGEST_POLL)
        if not done():
            time.sleep(pause)


def _same(payload: Payload) -> Payload:
    return payload


def _write(path: Path, payload: Payload) -> None:
    try:
        npz.write(path, payload.arrays, {VALUES: dict(payload.values)}, private=False)
    except OSError as error:
        raise InvalidInput(f"cannot write {path}: {error.strerror}") from None


def _read(path: Path) -> Payload | None:
    """Return the message in a file; None if there is none, or not all of it yet."""
    try:
        arrays, description = npz.read(path)
        return Payload(Fields(description, str(path)).fields(VALUES).as_dict(), arrays)
    except (OSError, ValueError, InvalidInput):
        return None
