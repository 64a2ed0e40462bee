"""The server's side of a secure sum: passes messages on, adds masked vectors, and removes what masks remain."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fedscaffold.core.errors import FedScaffoldError, InvalidInput
from fedscaffold.federation.secure_sum import keys, shamir
from fedscaffold.federation.secure_sum.fixed_point import Words
from fedscaffold.federation.secure_sum.masks import Mask, total_mask
from fedscaffold.federation.secure_sum.messages import Announcement, SumSettings, known_only, mask_between, of_size

Exchange = Callable[[str, Mapping[str, Any]], Mapping[str, Any]]


class SumFailed(FedScaffoldError):
    """A secure sum without a result: too few clients were there to the end, or what they sent does not fit.

    No vector has become known; the sum can be repeated, with new keys.

    Examples
    --------
    >>> from fedscaffold.federation.secure_sum import SumFailed
    >>> str(SumFailed("only 2 of 3 clients sent vectors"))
    'only 2 of 3 clients sent vectors'
    """


class SecureSumServer:
    """The server in one sum. It needs no secrets, and learns the sum alone.

    Parameters
    ----------
    settings
        The sum.

    Examples
    --------
    >>> from fedscaffold.federation.secure_sum import SecureSumServer, SumSettings
    >>> server = SecureSumServer(SumSettings(sum_id="1", clients=("a", "b", "c"), length=2, threshold=2))
    >>> server.keys({})
    Traceback (most recent call last):
    fedscaffold.federation.secure_sum.server.SumFailed: only 0 of 3 clients announced keys, and the threshold is 2
    """

    def __init__(self, settings: SumSettings) -> None:
        self.settings = settings
        self.total: Words = np.zeros(settings.length, np.uint64)

    def keys(self, announcements: Mapping[str, Announcement]) -> dict[str, Announcement]:
        """After step 1: the public keys that go to all who sent theirs."""
        known_only(announcements, self.settings.clients)
        self._enough(announcements, "announced keys")
        self._announcements = dict(announcements)
        return self._announcements

    def route(self, shares: Mapping[str, Mapping[str, bytes]]) -> dict[str, dict[str, bytes]]:
        """After step 2: the encrypted shares for each client, by sender."""
        known_only(shares, list(self._announcements))
        self._enough(shares, "sent shares")
        for sender, given in shares.items():
            if any(receiver != sender and receiver not in given for receiver in shares):
                raise InvalidInput(f"{sender!r} did not send shares for all others")
        self._sharing = list(shares)
        return {
            receiver: {sender: shares[sender][receiver] for sender in shares if sender != receiver}
            for receiver in shares
        }

    def add(self, masked: Mapping[str, Words]) -> list[str]:
        """After step 3: adds the masked vectors; the names of those whose vectors are in the sum."""
        known_only(masked, self._sharing)
        self._enough(masked, "sent vectors")
        for name, words in masked.items():
            if words.shape != (self.settings.length,) or words.dtype != np.uint64:
                raise InvalidInput(f"the vector of {name!r} must have {self.settings.length} words")
            self.total += words
        self._present = sorted(masked)
        return self._present

    def agreed(self, signatures: Mapping[str, bytes]) -> dict[str, dict[str, bytes]]:
        """After step 4: the signatures of all who agreed, for each of them."""
        known_only(signatures, self._present)
        self._enough(signatures, "agreed to finish")
        return {name: dict(signatures) for name in signatures}

    def finish(self, shares: Mapping[str, Mapping[str, bytes]]) -> Words:
        """After step 5: the sum of the vectors of those present, modulo 2⁶⁴, (length,).

        Parameters
        ----------
        shares
            For each client that answered, one share of each client's secret.
        """
        known_only(shares, self._present)
        self._enough(shares, "sent shares to finish")
        masks: list[Mask] = []
        for name in self._sharing:
            secret = shamir.combine(
                {
                    self.settings.place(giver): of_size(given.get(name), shamir.SHARE_BYTES, "a share")
                    for giver, given in list(shares.items())[: self.settings.threshold]
                }
            )
            masks += self._own_mask(name, secret) if name in self._present else self._pair_masks(name, secret)
        return self.total - total_mask(self.settings.length, masks)

    def _own_mask(self, name: str, secret: bytes) -> list[Mask]:
        if len(secret) != shamir.SECRET_BYTES or keys.digest(secret) != self._announcements[name].commitment:
            raise SumFailed(f"the shares of {name!r} do not fit together; repeat the sum")
        return [(secret, 1)]

    def _pair_masks(self, gone: str, secret: bytes) -> list[Mask]:
        """What those present have added for a client that sent no vector."""
        if len(secret) != shamir.SECRET_BYTES or keys.public_key(secret) != self._announcements[gone].masking:
            raise SumFailed(f"the shares of {gone!r} do not fit together; repeat the sum")
        return [
            (
                keys.shared_key(
                    secret, self._announcements[name].masking, mask_between(self.settings, name, gone)
                ),
                1 if name < gone else -1,
            )
            for name in self._present
        ]

    def _enough(self, messages: Mapping[str, Any], what: str) -> None:
        if len(messages) < self.settings.threshold:
            raise SumFailed(
                f"only {len(messages)} of {len(self.settings.clients)} clients {what}, and the threshold is "
                f"{self.settings.threshold}"
            )


def conduct_sum(settings: SumSettings, exchange: Exchange) -> tuple[Words, list[str]]:
    """All steps of a sum over any transport; the sum and the names of those whose vectors are in it.

    Parameters
    ----------
    settings
        The sum.
    exchange
        exchange(step, messages by client) → replies by client, of those who answered. The steps have the names of
        `SecureSumClient`'s functions.

    Raises
    ------
    SumFailed
        If fewer clients than the threshold are left; no vector has become known.

    Examples
    --------
    `fedscaffold.federation.secure_sum.secure_sum` calls it with clients in the same process.

    >>> from fedscaffold.federation.secure_sum import SumSettings, conduct_sum
    >>> settings = SumSettings(sum_id="1", clients=("a", "b"), length=1, threshold=2)
    >>> conduct_sum(settings, lambda step, messages: {})
    Traceback (most recent call last):
    fedscaffold.federation.secure_sum.server.SumFailed: only 0 of 2 clients announced keys, and the threshold is 2
    """
    server = SecureSumServer(settings)
    known = server.keys(exchange("announce", dict.fromkeys(settings.clients)))
    encrypted = server.route(exchange("share", dict.fromkeys(known, known)))
    present = server.add(exchange("mask", encrypted))
    signatures = server.agreed(exchange("agree", dict.fromkeys(present, present)))
    return server.finish(exchange("unmask", signatures)), present
