"""A study whose sites are folders on disk, answered through Flower's messages without processes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from fedscaffold.federation.study.report.status import StatusBoard
from fedscaffold.federation.study.result import StudyResult
from fedscaffold.flower.keys import key_in_hexadecimal
from fedscaffold.flower.study.app import client
from fedscaffold.flower.study.invite import Invite, write_invites

from fedscaffold.federation import StudySettings
from fedscaffold.federation.signing import Signer
from fedscaffold.federation.study.study import conduct_study
from fedscaffold.flower.study.site_folder import JoinedSite
from fedscaffold.flower.study.study_file import StudyFile, StudyFolder
from fedscaffold.flower.study.transport import FlowerTransport
from tests.flower.grid import FakeGrid, Node

SITES = ("bonn", "graz", "lyon")


def visits(seed: int, n: int = 60) -> pd.DataFrame:
    """A table with two numbers, a category and two classes."""
    rng = np.random.default_rng(seed)
    age, ward = rng.normal(50, 10, n), rng.choice(["north", "south"], n)
    score = (age - 50) / 10 + (ward == "south")
    ill = np.where(rng.random(n) < 1 / (1 + np.exp(-score)), "yes", "no")
    return pd.DataFrame({"age": age, "dose": rng.gamma(2.0, 3.0, n), "ward": ward, "ill": ill})


class Deployment:
    """Files of a coordinator and of sites, each in a folder of its own, and nodes that answer in this process."""

    def __init__(
        self, folder: Path, tables: Mapping[str, pd.DataFrame] | None = None, *, policy: str = "", **settings: Any
    ) -> None:
        self.folder = folder
        tables = tables or {site: visits(k) for k, site in enumerate(SITES)}
        self.sites = tuple(tables)
        self.file = folder / "coordinator" / "pilot.toml"
        self.file.parent.mkdir()
        absent = {name: settings.pop(name) for name in ("missing_sites", "timeout") if name in settings}
        self.study = StudyFile(
            name="pilot", settings=StudySettings(**{"target": "ill", "evaluate": 0.2, **settings}),
            sites=self.sites, missing=absent.get("missing_sites", "wait"), timeout=absent.get("timeout", 600.0),
        )  # fmt: skip
        self.file.write_text(self.study.text())
        self.invites = dict(zip(tables, write_invites(self.file, list(tables)), strict=True))
        self.nodes: list[Node] = []
        self.grid = FakeGrid(client, self.nodes)
        self.told: list[str] = []
        self.joined: dict[str, JoinedSite] = {}
        self.policy = folder / "policy.toml" if policy else None
        if self.policy is not None:
            self.policy.write_text(policy)
        for site, table in tables.items():
            self.join(site, table)

    def join(self, site: str, table: pd.DataFrame) -> None:
        """Write a site's table and folder; accept its key."""
        home = self.folder / site
        home.mkdir(exist_ok=True)
        data = home / "visits.csv"
        table.to_csv(data, index=False)
        joined = JoinedSite(
            folder=home / "site", invite=Invite.load(self.invites[site]), data=data, accept="auto",
            policy=self.policy,
        )  # fmt: skip
        key = joined.save().read_text()
        StudyFolder(self.file).accept(site, key)
        self.joined[site] = joined
        if site not in [node.config["site"] for node in self.nodes]:
            public = bytes.fromhex(key_in_hexadecimal(key))
            self.nodes.append(Node(len(self.nodes) + 1, {"folder": str(joined.folder), "site": site}, public))

    def conduct(self, **options: Any) -> StudyResult:
        """What the ServerApp does."""
        keys = {site: key_in_hexadecimal(key) for site, key in StudyFolder(self.file).accepted().items()}
        leave_out = self.study.missing != "wait"
        transport = FlowerTransport(
            self.grid, sites=self.sites, keys=lambda: keys, signer=Signer(StudyFolder(self.file).signing_key),
            leave_out_after=self.study.timeout if leave_out else None, board=StatusBoard(), tell=self.told.append,
        )  # fmt: skip
        return conduct_study(
            transport, self.study.settings, name=options.pop("name", "pilot"), absent=self.study.missing,
            folder=self.file.parent / "out", pause=0.0, **options,
        )  # fmt: skip
