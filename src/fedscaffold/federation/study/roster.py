"""The roster of a study: its sites, their keys and signatures, and masks that cancel in the sum over these sites.

Every two sites share a secret by Diffie and Hellman's exchange of their keys. For each question both derive the
same mask from it, which one adds to its numbers and the other subtracts. A message alone is random to anybody
without a key of the pair; the sum over the whole roster is the sum of the numbers. Masks depend on the plan, the
roster and all questions up to this one: sites that were asked different things, or with other sites, send messages
whose sum is random.

Neither a network nor a shared folder says who wrote a message. So a site answers only requests that the key of its
invitation signed, and a coordinator takes only replies that accepted keys signed.
"""

import hashlib
import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from cryptography.hazmat.primitives.hashes import SHA256, SHA384
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key

from fedscaffold.core.errors import InvalidInput
from fedscaffold.federation.messages import Payload
from fedscaffold.federation.study.numbers import Words, whole, words_of

SIGNATURE = "signature"  # name of a value


def new_key() -> ec.EllipticCurvePrivateKey:
    """Return a new key of a site."""
    return ec.generate_private_key(ec.SECP384R1())


def public_line(key: ec.EllipticCurvePrivateKey, site: str) -> str:
    """Return the public half of a site's key in OpenSSH's format, with the site's name."""
    return key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode() + f" {site}"


def public_key(line: str) -> ec.EllipticCurvePublicKey:
    """Return a site's or the coordinator's public key from its line; raise `InvalidInput` if it is not one."""
    try:
        found = load_ssh_public_key(" ".join(line.split()[:2]).encode())
    except (ValueError, UnsupportedAlgorithm):
        found = None
    if not isinstance(found, ec.EllipticCurvePublicKey):
        raise InvalidInput("it is not a public key of a site")
    return found


def fingerprint(public: str) -> str:
    """Return the fingerprint of a public key in OpenSSH's format, as ssh-keygen shows it."""
    return "SHA256:" + b64encode(hashlib.sha256(b64decode(public.split()[1])).digest()).decode().rstrip("=")


@dataclass(frozen=True)
class Roster:
    """The sites of a study and their public keys.

    Parameters
    ----------
    plan
        Digest of the plan that they carry out.
    keys
        Public key of each site in OpenSSH's format.
    """

    plan: str
    keys: Mapping[str, str]

    def __post_init__(self) -> None:
        for site, key in self.keys.items():
            try:
                public_key(key)
            except InvalidInput as error:
                raise InvalidInput(f"the key of site {site!r:.60} cannot be used: {error}") from None
        if len({key.split()[1] for key in self.keys.values()}) < len(self.keys):
            raise InvalidInput("two sites have the same key")

    @cached_property
    def digest(self) -> str:
        """A digest of plan, names and keys."""
        keys = {site: " ".join(key.split()[:2]) for site, key in self.keys.items()}
        return hashlib.sha256(json.dumps([self.plan, sorted(keys.items())]).encode()).hexdigest()

    @property
    def fingerprints(self) -> dict[str, str]:
        """The fingerprint of each site's key, for people to compare."""
        return {site: fingerprint(key) for site, key in self.keys.items()}

    def to_json(self) -> dict[str, Any]:
        """Return the roster as JSON-compatible values."""
        return {"plan": self.plan, "keys": dict(self.keys)}

    @classmethod
    def from_json(cls, values: Any) -> Self:
        """Return the roster that `to_json` gave."""
        try:
            return cls(str(values["plan"]), {str(site): str(key) for site, key in dict(values["keys"]).items()})
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidInput(f"the roster cannot be read: {error}") from None


@dataclass(frozen=True)
class Masks:
    """The masks of one site.

    Parameters
    ----------
    site
        Its name.
    key
        Its private key.
    roster
        All sites of the sum.
    """

    site: str
    key: ec.EllipticCurvePrivateKey
    roster: Roster

    @cached_property
    def _secrets(self) -> dict[str, bytes]:
        """The secret that is shared with each other site."""
        others = {other: public_key(line) for other, line in self.roster.keys.items() if other != self.site}
        return {other: self.key.exchange(ec.ECDH(), key) for other, key in others.items()}

    def mask(self, words: Words, context: str) -> Words:
        """Return a message plus all masks of this site for a question.

        Parameters
        ----------
        words
            The site's numbers.
        context
            The digest of all questions up to this one.
        """
        total = whole(words)
        for other, shared in self._secrets.items():  # every context has a key, so the counter starts at 0
            info = f"fedscaffold mask {self.roster.digest} {context}".encode()
            key = HKDF(SHA256(), 32, salt=None, info=info).derive(shared)
            stream = Cipher(AES(key), CTR(bytes(16))).encryptor().update(bytes(8 * words.size))
            mask = int.from_bytes(stream, "little")
            total += mask if self.site < other else -mask
        return words_of(total, words.size)


def sign(payload: Payload, addressee: str, key: ec.EllipticCurvePrivateKey) -> Payload:
    """Return a message with a signature that is good for one addressee: a site, or the digest of a request."""
    signature = key.sign(_digest(payload, addressee), ec.ECDSA(SHA384())).hex()
    return Payload({**payload.values, SIGNATURE: signature}, payload.arrays)


def check_signature(payload: Payload, addressee: str, key: str) -> Payload:
    """Return a message without its signature; raise `InvalidInput` unless the key signed it for this addressee."""
    values = dict(payload.values)
    signature, found = str(values.pop(SIGNATURE, "")), Payload(values, payload.arrays)
    try:
        public_key(key).verify(bytes.fromhex(signature), _digest(found, addressee), ec.ECDSA(SHA384()))
    except (InvalidSignature, ValueError, TypeError):
        raise InvalidInput("it was not signed by the key that was accepted for its sender") from None
    return found


def digest_of(payload: Payload, site: str) -> str:
    """Return a name for a request to a site: a digest of all that it holds, its signature included."""
    return _digest(payload, site).hex()


def _digest(payload: Payload, addressee: str) -> bytes:
    found = hashlib.sha256()
    shapes = {name: np.size(array) for name, array in payload.arrays.items()}
    values = {str(name): value for name, value in payload.values.items()}
    found.update(json.dumps([addressee, values, shapes], sort_keys=True, default=repr).encode())
    for name in sorted(payload.arrays):
        array = np.asarray(payload.arrays[name])  # words of secure sums have more digits than a float64
        found.update(np.ascontiguousarray(array, dtype="<u8" if array.dtype == np.uint64 else "<f8").data)
    return found.digest()
