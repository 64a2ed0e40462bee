"""Transports: how messages of a study reach the sites. `InProcess` is the one without a network."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from fedscaffold.core.errors import InvalidInput
from fedscaffold.federation.payloads import Payload
from fedscaffold.federation.refusals import MEANING, RefusalCode
from fedscaffold.federation.study.site import StudySite, refusal_in


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
    def sites(self) -> Sequence[str]:
        """Names of the sites."""

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
        raise SiteProblems({site: f"site {site}: {MEANING[code]}" for site, code in codes.items()}, codes)
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

    @property
    def sites(self) -> Sequence[str]:
        """Names of the sites."""
        return list(self.members)

    def exchange(self, requests: Mapping[str, Payload]) -> Mapping[str, Payload]:
        """Let each site answer."""
        return check_replies({site: self.members[site].answer(payload) for site, payload in requests.items()})

    def deliver(self, requests: Mapping[str, Payload]) -> None:
        """Let each site keep the last message."""
        self.exchange(requests)
