"""Certificates and keys for federations on one machine: made for one run, and not valid elsewhere."""

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from fedscaffold.core.storage.files import replacing

VALID = timedelta(days=7)


class Certificates(NamedTuple):
    """Files: the certificate authority's certificate, and the server's certificate and key."""

    authority: Path
    certificate: Path
    key: Path


def make_certificates(folder: Path) -> Certificates:
    """Make a certificate authority, and sign a certificate for this machine's loopback address with it."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    def named(name: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])

    authority, own = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    now = datetime.now(UTC)

    def begun(subject: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(named("fedscaffold demo authority"))
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(minutes=5))
            .not_valid_after(now + VALID)
        )

    signing = x509.KeyUsage(
        digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False,
        key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False,
        decipher_only=False,
    )  # fmt: skip
    root = (
        begun(named("fedscaffold demo authority"), authority.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(signing, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority.public_key()), critical=False)
        .sign(authority, hashes.SHA384())
    )
    addresses = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    server = (
        begun(named("localhost"), own.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(addresses), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), critical=False)
        .sign(authority, hashes.SHA384())
    )
    files = Certificates(folder / "authority.crt", folder / "server.pem", folder / "server.key")
    from cryptography.hazmat.primitives.serialization import Encoding

    _write(files.authority, root.public_bytes(Encoding.PEM))
    _write(files.certificate, server.public_bytes(Encoding.PEM))
    _write(files.key, _private(own), secret=True)
    return files


def make_key(folder: Path, name: str) -> tuple[Path, Path]:
    """Make a node's private and public key, in the formats of Flower's node authentication."""
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    key = ec.generate_private_key(ec.SECP384R1())
    private, public = folder / name, folder / f"{name}.pub"
    _write(private, _private(key, openssh=True), secret=True)
    _write(public, key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH))
    return private, public


def _private(key: object, *, openssh: bool = False) -> bytes:
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key.private_bytes(
        Encoding.PEM, PrivateFormat.OpenSSH if openssh else PrivateFormat.PKCS8, NoEncryption()
    )


def _write(path: Path, data: bytes, *, secret: bool = False) -> None:
    with replacing(path) as temporary:
        temporary.write_bytes(data)
    if secret:
        path.chmod(0o600)
