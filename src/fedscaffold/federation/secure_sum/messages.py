"""What clients and server of a secure sum exchange, and what all of them know beforehand."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedscaffold.core.checks import whole_number
from fedscaffold.core.errors import InvalidInput

KEY_BYTES, SIGNATURE_BYTES, DIGEST_BYTES = 32, 64, 32


@dataclass(frozen=True, kw_only=True)
class SumSettings:
    """A sum that clients and server agreed on.

    Parameters
    ----------
    sum_id
        Names this sum among all others: the run's identity, the round, what is added. Keys and signatures are
        bound to it, so that no message of one sum can be used in another.
    clients
        Names of all clients.
    length
        Number of words of a vector.
    threshold
        So many clients must be there to the end, and so many would have to work together with the server to
        learn a single vector. More than half, so that the server cannot finish one sum for two sets of clients.

    Examples
    --------
    >>> from fedscaffold.federation.secure_sum import SumSettings
    >>> SumSettings(sum_id="study 1, round 3", clients=("bonn", "graz", "kiel"), length=10, threshold=2).threshold
    2
    """

    sum_id: str
    clients: tuple[str, ...]
    length: int
    threshold: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "clients", tuple(self.clients))
        if len(set(self.clients)) < len(self.clients):
            raise InvalidInput("two clients of a secure sum have the same name")
        whole_number("length", self.length, least=1)
        least = len(self.clients) // 2 + 1
        threshold = whole_number("threshold", self.threshold, least=2)
        count = len(self.clients)
        if not least <= threshold <= count:
            raise InvalidInput(
                f"threshold must be between {max(2, least)} and {count} for {count} clients, got {threshold}"
            )

    def place(self, client: str) -> int:
        """The place, from 1 on, at which a client's shares are taken."""
        return self.clients.index(client) + 1


@dataclass(frozen=True, kw_only=True)
class Announcement:
    """Public keys that a client made for one sum, and a digest of its own mask's key.

    Parameters
    ----------
    encryption
        X25519 key for shares sent to this client.
    masking
        X25519 key from which masks between pairs follow.
    commitment
        SHA-256 of the key of the client's own mask.
    signature
        The client's, by its Ed25519 key, which the others know beforehand.
    """

    encryption: bytes
    masking: bytes
    commitment: bytes
    signature: bytes


def announced(settings: SumSettings, client: str, encryption: bytes, masking: bytes, commitment: bytes) -> bytes:
    """What the signature of an announcement signs."""
    return _bytes("announcement", settings, client, encryption.hex(), masking.hex(), commitment.hex())


def finishing(settings: SumSettings, present: Sequence[str]) -> bytes:
    """What clients sign who agree to finish the sum over the vectors of those who are present."""
    return _bytes("present", settings, sorted(present))


def shares_from(settings: SumSettings, sender: str, receiver: str) -> bytes:
    """What an encrypted pair of shares is bound to."""
    return _bytes("shares", settings, sender, receiver)


def mask_between(settings: SumSettings, one: str, other: str) -> bytes:
    """What the key of the mask between two clients is bound to."""
    return _bytes("mask", settings, sorted((one, other)))


def of_size(value: Any, size: int, what: str) -> bytes:
    """Bytes that came from someone else, refused unless they have the right length."""
    if not isinstance(value, bytes) or len(value) != size:
        raise InvalidInput(f"{what} must be {size} bytes")
    return value


def known_only(messages: Mapping[str, Any], names: Sequence[str]) -> None:
    """Refuse messages in the name of somebody who does not take part."""
    strangers = sorted(set(messages) - set(names))
    if strangers:
        raise InvalidInput(f"messages from {', '.join(map(repr, strangers))}, who do not take part in this sum")


def _bytes(purpose: str, settings: SumSettings, *parts: Any) -> bytes:
    known = [settings.sum_id, list(settings.clients), settings.length, settings.threshold]
    return json.dumps(["fedscaffold secure sum 1", purpose, known, *parts]).encode()
