"""Transports to sites that are elsewhere: signed requests, signed replies, and waiting for them."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from fedscaffold.core.errors import InvalidInput
from fedscaffold.federation.payloads import Payload
from fedscaffold.federation.refusals import MEANING, RefusalCode
from fedscaffold.federation.signing import Signer, check_reply, digest_of
from fedscaffold.federation.study.site import refusal_in
from fedscaffold.federation.study.transport import SiteProblems, check_replies

REMIND = 60.0  # seconds between two lines about who is waited for
DELIVER_SECONDS = 60.0  # for sites to fetch the last message
ASK_AGAIN = 15.0  # seconds after a failure that people or time may mend
MENDABLE = (RefusalCode.BUSY, RefusalCode.CANNOT_WRITE, RefusalCode.STATE_UNREADABLE, RefusalCode.INTERNAL)


class RemoteTransport:
    """A transport that waits: the base of `PostTransport` and of Flower's, which move single messages.

    Parameters
    ----------
    sites
        Names of the sites.
    keys
        The accepted public key of each site, in OpenSSH's format.
    signer
        Signs requests.
    timeout
        Seconds after which a site that does not answer is a problem; None to wait for ever, and to ask a site
        that failed again.
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
        signer: Signer,
        timeout: float | None = None,
        say: Callable[[str], None] = lambda sentence: None,
        on_site: Callable[[str, str, str], None] = lambda site, state, why: None,
    ) -> None:
        self.sites, self.keys, self.signer = list(sites), dict(keys), signer
        self.timeout, self.say, self.on_site = timeout, say, on_site
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

    def deliver(self, requests: Mapping[str, Payload], seconds: float | None = None) -> None:
        """Send a last message to each of some sites; name the sites that do not fetch it within a minute."""
        replies = self._collect(requests, DELIVER_SECONDS if seconds is None else seconds)
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
        signed = {site: self.signer.sign(payload, site) for site, payload in requests.items()}
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
            reply = check_reply(found, question, self.keys.get(site, ""))
        except InvalidInput as error:
            return None, f"site {site}: {error}"
        code = refusal_in(reply)
        if self.timeout is None and code in MENDABLE:
            return None, f"site {site}: {MEANING[code]}"
        return reply, ""
