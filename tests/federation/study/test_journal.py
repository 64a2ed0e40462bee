"""A study that is stopped at any exchange goes on to the same bits."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedscaffold.core.errors import CheckpointMismatch
from fedscaffold.federation import SitePolicy, StudySettings
from fedscaffold.federation.client.rules import SiteRules
from fedscaffold.federation.payloads import Payload
from fedscaffold.federation.study.site import StudySite
from fedscaffold.federation.study.study import InProcess, conduct_study
from tests.federation.study.tables import TABLES, deal

FRAME, _ = TABLES["wards"]()
SITES = deal(FRAME, 3, "labels", seed=1)
NO_HESSIANS = SiteRules(by_the_clock=False, allow_hessians=False)


class Stopped(Exception):
    """The coordinator was killed."""


class Counting(InProcess):
    """Sites that go on while coordinators come and go; one that asks too often is stopped."""

    def __init__(self) -> None:
        super().__init__(
            {
                name: StudySite(
                    name=name,
                    table=table,
                    rules=NO_HESSIANS,
                    policy=SitePolicy.for_simulation(),
                    engine="reference",
                )
                for name, table in SITES.items()
            }
        )
        self.allowed, self.asked = 10**6, 0

    def exchange(self, requests: Mapping[str, Payload], *, enough: int | None = None) -> Mapping[str, Payload]:
        if self.asked == self.allowed:
            raise Stopped
        self.asked += 1
        return super().exchange(requests, enough=enough)


def conduct(sites: Counting, folder: Path, **changes: Any) -> Any:
    return conduct_study(sites, StudySettings(target="y", kind="logistic", evaluate=0.0, **changes), folder=folder)


def test_a_study_that_is_stopped_anywhere_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    undisturbed = Counting()
    whole = conduct(undisturbed, tmp_path / "whole")
    assert undisturbed.asked > 20
    sites = Counting()
    for stop in range(1, undisturbed.asked, 3):
        sites.allowed = stop
        with pytest.raises(Stopped):
            conduct(sites, tmp_path / "stopped")
    sites.allowed = 10**6
    np.testing.assert_array_equal(conduct(sites, tmp_path / "stopped").theta, whole.theta)
    assert sites.asked == undisturbed.asked


def test_other_settings_and_damaged_files_are_refused(tmp_path: Path) -> None:
    sites = Counting()
    conduct(sites, tmp_path / "study")
    with pytest.raises(CheckpointMismatch, match="another question"):
        conduct(sites, tmp_path / "study", l2=0.5)
    file = tmp_path / "study" / "attempt-001" / "exchange-000003.npz"
    damaged = bytearray(file.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    file.write_bytes(bytes(damaged))
    with pytest.raises(CheckpointMismatch, match=r"exchange-000003\.npz"):
        conduct(sites, tmp_path / "study")
