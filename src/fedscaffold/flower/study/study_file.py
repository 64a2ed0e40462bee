"""STUDY.toml, the coordinator's keys in a folder beside it, and the invitations: the plan as people handle it."""

import json
import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from fedscaffold.core.checks import shown
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.files import json_value, path_of, read_text, write_text
from fedscaffold.federation.signing import Signer, make_signing_key
from fedscaffold.federation.study.plan import StudyPlan, StudySettings, in_words, sentences, toml_value
from fedscaffold.federation.study.roster import Roster, fingerprint
from fedscaffold.federation.study.transport import private_folder
from fedscaffold.flower.certificates import LONGEST_NAME, Certificates, certified_host, make_certificates

ADDRESS = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9.-]{1,253}):(\d{1,5})")
DEFAULT_ADDRESS = "127.0.0.1:9092"
LOOPBACK = ("127.0.0.1", "localhost", "::1")
VALID_DAYS = 730  # of certificates: longer than a study takes from its first invitation to its last site
INVITATION = "fedscaffold invitation 2"
WIDTH = 34  # of a line before its comment
LARGEST_FILE = 10**7  # bytes of an invitation; a codebook of 10,000 columns fits


class RunSettings(BaseModel):
    """The table [run] of a study's file, which sites do not accept and which may change at any time.

    Parameters
    ----------
    address
        HOST:PORT under which sites reach the coordinator.
    absent
        Whether to "wait" for a site that does not answer, or to end with an "error".
    timeout
        Seconds after which a site that does not answer is an error.
    linger
        Seconds that a finished study waits for sites that have not fetched the result.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    address: str = DEFAULT_ADDRESS
    absent: Literal["wait", "error"] = "wait"
    timeout: float = Field(default=600.0, ge=1.0, le=1e7)
    linger: float = Field(default=60.0, ge=0.0, le=1e7)

    @field_validator("address")
    @classmethod
    def _is_an_address(cls, value: str) -> str:
        found = ADDRESS.fullmatch(value)
        if not found or not 1 <= int(found[2]) <= 65535:
            raise ValueError("must be HOST:PORT")
        return value

    @property
    def host(self) -> str:
        """The host of the address."""
        return self.address.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        """The port of the address."""
        return int(self.address.rpartition(":")[2])

    @property
    def listen(self) -> str:
        """The interface to listen on: loopback if sites are on this machine, otherwise all."""
        return self.host if self.host in LOOPBACK[::2] else "127.0.0.1" if self.host in LOOPBACK else "0.0.0.0"

    @property
    def patience(self) -> float | None:
        """Seconds to wait for a site; None to wait for ever."""
        return None if self.absent == "wait" else self.timeout


def run_settings(values: Any) -> RunSettings:
    """Return the table [run] from its values; raise with all problems of it."""
    try:
        return RunSettings.model_validate(values)
    except ValidationError as error:
        raise in_words(error, "[run]") from None


@dataclass(frozen=True)
class StudyFile:
    """A study's file: its plan, and how this coordinator runs it.

    Parameters
    ----------
    plan
        The plan, which sites accept.
    run
        The table [run].

    Examples
    --------
    >>> from fedscaffold.federation import StudyPlan
    >>> from fedscaffold.flower.study.study_file import StudyFile
    >>> columns = {"age": {"range": [18, 99]}, "ill": {"levels": ["no", "yes"]}}
    >>> plan = StudyPlan(target="ill", kind="logistic", sites=["bonn", "graz", "lyon"], columns=columns)
    >>> study = StudyFile(plan)
    >>> StudyFile.parse(study.text(), "pilot.toml") == study
    True
    """

    plan: StudyPlan
    run: RunSettings = field(default_factory=RunSettings)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a study from its file."""
        return cls.parse(read_text(path_of(path), "the study's file"), str(path))

    @classmethod
    def parse(cls, text: str, source: str) -> Self:
        """Return the study in the text of its file; raise with all problems of it."""
        try:
            values = tomllib.loads(text)
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise InvalidInput(f"{source} is not a TOML file: {error}") from None
        found, problems = list[Any](), list[str]()
        for read in (lambda: run_settings(values.pop("run", {})), lambda: StudyPlan(**values)):
            try:
                found.append(read())
            except InvalidInput as error:
                problems.append(str(error))
        if problems:
            raise InvalidInput(f"{source}: " + "; ".join(problems))
        return cls(found[1], found[0])

    def text(self) -> str:
        """Return the file, with a comment for every setting; settings without a value are commented out."""
        plan = self.plan
        values = plan.model_dump(mode="json", exclude={"columns"})
        known = {**sentences(StudySettings), **sentences(StudyPlan)}
        lines = ["# A study: one model for tables that stay at their sites. Sites accept everything above [run]."]
        hidden = ("name", "sites", "features", "ignore", "categorical")  # the codebook says the last three
        for name in ("name", "sites", *(name for name in values if name not in hidden)):
            line = f"# {name} = ..." if values[name] is None else f"{name} = {toml_value(values[name])}"
            lines.append(f"{line:<{WIDTH}} # {known[name]}")
        lines += ["", "# The codebook: type, and unit, range, levels, reference, mean or sd if they are known."]
        lines.append(plan.codebook())
        lines.append("[run]")
        for name, value in self.run.model_dump().items():
            lines.append(f"{f'{name} = {toml_value(value)}':<{WIDTH}} # {sentences(RunSettings)[name]}")
        return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class StudyFolder:
    """The coordinator's keys and certificates, in a folder beside the study's file.

    Parameters
    ----------
    file
        STUDY.toml.
    """

    file: Path

    @property
    def path(self) -> Path:
        """The folder, made for its owner alone."""
        return private_folder(self.file.resolve().with_suffix(".keys"))

    def signer(self) -> Signer:
        """Return the key with which the coordinator signs its requests, made when it is first needed."""
        key = self.path / "coordinator.key"
        if not key.exists():
            make_signing_key(key)
        return Signer(key)

    def certificates(self, host: str) -> Certificates:
        """Return the coordinator's certificates for a host, made when they are first needed."""
        files = Certificates(*(self.path / name for name in ("authority.crt", "server.pem", "server.key")))
        if not files.certificate.exists() or certified_host(files.certificate) != host[:LONGEST_NAME]:
            files = make_certificates(self.path, host=host, days=VALID_DAYS)
        return files

    def accepted(self) -> dict[str, str]:
        """Return the public keys that were accepted, in OpenSSH's format, by site."""
        folder = self.path / "accepted"
        files = sorted(folder.glob("*.pub")) if folder.is_dir() else []
        return {file.stem: file.read_text(encoding="utf-8").strip() for file in files}

    def accept(self, plan: StudyPlan, keys: list[str], *, replace: bool = False) -> dict[str, str]:
        """Accept public keys, each a file SITE.pub or its text; return all that are accepted now.

        Parameters
        ----------
        plan
            The plan, whose sites they must be of.
        keys
            The keys.
        replace
            Whether a site that has a key may get another one.

        Raises
        ------
        InvalidInput
            With all problems; no key is accepted then.
        """
        problems, accepted, found = list[str](), self.accepted(), dict[str, str]()
        for given in keys:
            try:
                site, key = public_key_of(given)
            except InvalidInput as error:
                problems.append(str(error))
                continue
            if site not in plan.sites:
                problems.append(
                    f"the study has no site called {shown(site)}; its sites are {', '.join(plan.sites)}"
                )
            elif not replace and accepted.get(site, key) != key:
                problems.append(f"site {site} has another key already; --replace accepts the new one in its place")
            found[site] = key
        both = {**accepted, **found}
        if len({key.split()[1] for key in both.values()}) < len(both):
            problems.append("two sites have the same key")
        if problems:
            raise InvalidInput("; ".join(problems))
        for site, key in found.items():
            write_text(private_folder(self.path / "accepted") / f"{site}.pub", key + "\n")
        return both


