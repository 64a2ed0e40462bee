"""A site that joined a study: its folder has the invitation, the node's key, and where the table is."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.files import Fields
from fedscaffold.data.settings import DETECTED, CsvFormat
from fedscaffold.federation.client.files import SiteFolder
from fedscaffold.federation.client.policy import SitePolicy
from fedscaffold.federation.client.rules import SiteRules
from fedscaffold.federation.client.store import SiteStore
from fedscaffold.federation.payloads import Payload
from fedscaffold.federation.signing import check_signature
from fedscaffold.federation.study.private.at_site import with_budget
from fedscaffold.federation.study.rows import TableFile
from fedscaffold.federation.study.site import StudySite
from fedscaffold.flower.certificates import make_key
from fedscaffold.flower.study.invite import Invite

ACCEPT = ("auto", "ask")
INVITE, JOINED = "invitation.json", "joined"


@dataclass(frozen=True, kw_only=True)
class JoinedSite:
    """A site's part in a study, in a folder of its own.

    Parameters
    ----------
    folder
        The folder, made for its owner alone.
    invite
        The invitation.
    data
        The table.
    text
        How a .csv file is written.
    policy
        A TOML file of `SitePolicy`, with `SiteRules` in its table [study]; None for the defaults.
    accept
        "auto" accepts any agreement on columns and coding, "ask" none but those that people accepted before.
    peers
        Fingerprints, without spaces, of the other sites' keys for secure sums, from their people; with none, those
        that come first are kept.
    """

    folder: Path
    invite: Invite
    data: Path
    text: CsvFormat = DETECTED
    policy: Path | None = None
    accept: str = "ask"
    peers: Mapping[str, str] = field(default_factory=dict)

    def save(self) -> Path:
        """Write the folder, with a key for the node unless there is one; returns the file of the public key."""
        store = SiteFolder(self.folder)
        earlier = self.folder / INVITE
        if earlier.exists() and (Invite.load(earlier).study, Invite.load(earlier).site) != (
            self.invite.study,
            self.invite.site,
        ):
            raise InvalidInput(f"{self.folder} belongs to another study or site; choose another folder")
        self.invite.save(earlier)
        if not self.private_key.exists():
            make_key(self.folder, self.invite.site, comment=self.invite.site)
        text = {name: value for name, value in vars(self.text).items() if value is not None}
        policy = None if self.policy is None else str(self.policy.resolve())
        told = {
            "data": str(self.data.resolve()),
            "text": text,
            "policy": policy,
            "accept": self.accept,
            "peers": dict(self.peers),
        }
        store.save_note(JOINED, told)
        return self.private_key.with_name(f"{self.invite.site}.pub")

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Self:
        """The site that `save` wrote."""
        path = Path(folder)
        if not (path / f"{JOINED}.json").exists():
            raise InvalidInput(f"{path} is not the folder of a site that joined a study")
        fields = Fields(SiteFolder(path).load_note(JOINED), str(path / f"{JOINED}.json"))
        policy, peers = fields.value("policy"), fields.fields("peers")
        return cls(
            folder=path,
            invite=Invite.load(path / INVITE),
            data=Path(fields.text("data", longest=10_000)),
            text=CsvFormat(**fields.fields("text").as_dict()),
            policy=None if policy is None else Path(policy),
            accept=fields.choice("accept", *ACCEPT),
            peers={site: peers.text(site) for site in peers.names()},
        )

    @property
    def private_key(self) -> Path:
        """The node's private key."""
        return self.folder / self.invite.site

    def rules(self) -> SiteRules:
        """What the site tells."""
        return SiteRules() if self.policy is None else SiteRules.load(self.policy)

    def site_policy(self) -> SitePolicy:
        """What the site allows."""
        return SitePolicy() if self.policy is None else SitePolicy.load(self.policy)

    def store(self) -> SiteFolder:
        """What the site keeps on disk.

        A privacy budget of its policy is for all studies together, each of which has a folder of its own: what was
        spent of it is kept beside the policy.
        """
        if self.policy is None or self.site_policy().epsilon is None:
            return SiteFolder(self.folder)
        return SiteFolder(self.folder, budget_file=self.policy.resolve().with_suffix(".privacy-budget.json"))

    def site(self, store: SiteStore | None = None) -> StudySite:
        """The site, which reads its table when it is first needed, and by default keeps things in its folder."""
        return StudySite(
            name=self.invite.site,
            table=TableFile(self.data, self.text),
            rules=self.rules(),
            policy=with_budget(self.site_policy(), self.invite.settings),
            accept=lambda agreement: self.accept == "auto",
            store=store or self.store(),
            settings=self.invite.settings,
            study_name=self.invite.study,
            secure=self.invite.settings.secure,
            secure_threshold=self.invite.settings.threshold,
            accept_peers=self.accepts_peers,
        )

    def accepts_peers(self, fingerprints: Mapping[str, str]) -> bool:
        """Whether other sites' keys have the fingerprints that this site was given; any, if it was given none."""
        if not self.peers:
            return self.accept == "auto"
        return all(self.peers.get(site) == one.replace(" ", "") for site, one in fingerprints.items())

    def answer(self, site: StudySite, read: Callable[[], Payload]) -> Payload:
        """The site's reply to the request that `read` returns; a code unless the coordinator signed it."""
        return site.answer_or_code(lambda: check_signature(read(), self.invite.site, self.invite.coordinator))
