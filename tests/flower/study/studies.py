"""A study whose coordinator and sites are folders on disk, and whose sites answer in threads of this process."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedscaffold.federation.messages import Payload
from fedscaffold.federation.study.rows import TableFile
from fedscaffold.federation.study.study import Study, conduct
from fedscaffold.federation.study.transport import PostTransport, answer_post
from fedscaffold.flower.study.fleet import FleetConnection, answer_flower
from fedscaffold.flower.study.run import conduct_study, free_port
from fedscaffold.flower.study.study_file import (
    Invite,
    JoinedSite,
    RunSettings,
    StudyFile,
    StudyFolder,
    write_invites,
)

SITES = ("bonn", "graz", "lyon")


def visits(seed: int, n: int = 60) -> pd.DataFrame:
    """A table with two numbers, a category and two classes."""
    rng = np.random.default_rng(seed)
    age, ward = rng.normal(50, 10, n), rng.choice(["north", "south"], n)
    score = (age - 50) / 10 + (ward == "south")
    ill = np.where(rng.random(n) < 1 / (1 + np.exp(-score)), "yes", "no")
    return pd.DataFrame({"age": age, "dose": rng.gamma(2.0, 3.0, n), "ward": ward, "ill": ill})


def own_tables() -> dict[str, pd.DataFrame]:
    return {site: visits(k) for k, site in enumerate(SITES)}


class Deployment:
    """Files of a coordinator and of sites, each in a folder of its own."""

    def __init__(
        self,
        folder: Path,
        tables: Mapping[str, pd.DataFrame] | None = None,
        *,
        absent: str = "error",
        linger: float = 5.0,
        policy: str = "",
        **settings: Any,
    ) -> None:
        self.folder, tables = folder, tables or own_tables()
        self.sites, self.said = tuple(tables), list[str]()
        self.file, self.out = folder / "coordinator" / "pilot.toml", folder / "coordinator" / "out"
        self.file.parent.mkdir(parents=True)
        self.plan = Study(**{"name": "pilot", "target": "ill", "l2": "auto", **settings}).plan_for(tables)
        run: Any = {"absent": absent, "timeout": 20.0, "linger": linger, "address": f"127.0.0.1:{free_port()}"}
        self.study = StudyFile(self.plan, RunSettings(**run))
        self.file.write_text(self.study.text())
        self.joined: dict[str, JoinedSite] = {}
        limits = folder / "policy.toml" if policy else None
        if limits is not None:
            limits.write_text(policy)
        for (site, table), invite in zip(tables.items(), write_invites(self.file), strict=True):
            home = folder / site
            home.mkdir()
            table.to_csv(home / "visits.csv", index=False)
            self.joined[site] = JoinedSite(
                home / "site", Invite.load(invite), TableFile(home / "visits.csv"), limits
            )
            self.joined[site].open()
            StudyFolder(self.file).accept(self.plan, [str(self.joined[site].public_key)])

    @property
    def keys(self) -> dict[str, str]:
        return StudyFolder(self.file).accepted()

    @contextmanager
    def answering(self, share: Path | None = None, *, sites: tuple[str, ...] | None = None) -> Iterator[None]:
        """Let sites answer in threads, over the network or by post, until the block ends or the study is over."""
        left, failed = threading.Event(), list[BaseException]()

        def serve(name: str) -> None:
            joined = self.joined[name]
            joined.over = ""
            try:
                site = joined.open()

                def answer(request: Payload) -> Payload:
                    return joined.answer(site, request)

                def done() -> bool:
                    return left.is_set() or bool(joined.over)

                if share is not None:
                    answer_post(share / "pilot", site=name, answer=answer, done=done)
                    return
                invite = joined.invite
                connection = FleetConnection(address=invite.address, authority=invite.authority, key=site.key)
                answer_flower(connection, answer=answer, done=done, say=self.said.append)
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=serve, args=(name,), daemon=True) for name in sites or self.sites]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            left.set()
            for thread in threads:
                thread.join(30.0)
        assert not failed

    def conduct(self, share: Path | None = None) -> Any:
        """Conduct the study as the coordinator's command does."""
        return conduct_study(self.file, self.out, shared=share, say=self.said.append)

    def post(self, share: Path, *, timeout: float | None = 20.0, **more: Any) -> PostTransport:
        """Return the coordinator's transport by post."""
        signer = StudyFolder(self.file).signer()
        given = {"sites": self.sites, "keys": self.keys, "signer": signer, "timeout": timeout, **more}
        return PostTransport(share / "pilot", say=self.said.append, **given)

    def conduct_over(self, transport: Any) -> Any:
        return conduct(self.plan, transport, keys=self.keys, folder=self.out)


def of_one_process(**settings: Any) -> Any:
    """The result of the same tables in one process."""
    return Study(**{"name": "pilot", "target": "ill", "l2": "auto", **settings}).run(own_tables())
