"""The coordinator's process never opens a site's table: another user, other folders, a record of what it opens."""

import multiprocessing
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedscaffold.federation import Study, StudyPlan
from fedscaffold.federation.client.store import SiteFolder
from fedscaffold.federation.messages import Payload
from fedscaffold.federation.study.rows import TableFile
from fedscaffold.federation.study.site import StudySite
from fedscaffold.federation.study.study import conduct
from fedscaffold.federation.study.transport import InProcess
from tests.federation.study.tables import TABLES, deal

NOBODY = 65534


class Piped:
    """A transport over a pipe to the process that has the sites."""

    def __init__(self, pipe: Any, sites: Sequence[str]) -> None:
        self.pipe, self.sites, self.last_seconds = pipe, list(sites), 1.0

    def exchange(self, requests: Mapping[str, Payload]) -> Mapping[str, Payload]:
        self.pipe.send({site: (dict(p.values), dict(p.arrays)) for site, p in requests.items()})
        return {site: Payload(*reply) for site, reply in self.pipe.recv().items()}

    def deliver(self, requests: Mapping[str, Payload]) -> None:
        self.exchange(requests)


def coordinate(pipe: Any, plan: StudyPlan, tables: Sequence[Path], folder: Path) -> None:
    """What the coordinator's process does, as a user who may not read the tables."""
    opened: list[str] = []
    sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
    refused = 0
    if os.geteuid() == 0:
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        for table in tables:
            try:
                table.read_bytes()
            except PermissionError:
                refused += 1
        opened.clear()
    result = conduct(plan, Piped(pipe, plan.sites), folder=folder)
    result.save(folder)
    pipe.send((np.asarray(result.theta), opened, refused))


@pytest.mark.skipif(sys.platform != "linux", reason="needs fork")
def test_a_user_who_may_not_read_any_table_conducts_the_study(tmp_path_factory: pytest.TempPathFactory) -> None:
    frame, _ = TABLES["wards"]()
    frames = deal(frame, 3, "labels", seed=1)
    base = tmp_path_factory.mktemp("separate")
    for parent in (base, *base.parents):  # pytest's own folders, which only their owner may enter
        if parent == Path(tempfile.gettempdir()):
            break
        parent.chmod(0o711)
    files: list[Path] = []
    for name, table in frames.items():
        home = base / name
        home.mkdir(mode=0o700)
        files.append(home / "visits.parquet")
        table.to_parquet(files[-1], index=False)
        files[-1].chmod(0o600)
    plan = Study(target="y").plan_for(frames)

    def sites(which: str) -> dict[str, StudySite]:
        """Sites that start with nothing."""
        return {
            name: StudySite(name=name, table=TableFile(file), store=SiteFolder(base / name / which))
            for name, file in zip(frames, files, strict=True)
        }

    # the same study in this process, which also loads all modules: the other user may not be allowed to
    same = conduct(plan, InProcess(sites("here")), folder=base / "here")
    same.save(base / "here")
    members, folder = sites("there"), base / "coordinator"
    folder.mkdir(mode=0o700)
    root = os.geteuid() == 0
    if root:
        os.chown(folder, NOBODY, NOBODY)
    here, there = multiprocessing.get_context("fork").Pipe()
    process = multiprocessing.get_context("fork").Process(target=coordinate, args=(there, plan, files, folder))
    process.start()
    there.close()
    try:
        while True:
            asked = here.recv()
            if isinstance(asked, tuple):
                break
            replies = {site: members[site].answer(Payload(*request)) for site, request in asked.items()}
            here.send({site: (dict(reply.values), dict(reply.arrays)) for site, reply in replies.items()})
    finally:
        process.join(60)
    theta, opened, refused = asked
    assert refused == (len(files) if root else 0)
    homes = [str(base / name) for name in members]
    assert any(str(folder) in path for path in opened)  # the record works
    assert not [path for path in opened if any(path.startswith(home) for home in homes)]
    np.testing.assert_allclose(theta, same.theta, rtol=0, atol=1e-9)