def public_key_of(given: str) -> tuple[str, str]:
    """Return the name of a site and its public key in OpenSSH's format, from a key file or the key's text."""
    text = given if given.startswith("ecdsa-") else read_text(path_of(given), "the key")
    parts = text.split()
    try:
        if len(parts) != 3:
            raise InvalidInput("")
        Roster("", {parts[2]: text})
        fingerprint(text)
    except (InvalidInput, ValueError):
        raise InvalidInput(
            f"{shown(given)} is not a site's public key; give the file SITE.pub that `fedscaffold study join` made"
        ) from None
    return parts[2], " ".join(parts)


@dataclass(frozen=True, kw_only=True)
class Invite:
    """An invitation: the whole plan, and how a site finds and recognises the coordinator. It holds no secret.

    Parameters
    ----------
    site
        Name of the invited site.
    plan
        The plan.
    address
        HOST:PORT of the coordinator.
    authority
        Certificate of the authority that signed the coordinator's certificate, in PEM.
    coordinator
        The coordinator's public key, in PEM, with which it signs its requests.
    """

    site: str
    plan: StudyPlan
    address: str
    authority: str
    coordinator: str

    @property
    def file_name(self) -> str:
        """Name of the invitation's file, STUDY-SITE.invite."""
        return f"{self.plan.name}-{self.site}.invite"

    def save(self, path: Path) -> None:
        """Write the invitation to a file."""
        values = {"format": INVITATION, **vars(self), "plan": self.plan.to_json()}
        write_text(path, json.dumps(values, indent=1) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read an invitation that `save` wrote."""
        file = path_of(path)
        try:
            if file.stat().st_size > LARGEST_FILE:
                raise ValueError("it is too large")
            values = json_value(file.read_bytes())
            if not isinstance(values, dict) or values.pop("format", None) != INVITATION:
                raise ValueError("it is not of this version of fedscaffold")
            fields = {name: values[name] for name in ("site", "address", "authority", "coordinator")}
            if not all(isinstance(value, str) for value in fields.values()) or len(values) != len(fields) + 1:
                raise ValueError("it has other entries")
            invite = cls(plan=StudyPlan.from_json(values["plan"]), **fields)
            if invite.site not in invite.plan.sites:
                raise ValueError("its plan has no such site")
            run_settings({"address": invite.address})
            load_pem_public_key(invite.coordinator.encode())
        except OSError as error:
            raise InvalidInput(f"cannot read {file}: {error.strerror}") from None
        except (ValueError, KeyError, TypeError, RecursionError, UnsupportedAlgorithm, InvalidInput) as error:
            why = f"it has no {error}" if isinstance(error, KeyError) else shown(str(error), longest=300)
            raise InvalidInput(f"{file} is not an invitation that can be used: {why}") from None
        return invite


def write_invites(file: Path, sites: list[str] | None = None) -> list[Path]:
    """Write an invitation for each of some sites of a study, by default all, beside the study's file."""
    study, folder = StudyFile.load(file), StudyFolder(file)
    unknown = [site for site in sites or () if site not in study.plan.sites]
    if unknown:
        raise InvalidInput(
            f"{file} has no site called {', '.join(map(shown, unknown))}; its sites are "
            f"{', '.join(study.plan.sites)}"
        )
    signer, authority = folder.signer(), folder.certificates(study.run.host).authority
    written = []
    for site in sites or study.plan.sites:
        invite = Invite(
            site=site, plan=study.plan, address=study.run.address, coordinator=signer.public,
            authority=authority.read_text(encoding="ascii"),
        )  # fmt: skip
        written.append(file.parent / invite.file_name)
        invite.save(written[-1])
    return written
