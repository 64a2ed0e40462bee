"""A study as people handle it: STUDY.toml, the coordinator's keys beside it, invitations, and sites that join."""

import json
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    TypeAdapter,
    ValidationError,
    model_validator,
    with_config,
)

from fedscaffold.core.checks import in_words, shown
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.files import path_of, read_text, write_text
from fedscaffold.federation.client.store import SiteFolder
from fedscaffold.federation.log import LOG
from fedscaffold.federation.messages import Payload
from fedscaffold.federation.refusals import Refusal, RefusalCode
from fedscaffold.federation.study.plan import StudyPlan, StudySettings, sentences, toml_value
from fedscaffold.federation.study.roster import Roster, check_signature, digest_of, public_key, public_line, sign
from fedscaffold.federation.study.rows import TableFile
from fedscaffold.federation.study.site import DOCUMENT, KIND, REFUSED, SiteRules, StudySite, refusal_in
from fedscaffold.federation.study.transport import private_folder
from fedscaffold.flower.certificates import LONGEST_NAME, Certificates, certified_host, make_certificates, make_key

ADDRESS = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9.-]{1,253}):(\d{1,5})")
DEFAULT_ADDRESS = "127.0.0.1:9092"
LOOPBACK = ("127.0.0.1", "localhost", "::1")
VALID_DAYS = 730  # of certificates: longer than a study takes from its first invitation to its last site
WIDTH = 34  # of a line before its comment
INVITATION, STOPPED = "invitation.json", "stopped"  # names of a file and of a value
LARGEST_FILE = 10**7  # bytes of an invitation; a codebook of 10,000 columns fits


def _address(value: str) -> str:
    found = ADDRESS.fullmatch(value)
    if not found or not 1 <= int(found[2]) <= 65535:
        raise ValueError("must be HOST:PORT")
    return value


Address = Annotated[str, AfterValidator(_address)]


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

    address: Address = DEFAULT_ADDRESS
    absent: Literal["wait", "error"] = "wait"
    timeout: float = Field(default=600.0, ge=1.0, le=1e7)
    linger: float = Field(default=60.0, ge=0.0, le=1e7)

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
    """A study's file: its plan, which sites accept, and the table [run], how this coordinator runs it.

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


def own_key(folder: Path, name: str) -> ec.EllipticCurvePrivateKey:
    """Return the private key in a folder, made when it is first needed, with its public half in NAME.pub."""
    if not (folder / name).exists():
        make_key(folder, name, comment=name)
    try:
        key = load_ssh_private_key((folder / name).read_bytes(), None)
    except (OSError, ValueError) as error:
        raise InvalidInput(f"cannot read the key {folder / name}: {error}") from None
    assert isinstance(key, ec.EllipticCurvePrivateKey)  # as `make_key` makes it
    return key


@dataclass(frozen=True)
class StudyFolder:
    """The coordinator's keys and certificates, in a folder beside the study's file."""

    file: Path

    @property
    def path(self) -> Path:
        """The folder, made for its owner alone."""
        return private_folder(self.file.resolve().with_suffix(".keys"))

    def signer(self) -> ec.EllipticCurvePrivateKey:
        """Return the key with which the coordinator signs its requests, made when it is first needed."""
        return own_key(self.path, "coordinator.key")

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
        """Accept public keys of a plan's sites, files SITE.pub or their text; return all accepted ones.

        With `replace`, a site that has a key may get another one. Raises `InvalidInput` with all problems; no key
        is accepted then.
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
    try:
        kind, key, site = text.split()
        public_key(text)
    except ValueError:
        raise InvalidInput(
            f"{shown(given)} is not a site's public key; give the file SITE.pub that `fedscaffold study join` made"
        ) from None
    return site, f"{kind} {key} {site}"


def _plan(value: Any) -> StudyPlan:
    return value if isinstance(value, StudyPlan) else StudyPlan.from_json(value)


