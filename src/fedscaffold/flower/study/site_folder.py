"""A site that joins a study: its folder with key, log and state, and its answers to the coordinator."""

import json
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.files import path_of, read_text
from fedscaffold.federation.client.store import SiteFolder
from fedscaffold.federation.log import LOG
from fedscaffold.federation.payloads import Payload
from fedscaffold.federation.refusals import Refusal, RefusalCode
from fedscaffold.federation.signing import check_signature, digest_of, sign_reply
from fedscaffold.federation.study.plan import in_words
from fedscaffold.federation.study.roster import Roster
from fedscaffold.federation.study.rows import TableFile
from fedscaffold.federation.study.site import DOCUMENT, KIND, REFUSED, SiteRules, StudySite, refusal_in
from fedscaffold.flower.certificates import make_key
from fedscaffold.flower.study.study_file import Invite

INVITATION, STOPPED = "invitation.json", "stopped"


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
    """A site's part in a study, in a separate folder.

    Parameters
    ----------
    folder
        The folder, made for its owner alone by `open`.
    invite
        The invitation.
    table
        The site's table.
    policy
        A TOML file of the site's limits; None for the defaults.
    peers
        Fingerprints of other sites' keys, from their people; a roster with others is not accepted.
    accept_roster
        accept_roster(roster) → whether people accept a roster with sites that are not among the peers.
    keep_numbers
        Whether the site's log also keeps its numbers as they were before they were masked.
    """

    folder: Path
    invite: Invite
    table: TableFile
    policy: Path | None = None
    peers: Mapping[str, str] = field(default_factory=dict)
    accept_roster: Callable[[Roster], bool] = lambda roster: True
    keep_numbers: bool = False
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
        if not self.known or not (self.folder / name).exists():
            make_key(self.folder, name, comment=name)
            self.invite.save(self.folder / INVITATION)
        key = load_ssh_private_key((self.folder / name).read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
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
        except Refusal as refusal:
            LOG.error("rejected: %s", refusal)
            site.store.audit.write("rejected", code=str(refusal.code), text=str(refusal))
            return self._signed(site, Payload({REFUSED: str(refusal.code)}), payload)
        reply = site.answer(request)
        if request.values.get(KIND) == "result" and refusal_in(reply) is None:
            document = json.loads(str(request.values[DOCUMENT]))
            self.stopped = STOPPED in document
            self.over = str(document.get(STOPPED, "")) or "the study is over"
        return self._signed(site, reply, payload)

    def _signed(self, site: StudySite, reply: Payload, payload: Payload) -> Payload:
        return sign_reply(reply, digest_of(payload, site.name), site.key)

    def why_rejected(self, site: StudySite, reply: Payload) -> str | None:
        """Return why this site rejected a message, in words for its own people; None if it did not."""
        code = refusal_in(reply)
        if code is None:
            return None
        texts = [entry.get("text") for entry in site.store.audit.read() if entry["event"] == "rejected"]
        return str(texts[-1] if texts else code.meaning)
