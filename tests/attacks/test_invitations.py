"""The invitation binds: a coordinator's key asks for nothing else, and names in it stay names."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from fedscaffold.federation.study.greet import PROTOCOL
from fedscaffold.federation.study.messages import Address, StudyMessage, pack, with_address
from fedscaffold.flower.study.invite import Invite

import fedscaffold as fs
from fedscaffold.federation import Refusal, RefusalCode, StudySettings
from fedscaffold.federation.payloads import Payload
from fedscaffold.federation.study.site import StudySite

SETTINGS = StudySettings(target="ill", kind="logistic", features=("age",), min_cell=5)
KINDS = {"ill": "number", "age": "number", "name": "category"}


def site() -> StudySite:
    rng = np.random.default_rng(0)
    names = [f"patient {k}" for k in range(40)]
    table = pd.DataFrame({"age": rng.normal(50, 9, 40), "ill": rng.integers(0, 2, 40), "name": names})
    return StudySite(name="bonn", table=table, settings=SETTINGS, study_name="pilot")


def request(phase: Any, **body: Any) -> Payload:
    return with_address(pack(StudyMessage(phase, body)), Address("0" * 32, "pilot"))


@pytest.mark.parametrize(
    "other",
    [
        replace(SETTINGS, min_cell=1),
        replace(SETTINGS, features=("age", "name")),
        replace(SETTINGS, target="age", kind="ridge", features=("ill",)),
        replace(SETTINGS, evaluate=0.5),
    ],
)
@pytest.mark.parametrize("phase", ["greet", "labels", "prepare"])
def test_a_site_answers_with_the_settings_of_its_invitation_alone(phase: str, other: StudySettings) -> None:
    body = {"protocol": PROTOCOL, "kinds": KINDS}
    with pytest.raises(Refusal) as refused:
        site().answer(request(phase, settings=other.to_json(), **body))
    assert refused.value.code is RefusalCode.OTHER_SETTINGS


def test_a_site_answers_with_the_settings_of_its_invitation() -> None:
    site().answer(request("greet", settings=SETTINGS.to_json(), protocol=PROTOCOL))


@pytest.mark.parametrize("name", ["../../.ssh/id", "/etc/passwd", "a\x1b[2J", "graz\nSHA256:forged", "", "a b"])
@pytest.mark.parametrize("which", ["study", "site"])
def test_names_of_an_invitation_are_neither_paths_nor_escapes(tmp_path: Path, which: str, name: str) -> None:
    honest = Invite(
        study="pilot", site="bonn", address="127.0.0.1:9092", authority="", coordinator="", settings=SETTINGS
    )
    file = tmp_path / "bonn.invite"
    honest.save(file)
    assert Invite.load(file) == honest
    object.__setattr__(honest, which, name)
    honest.save(file)
    with pytest.raises(fs.InvalidInput, match="the name of a"):
        Invite.load(file)