class Invite(BaseModel):
    """An invitation: the whole plan, and how a site finds and recognises the coordinator. It holds no secret."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal["fedscaffold invitation 3"] = "fedscaffold invitation 3"
    site: str  # that is invited
    plan: Annotated[StudyPlan, PlainValidator(_plan), PlainSerializer(StudyPlan.to_json)]
    address: Address  # of the coordinator
    authority: str  # certificate of the authority that signed the coordinator's certificate, in PEM
    coordinator: str  # the coordinator's public key in OpenSSH's format, which signs its requests

    @model_validator(mode="after")
    def _can_be_used(self) -> Self:
        if self.site not in self.plan.sites:
            raise ValueError("its plan has no such site")
        public_key(self.coordinator)
        return self

    @property
    def file_name(self) -> str:
        """Name of the invitation's file, STUDY-SITE.invite."""
        return f"{self.plan.name}-{self.site}.invite"

    def save(self, path: Path) -> None:
        """Write the invitation to a file."""
        write_text(path, self.model_dump_json(indent=1) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read an invitation that `save` wrote."""
        file = path_of(path)
        try:
            if file.stat().st_size > LARGEST_FILE:
                raise InvalidInput("it is too large")
            return cls.model_validate_json(file.read_bytes())
        except OSError as error:
            raise InvalidInput(f"cannot read {file}: {error.strerror}") from None
        except ValueError as error:
            why = in_words(error, "it") if isinstance(error, ValidationError) else error
            text = shown(str(why), longest=300)
            raise InvalidInput(f"{file} is not an invitation that can be used: {text}") from None


def write_invites(file: Path, sites: list[str] | None = None) -> list[Path]:
    """Write an invitation for each of some sites of a study, by default all, beside the study's file."""
    study, folder = StudyFile.load(file), StudyFolder(file)
    unknown = [site for site in sites or () if site not in study.plan.sites]
    if unknown:
        raise InvalidInput(
            f"{file} has no site called {', '.join(map(shown, unknown))}; its sites are "
            f"{', '.join(study.plan.sites)}"
        )
    coordinator = public_line(folder.signer(), "coordinator")
    authority = folder.certificates(study.run.host).authority
    written = []
    for site in sites or study.plan.sites:
        invite = Invite(
            site=site, plan=study.plan, address=study.run.address, coordinator=coordinator,
            authority=authority.read_text(encoding="ascii"),
        )  # fmt: skip
        written.append(file.parent / invite.file_name)
        invite.save(written[-1])
    return written


def load_rules(path: Path | None) -> SiteRules:
    """Return the limits in the table [study] of a site's policy, a TOML file; the defaults without a file."""
    if path is None:
        return SiteRules()
    try:
        found = tomllib.loads(read_text(path_of(path), "the policy")).get("study", {})
        return TypeAdapter(with_config(ConfigDict(extra="forbid"))(SiteRules)).validate_python(found)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InvalidInput(f"{path} is not a TOML file: {error}") from None
    except ValidationError as error:
        raise InvalidInput(f"{path}: {in_words(error, '[study]')}") from None


@dataclass
class JoinedSite:
    """A site's part in a study, in a separate folder with key, log and state, made by `open`."""

    folder: Path
    invite: Invite
    table: TableFile
    policy: Path | None = None  # a TOML file of the site's limits
    peers: Mapping[str, str] = field(default_factory=dict)  # fingerprints of other sites' keys, from their people
    accept_roster: Callable[[Roster], bool] = lambda roster: True  # asked if some sites are not among the peers
    keep_numbers: bool = False  # in the site's log, as they were before they were masked
    over: str = ""  # the reason why the study is over, once it is
    stopped: bool = False  # whether it stopped before it had a result

    def problems(self) -> list[str]:
        """Return everything that keeps this site from taking part; nothing is written."""
        site = StudySite(self.invite.site, self.table, rules=load_rules(self.policy))
        return site.problems(self.invite.plan)

    @property
    def public_key(self) -> Path:
        """The file of the site's public key, for the coordinator."""
        return self.folder / f"{self.invite.site}.pub"

    @property
    def known(self) -> bool:
        """Whether the folder is there already, of this invitation; raise if it is of another plan or site."""
        earlier = self.folder / INVITATION
        if not earlier.exists():
            return False
        before = Invite.load(earlier)
        if (before.plan.digest, before.site) != (self.invite.plan.digest, self.invite.site):
            raise InvalidInput(f"{self.folder} belongs to another plan or site; choose another folder")
        return True

    def open(self) -> StudySite:
        """Return the site, with a key, a log and a state that are in its folder."""
        budget = None if self.policy is None else self.policy.resolve().with_suffix(".privacy-budget.json")
        store = SiteFolder(self.folder, budget_file=budget)  # a budget is for all studies with the same policy
        name = self.invite.site
        key = own_key(self.folder, name)
        if not self.known:
            self.invite.save(self.folder / INVITATION)
        return StudySite(
            name, self.table, key, rules=load_rules(self.policy), accept_roster=self._accepts, store=store,
            invited=self.invite.plan.digest, keep_numbers=self.keep_numbers,
        )  # fmt: skip

    def _accepts(self, roster: Roster) -> bool:
        """Return whether the keys of a roster have the fingerprints that this site was given."""
        others = {site: one for site, one in roster.fingerprints.items() if site != self.invite.site}
        wrong = [site for site, one in others.items() if self.peers.get(site, one) != one]
        if wrong:
            raise Refusal(
                RefusalCode.PEERS_CHANGED,
                f"the key of {', '.join(wrong)} is another than the one that --peer gives; ask the site's people",
            )
        return set(others) <= set(self.peers) or self.accept_roster(roster)

    def answer(self, site: StudySite, payload: Payload) -> Payload:
        """Return the signed reply to a request; a code unless the coordinator of the invitation signed it."""
        try:
            request = check_signature(payload, site.name, self.invite.coordinator)
        except InvalidInput:
            code, text = RefusalCode.BAD_REQUEST, "the request was not signed by the coordinator of the invitation"
            LOG.error("rejected: %s", text)
            site.store.audit.write("rejected", code=str(code), text=text)
            return self._signed(site, Payload({REFUSED: str(code)}), payload)
        reply = site.answer(request)
        if request.values.get(KIND) == "result" and refusal_in(reply) is None:
            document = json.loads(str(request.values[DOCUMENT]))
            self.stopped = STOPPED in document
            self.over = str(document.get(STOPPED, "")) or "the study is over"
        return self._signed(site, reply, payload)

    def _signed(self, site: StudySite, reply: Payload, payload: Payload) -> Payload:
        return sign(reply, digest_of(payload, site.name), site.key)

    def why_rejected(self, site: StudySite, reply: Payload) -> str | None:
        """Return why this site rejected a message, in words for its own people; None if it did not."""
        code = refusal_in(reply)
        if code is None:
            return None
        texts = [entry.get("text") for entry in site.store.audit.read() if entry["event"] == "rejected"]
        return str(texts[-1] if texts else code.meaning)
