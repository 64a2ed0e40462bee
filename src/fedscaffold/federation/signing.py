"""Signatures of the coordinator and of the sites.

Neither a network nor a shared folder says who wrote a message. So a site answers only requests that the key of its
invitation signed, and a coordinator takes only replies that accepted keys signed.
"""

import hashlib
import json
from pathlib import Path

import numpy as np
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
    load_ssh_public_key,
)

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.files import replacing
from fedscaffold.federation.payloads import Payload
from fedscaffold.federation.refusals import Refusal, RefusalCode

SIGNATURE = "signature"  # name of a value


def make_signing_key(path: Path) -> str:
    """Write a private key to a file for its owner alone; return the public key in PEM."""
    key = ed25519.Ed25519PrivateKey.generate()
    with replacing(path, private=True) as temporary:
        temporary.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return Signer(path).public


class Signer:
    """The coordinator's key, which signs its requests.

    Parameters
    ----------
    path
        The file that `make_signing_key` wrote.
    """

    def __init__(self, path: Path) -> None:
        try:
            key = load_pem_private_key(path.read_bytes(), password=None)
        except (OSError, ValueError) as error:
            raise InvalidInput(f"cannot read the coordinator's key {path}: {error}") from None
        if not isinstance(key, ed25519.Ed25519PrivateKey):
            raise InvalidInput(f"{path} is not a coordinator's key")
        self._key = key

    @property
    def public(self) -> str:
        """The public key in PEM, for the invitations."""
        return self._key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()

    def sign(self, payload: Payload, site: str) -> Payload:
        """Return a request with a signature that is good for one site."""
        signature = self._key.sign(_digest(payload, site)).hex()
        return Payload({**payload.values, SIGNATURE: signature}, payload.arrays)


def check_signature(payload: Payload, site: str, public: str) -> Payload:
    """Return a request without its signature; raise `Refusal` unless the key signed it for this site."""
    found, signature = _split(payload)
    try:
        key = load_pem_public_key(public.encode())
        assert isinstance(key, ed25519.Ed25519PublicKey)
        key.verify(bytes.fromhex(signature), _digest(found, site))
    except (InvalidSignature, ValueError, TypeError):
        raise Refusal(
            RefusalCode.BAD_REQUEST, "the request was not signed by the coordinator of the invitation"
        ) from None
    return found


def sign_reply(payload: Payload, question: str, key: ec.EllipticCurvePrivateKey) -> Payload:
    """Return a site's reply with a signature that is good for one question, the digest of a request."""
    signature = key.sign(_digest(payload, question), ec.ECDSA(SHA384())).hex()
    return Payload({**payload.values, SIGNATURE: signature}, payload.arrays)


def check_reply(payload: Payload, question: str, public_key: str) -> Payload:
    """Return a reply without its signature; raise `InvalidInput` unless the key signed it for this question."""
    found, signature = _split(payload)
    try:
        key = load_ssh_public_key(" ".join(public_key.split()[:2]).encode())
        assert isinstance(key, ec.EllipticCurvePublicKey)
        key.verify(bytes.fromhex(signature), _digest(found, question), ec.ECDSA(SHA384()))
    except (InvalidSignature, ValueError, TypeError):
        raise InvalidInput("the reply was not signed by the key that was accepted for the site") from None
    return found


def digest_of(payload: Payload, site: str) -> str:
    """Return a name for a request to a site: a digest of all that it holds, its signature included."""
    return _digest(payload, site).hex()


def _split(payload: Payload) -> tuple[Payload, str]:
    values = dict(payload.values)
    signature = str(values.pop(SIGNATURE, ""))
    return Payload(values, payload.arrays), signature


def _digest(payload: Payload, addressee: str) -> bytes:
    found = hashlib.sha256()
    shapes = {name: np.size(array) for name, array in payload.arrays.items()}
    values = {str(name): value for name, value in payload.values.items()}
    found.update(json.dumps([addressee, values, shapes], sort_keys=True, default=repr).encode())
    for name in sorted(payload.arrays):
        array = np.asarray(payload.arrays[name])  # words of secure sums have more digits than a float64
        found.update(np.ascontiguousarray(array, dtype="<u8" if array.dtype == np.uint64 else "<f8").data)
    return found.digest()
