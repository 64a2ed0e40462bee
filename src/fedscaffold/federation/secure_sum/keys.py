"""Keys of a secure sum: agreed on between pairs, for masks and for encrypting shares."""

import hashlib

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedscaffold.core.errors import InvalidInput

NONCE = bytes(12)  # a key encrypts one message only


def new_identity() -> Ed25519PrivateKey:
    """A client's long-lived key, with which it signs; the others know its public half."""
    return Ed25519PrivateKey.generate()


def public_identity(key: Ed25519PrivateKey) -> bytes:
    """The public half of a client's long-lived key, 32 bytes."""
    return key.public_key().public_bytes_raw()


def is_signed(public: bytes, signature: bytes, message: bytes) -> bool:
    """Whether the owner of a long-lived key signed the message."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except InvalidSignature:
        return False
    return True


def shared_key(private: bytes, public: bytes, purpose: bytes) -> bytes:
    """The 32 bytes that two clients derive for a purpose, each from its private and the other's public key."""
    try:
        secret = X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        raise InvalidInput("a public key of the sum is of no use: it gives everybody the same secret") from None
    return HKDF(SHA256(), 32, None, purpose).derive(secret)


def public_key(private: bytes) -> bytes:
    """The public half of an X25519 key."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def digest(key: bytes) -> bytes:
    """A digest of the key of a client's own mask, which tells nothing about it and lets others check it."""
    return hashlib.sha256(b"fedscaffold own mask" + key).digest()


def encrypt(key: bytes, text: bytes, bound_to: bytes) -> bytes:
    """The text for the other owner of the key, with proof of where it came from."""
    return ChaCha20Poly1305(key).encrypt(NONCE, text, bound_to)


def decrypt(key: bytes, sealed: bytes, bound_to: bytes, sender: str) -> bytes:
    """The text that `encrypt` sealed; refused if it was changed or is from somebody else."""
    try:
        return ChaCha20Poly1305(key).decrypt(NONCE, sealed, bound_to)
    except InvalidTag:
        raise InvalidInput(f"the shares from {sender!r} were changed on their way") from None
