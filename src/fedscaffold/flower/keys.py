"""Public keys of nodes, in the form in which Flower's grid shows them."""

import string

from fedscaffold.core.checks import shown
from fedscaffold.core.errors import InvalidInput


def key_in_hexadecimal(key: str) -> str:
    """A public key in OpenSSH's format, PEM or hexadecimal, as the hexadecimal digits of its PEM text."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        PublicFormat,
        load_pem_public_key,
        load_ssh_public_key,
    )

    text = str(key).strip()
    if text and set(text) <= set(string.hexdigits):
        return text.lower()
    try:
        load = load_pem_public_key if text.startswith("-----BEGIN") else load_ssh_public_key
        found = load(text.encode())
    except (ValueError, UnsupportedAlgorithm):
        raise InvalidInput(
            f"not a public key in OpenSSH's format, in PEM or in hexadecimal: {shown(key)}; give the contents of "
            "the .pub file with which the node was registered"
        ) from None
    return found.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).hex()
