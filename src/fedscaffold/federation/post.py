"""A study by post: signed messages as files in a folder that the coordinator and the sites can reach.

A share, a synchronised folder or SFTP will do: no port is opened and no Flower is needed. Each site has a folder
inside the study's, with at most one request and the reply to it. Files appear whole or not at all; if the service
behind the folder copies them piece by piece, a piece is not taken for a message, since every file has a digest. A
name is the digest of its request, so that copies, delays and another order change nothing.

All readers of the folder can read the messages: numbers of single sites if sums are open, masked numbers
otherwise.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedscaffold.core import npz
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.files import Fields, folder_at
from fedscaffold.federation.log import LOG
from fedscaffold.federation.payloads import Payload
from fedscaffold.federation.remote import RemoteTransport
from fedscaffold.federation.signing import digest_of

REQUEST, REPLY = "request-", "reply-"
POLL = 0.05  # seconds between two looks into the folder, which cost nothing on a local disk
LONGEST_POLL = 2.0  # seconds between looks after a while without news: shares are slower than disks
VALUES = "values"


class PostTransport(RemoteTransport):
    """A transport of a study's messages through a folder.

    Parameters
    ----------
    folder
        The study's folder on the share.
    more
        See `RemoteTransport`.
    """

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
    """Answer the requests in a site's folder until `done()`.

    Parameters
    ----------
    folder
        The study's folder on the share.
    site
        Name of the site.
    answer
        answer(request) → the signed reply.
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
