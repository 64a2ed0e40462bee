"""Certificates for a federation's server, and keys for its nodes."""

import ipaddress
import string
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedscaffold.core.checks import shown
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.files import replacing

LOOPBACK = "127.0.0.1"
LONGEST_NAME = 64  # of a certificate's subject


class Certificates(NamedTuple):
    """Files: the certificate authority's certificate, and the server's certificate and key."""

    authority: Path
    certificate: Path
    key: Path


def make_certificates(folder: Path, *, host: str = LOOPBACK, days: int = 7) -> Certificates:
    """Make a certificate authority, and sign a certificate for a host with it, valid for some days.

    Besides the host the certificate is valid for this machine's loopback address. The authority's key is not kept.
    """

    def named(name: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])

    authority, own = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    now = datetime.now(UTC)

    def begun(subject: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(named("fedscaffold authority"))
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(minutes=5))
            .not_valid_after(now + timedelta(days=days))
        )

    signing = x509.KeyUsage(
        digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False,
        key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False,
        decipher_only=False,
    )  # fmt: skip
    root = (
        begun(named("fedscaffold authority"), authority.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(signing, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority.public_key()), critical=False)
        .sign(authority, hashes.SHA384())
    )
    addresses: list[x509.GeneralName] = []
    for each in dict.fromkeys(("localhost", LOOPBACK, host)):
        try:
            addresses.append(x509.IPAddress(ipaddress.ip_address(each)))
        except ValueError:
            addresses.append(x509.DNSName(each))
    server = (
        begun(named(host[:LONGEST_NAME]), own.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(addresses), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), critical=False)
        .sign(authority, hashes.SHA384())
    )
    files = Certificates(folder / "authority.crt", folder / "server.pem", folder / "server.key")
    _write(files.authority, root.public_bytes(Encoding.PEM))
    _write(files.certificate, server.public_bytes(Encoding.PEM))
    _write(files.key, own.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), secret=True)
    return files


def certified_host(certificate: Path) -> str:
    """Return the host of a certificate of `make_certificates`; "" if the file holds none that is still valid."""
    try:
        found = x509.load_pem_x509_certificate(certificate.read_bytes())
    except (OSError, ValueError):
        return ""
    if found.not_valid_after_utc < datetime.now(UTC):
        return ""
    return str(found.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)


def make_key(folder: Path, name: str, *, comment: str = "") -> tuple[Path, Path]:
    """Make a node's private and public key, in the formats of Flower's node authentication."""
    key = ec.generate_private_key(ec.SECP384R1())
    private, public = folder / name, folder / f"{name}.pub"
    _write(private, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()), secret=True)
    text = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    _write(public, text + (f" {comment}\n".encode() if comment else b""))
    return private, public


def key_in_hexadecimal(key: str) -> str:
    """Return a public key in OpenSSH's format, PEM or hexadecimal as Flower shows it: PEM's hexadecimal digits."""
    text = str(key).strip()
    if text and set(text) <= set(string.hexdigits):
        return text.lower()
    try:
        pem = text.startswith("-----BEGIN")
        load = serialization.load_pem_public_key if pem else serialization.load_ssh_public_key
        found = load(text.encode())
    except (ValueError, UnsupportedAlgorithm):
        raise InvalidInput(
            f"not a public key in OpenSSH's format, in PEM or in hexadecimal: {shown(key)}; give the contents of "
            "the .pub file with which the node was registered"
        ) from None
    return found.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).hex()


def _write(path: Path, data: bytes, *, secret: bool = False) -> None:
    with replacing(path, private=secret) as temporary:
        temporary.write_bytes(data)
