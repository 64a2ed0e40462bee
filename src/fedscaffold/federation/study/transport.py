"""Transports, which carry messages of a study to the sites, and the journal in which their answers are kept.

The coordinator's questions are a function of the answers before. So a study that is started again asks the same
questions, and reads the answers that it already has from its folder, to the same bits; the first question without
an answer goes to the sites. `InProcess` is the transport without a network.
"""

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from fedscaffold.core import npz
from fedscaffold.core.errors import CheckpointMismatch, InvalidInput
from fedscaffold.core.files import Fields, folder_at
from fedscaffold.federation.payloads import Payload
from fedscaffold.federation.refusals import RefusalCode
from fedscaffold.federation.signing import digest_of
from fedscaffold.federation.study.site import StudySite, refusal_in

WHAT = "fedscaffold study exchange 2"


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
