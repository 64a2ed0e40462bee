"""A study that is stopped at any exchange goes on to the same bits, and a site gives the same answer again."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedscaffold.core.errors import CheckpointMismatch
from fedscaffold.federation import Study
from fedscaffold.federation.client.store import SiteFolder
from fedscaffold.federation.messages import Payload
from fedscaffold.federation.study.site import StudySite
from fedscaffold.federation.study.study import conduct
from fedscaffold.federation.study.transport import InProcess
from tests.federation.conftest import no_waiting_for_disks
from tests.federation.study.tables import TABLES, deal

__all__ = ["no_waiting_for_disks"]
FRAME, _ = TABLES["wards"]()
SITES = deal(FRAME, 3, "labels", seed=1)


class Stopped(Exception):
    """The coordinator was killed."""


class Counting(InProcess):
    """Sites that are started anew for every message; a coordinator that asks too often is stopped.

    Half of the time it is stopped before the sites are asked, half of the time after they answered.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.keys = {name: StudySite(name=name, table=None).key for name in SITES}
        super().__init__({})
        self.allowed, self.asked, self.lost = 10**6, 0, 0

    @property
    def sites(self) -> list[str]:
        return list(SITES)

    def exchange(self, requests: Mapping[str, Payload]) -> Mapping[str, Payload]:
        if self.asked >= self.allowed and self.allowed % 2:
            raise Stopped
        self.members = {
            name: StudySite(name=name, table=table, key=self.keys[name], store=SiteFolder(self.folder / name))
            for name, table in SITES.items()
        }
        found = super().exchange(requests)
        if self.asked >= self.allowed:
            self.lost += 1
            raise Stopped  # the answers are lost
        self.asked += 1
        return found


def conducted(sites: Counting, folder: Path, **changes: Any) -> Any:
    study = Study(target="y", kind="logistic", **{"trainer": "scaffold", "tolerance": 0.01, **changes})
    return conduct(study.plan_for(SITES), sites, folder=folder)


def test_a_study_that_is_stopped_anywhere_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    undisturbed = Counting(tmp_path / "sites")
    whole = conducted(undisturbed, tmp_path / "whole")
    assert whole.trained.trainer == "scaffold"
    assert undisturbed.asked > 12
    sites = Counting(tmp_path / "others")
    for stop in range(1, undisturbed.asked):
        sites.allowed = stop
        with pytest.raises(Stopped):
            conducted(sites, tmp_path / "stopped")
    sites.allowed = 10**6
    np.testing.assert_array_equal(conducted(sites, tmp_path / "stopped").theta, whole.theta)
    assert sites.lost > 4
    assert sites.asked == undisturbed.asked


def test_other_settings_and_damaged_files_are_rejected(tmp_path: Path) -> None:
    sites = Counting(tmp_path / "sites")
    conducted(sites, tmp_path / "study")
    with pytest.raises(CheckpointMismatch, match="another question"):
        conducted(sites, tmp_path / "study", l2=0.5)
    file = tmp_path / "study" / "exchanges" / "exchange-000003.npz"
    damaged = bytearray(file.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    file.write_bytes(bytes(damaged))
    with pytest.raises(CheckpointMismatch, match=r"exchange-000003\.npz"):
        conducted(sites, tmp_path / "study")
