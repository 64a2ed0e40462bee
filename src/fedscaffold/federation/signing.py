"""Signatures of the coordinator and of the sites, with keys of one kind.

Neither a network nor a shared folder says who wrote a message. So a site answers only requests that the key of its
invitation signed, and a coordinator takes only replies that accepted keys signed.
"""

import hashlib
import json

import numpy as np
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA384

from fedscaffold.core.errors import InvalidInput
from fedscaffold.federation.payloads import Payload
from fedscaffold.federation.study.roster import public_key

SIGNATURE = "signature"  # name of a value


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
