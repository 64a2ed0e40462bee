"""A client's side of a secure sum: five steps, each taken once and in order."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedscaffold.core.errors import InvalidInput
from fedscaffold.federation.secure_sum import keys, shamir
from fedscaffold.federation.secure_sum.fixed_point import Words
from fedscaffold.federation.secure_sum.masks import total_mask
from fedscaffold.federation.secure_sum.messages import (
    DIGEST_BYTES,
    KEY_BYTES,
    SIGNATURE_BYTES,
    Announcement,
    SumSettings,
    announced,
    finishing,
    known_only,
    mask_between,
    of_size,
    shares_from,
)

STEPS = ("announce", "share", "mask", "agree", "unmask")


@dataclass(eq=False)
class SecureSumClient:
    """One client in one sum; its secrets live in this object alone and are gone with it.

    A client that is started again takes no further part in the sum: the others finish without it.

    Parameters
    ----------
    name
        This client.
    settings
        The sum.
    identity
        This client's long-lived key.
    peers
        Public identities of all clients, by name, that this client knows from elsewhere than the server: they
        keep the server from answering in the name of others.

    Examples
    --------
    `secure_sum` shows all steps, `docs/explanation/secure-sums.md` what each is for.

    >>> from fedscaffold.federation.secure_sum import SecureSumClient, SumSettings
    >>> from fedscaffold.federation.secure_sum.keys import new_identity, public_identity
    >>> identities = {name: new_identity() for name in ("bonn", "graz")}
    >>> peers = {name: public_identity(key) for name, key in identities.items()}
    >>> settings = SumSettings(sum_id="round 1", clients=("bonn", "graz"), length=3, threshold=2)
    >>> client = SecureSumClient("bonn", settings, identities["bonn"], peers)
    >>> len(client.announce().masking)
    32
    """

    name: str
    settings: SumSettings
    identity: Ed25519PrivateKey
    peers: Mapping[str, bytes]
    _taken: int = field(default=0, init=False, repr=False)

    def __post_init__(self) -> None:
        missing = [name for name in self.settings.clients if name not in self.peers]
        if missing or self.name not in self.settings.clients:
            raise InvalidInput(f"the public identities of {missing or [self.name]} are not known")
        self._encryption, self._masking, self._own = (secrets.token_bytes(KEY_BYTES) for _ in range(3))

    def announce(self) -> Announcement:
        """Step 1: public keys made for this sum."""
        self._take("announce")
        found = keys.public_key(self._encryption), keys.public_key(self._masking), keys.digest(self._own)
        signature = self.identity.sign(announced(self.settings, self.name, *found))
        return Announcement(encryption=found[0], masking=found[1], commitment=found[2], signature=signature)

    def share(self, announcements: Mapping[str, Announcement]) -> dict[str, bytes]:
        """Step 2: encrypted shares of this client's two secrets, one pair for each other client."""
        self._take("share")
        known_only(announcements, self.settings.clients)
        self._enough(announcements, "announced keys")
        if self.name not in announcements:
            raise InvalidInput("this client's own keys are not among those announced")
        for name, one in announcements.items():
            check_announcement(self.settings, name, one, self.peers[name])
        self._announcements = dict(announcements)
        places = {name: self.settings.place(name) for name in announcements}
        own, masking = (
            shamir.split(secret, list(places.values()), self.settings.threshold)
            for secret in (self._own, self._masking)
        )
        self._own_share = own[places.pop(self.name)]
        return {name: self._seal(name, own[place] + masking[place]) for name, place in places.items()}

    def mask(self, shares: Mapping[str, bytes], words: Words) -> Words:
        """Step 3: this client's vector under its masks.

        Parameters
        ----------
        shares
            The encrypted shares from the other clients, by sender.
        words
            The vector, as `FixedPoint.encode` gives it, (length,).
        """
        self._take("mask")
        known_only(shares, [name for name in self._announcements if name != self.name])
        self._enough([*shares, self.name], "sent shares")
        if words.shape != (self.settings.length,) or words.dtype != np.uint64:
            raise InvalidInput(f"the vector must have {self.settings.length} words, got shape {words.shape}")
        self._shares = dict(shares)
        masks = [(self._own, 1)]
        for name in shares:
            public = self._announcements[name].masking
            key = keys.shared_key(self._masking, public, mask_between(self.settings, self.name, name))
            masks.append((key, 1 if self.name < name else -1))
        return words + total_mask(self.settings.length, masks)

    def agree(self, present: Sequence[str]) -> bytes:
        """Step 4: a signature under the names of those whose vectors are in the sum; given for one set only."""
        self._take("agree")
        known_only(dict.fromkeys(present), [*self._shares, self.name])
        if self.name not in present:
            raise InvalidInput("this client's vector is not in the sum")
        self._enough(set(present), "sent vectors")
        self._present = frozenset(present)
        return self.identity.sign(finishing(self.settings, sorted(present)))

    def unmask(self, signatures: Mapping[str, bytes]) -> dict[str, bytes]:
        """Step 5: one share of a secret of each client: its own mask's key if it is present, else its masking key.

        Parameters
        ----------
        signatures
            Step 4's, by client: the server has to show that as many clients as the threshold agreed on the same
            set, so that nobody gives shares of both secrets of one client.
        """
        self._take("unmask")
        known_only(signatures, sorted(self._present))
        message = finishing(self.settings, sorted(self._present))
        for name, signature in signatures.items():
            if not keys.is_signed(self.peers[name], of_size(signature, SIGNATURE_BYTES, "a signature"), message):
                raise InvalidInput(f"the signature of {name!r} is not under the same set of clients")
        self._enough(signatures, "agreed")
        found = {self.name: self._own_share}
        for name, sealed in self._shares.items():
            both = self._open(name, sealed)
            of_size(both, 2 * shamir.SHARE_BYTES, "a pair of shares")
            found[name] = both[: shamir.SHARE_BYTES] if name in self._present else both[shamir.SHARE_BYTES :]
        return found

    def _seal(self, receiver: str, shares: bytes) -> bytes:
        bound_to = shares_from(self.settings, self.name, receiver)
        return keys.encrypt(self._key(receiver, bound_to), shares, bound_to)

    def _open(self, sender: str, sealed: bytes) -> bytes:
        bound_to = shares_from(self.settings, sender, self.name)
        return keys.decrypt(self._key(sender, bound_to), sealed, bound_to, sender)

    def _key(self, peer: str, direction: bytes) -> bytes:
        """A key for one message: each direction between two clients has its own."""
        return keys.shared_key(self._encryption, self._announcements[peer].encryption, direction)

    def _take(self, step: str) -> None:
        if self._taken == len(STEPS) or STEPS[self._taken] != step:
            raise InvalidInput(
                f"a client takes the steps {', '.join(STEPS)} of a sum once and in order, not {step}"
            )
        self._taken += 1

    def _enough(self, names: Sequence[str] | Mapping[str, object] | set[str], what: str) -> None:
        if len(names) < self.settings.threshold:
            raise InvalidInput(f"only {len(names)} clients {what}, and the threshold is {self.settings.threshold}")


def check_announcement(settings: SumSettings, name: str, one: Announcement, identity: bytes) -> None:
    """Refuse public keys that their client did not sign for this sum."""
    of_size(one.encryption, KEY_BYTES, "a public key")
    of_size(one.masking, KEY_BYTES, "a public key")
    of_size(one.commitment, DIGEST_BYTES, "a commitment")
    of_size(one.signature, SIGNATURE_BYTES, "a signature")
    message = announced(settings, name, one.encryption, one.masking, one.commitment)
    if not keys.is_signed(identity, one.signature, message):
        raise InvalidInput(f"the keys in the name of {name!r} are not signed by that client")
