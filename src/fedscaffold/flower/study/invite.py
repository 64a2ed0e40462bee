"""Invitations: a small file that tells a site where the coordinator is and how to recognise it."""

import hashlib
import json
from base64 import b64decode, b64encode
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from cryptography.hazmat.primitives.serialization import load_ssh_public_key

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.files import Fields, json_value, path_of, write_text
from fedscaffold.federation.signing import Signer, make_signing_key
from fedscaffold.federation.study.settings import StudySettings
from fedscaffold.flower.certificates import LONGEST_NAME, Certificates, certified_host, make_certificates
from fedscaffold.flower.study.study_file import StudyFile, StudyFolder, name_problems

WHAT = "fedscaffold invitation 1"
VALID_DAYS = 730


@dataclass(frozen=True, kw_only=True)
class Invite:
    """What a site is told to join a study.

    Parameters
    ----------
    study, site
        Names of the study and of the invited site.
    address
        HOST:PORT of the coordinator.
    authority
        Certificate of the authority that signed the coordinator's certificate, in PEM.
    coordinator
        The coordinator's public key, in PEM, with which it signs its requests.
    settings
        What the study asks for, so that the site can check its table first.
    """

    study: str
    site: str
    address: str
    authority: str
    coordinator: str
    settings: StudySettings

    def __post_init__(self) -> None:
        if problems := name_problems(self.study, self.site):  # they become names of files, and are shown to people
            raise InvalidInput("the invitation cannot be used: " + "; ".join(problems))

    def save(self, path: Path) -> None:
        """Write the invitation to a file."""
        values = {
            "what": WHAT,
            "study": self.study,
            "site": self.site,
            "address": self.address,
            "settings": self.settings.to_json(),
            "coordinator": self.coordinator,
            "authority": self.authority,
        }
        write_text(path, json.dumps(values, indent=1) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read an invitation that `save` wrote."""
        file = path_of(path)
        try:
            fields = Fields(json_value(file.read_bytes()), str(file))
        except OSError as error:
            raise InvalidInput(f"cannot read {file}: {error.strerror}") from None
        except ValueError:
            raise InvalidInput(f"{file} is not an invitation that `fedscaffold study invite` wrote") from None
        if "what" not in fields or fields.value("what") != WHAT:
            raise InvalidInput(f"{file} is not an invitation that this version of fedscaffold knows")
        return cls(
            study=fields.text("study", longest=100),
            site=fields.text("site", longest=100),
            address=fields.text("address"),
            authority=fields.text("authority", longest=20_000),
            coordinator=fields.text("coordinator", longest=5_000),
            settings=StudySettings.from_json(fields.value("settings")),
        )


def coordinator_files(study: StudyFile, folder: StudyFolder) -> tuple[Certificates, Signer]:
    """The coordinator's certificates and key, made when they are first needed."""
    files = Certificates(*(folder.path / name for name in ("authority.crt", "server.pem", "server.key")))
    if not files.certificate.exists() or certified_host(files.certificate) != study.host[:LONGEST_NAME]:
        files = make_certificates(folder.path, host=study.host, days=VALID_DAYS)
    if not folder.signing_key.exists():
        make_signing_key(folder.signing_key)
    return files, Signer(folder.signing_key)


def write_invites(file: Path, sites: list[str]) -> list[Path]:
    """Write an invitation for each of these sites of a study, beside the study's file."""
    study = StudyFile.load(file)
    unknown = [site for site in sites if site not in study.sites]
    if unknown:
        raise InvalidInput(
            f"{file} has no site called {', '.join(unknown)}; its sites are {', '.join(study.sites)}: add the name"
        )
    certificates, signer = coordinator_files(study, StudyFolder(file))
    written = []
    for site in sites:
        invite = Invite(
            study=study.name, site=site, address=study.address, settings=study.settings,
            authority=certificates.authority.read_text(encoding="ascii"), coordinator=signer.public,
        )  # fmt: skip
        written.append(file.parent / f"{site}.invite")
        invite.save(written[-1])
    return written


def public_key_of(given: str) -> tuple[str, str]:
    """The name of a site and its public key in OpenSSH's format, from a key file or the key's text."""
    text = given
    if not given.startswith(("ecdsa-", "ssh-")):
        try:
            text = path_of(given).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidInput(f"cannot read the key {given}: {getattr(error, 'strerror', error)}") from None
    parts = text.split()
    try:
        if len(parts) != 3:
            raise ValueError
        load_ssh_public_key(" ".join(parts[:2]).encode())
    except ValueError:
        raise InvalidInput(
            f"{given!r:.60} is not a site's public key; give the file SITE.pub that `fedscaffold study join` made"
        ) from None
    return parts[2], " ".join(parts)


def fingerprint(key: str) -> str:
    """The fingerprint of a public key in OpenSSH's format, as ssh-keygen shows it."""
    digest = hashlib.sha256(b64decode(key.split()[1])).digest()
    return "SHA256:" + b64encode(digest).decode().rstrip("=")
