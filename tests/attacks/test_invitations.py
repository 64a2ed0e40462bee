"""The invitation binds: a coordinator's key asks for nothing else, and whatever stands in it stays text."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import fedscaffold as fs
from fedscaffold.cli.main import app
from fedscaffold.federation import StudyPlan
from fedscaffold.federation.messages import Payload
from fedscaffold.federation.refusals import RefusalCode
from fedscaffold.federation.study.roster import new_key, public_line, sign
from fedscaffold.federation.study.rows import TableFile
from fedscaffold.federation.study.site import DOCUMENT, KIND, refusal_in
from fedscaffold.flower.study.study_file import Invite, JoinedSite, StudyFile

COLUMNS: dict[str, Any] = {"age": {"range": [0, 100]}, "ill": {"levels": ["no", "yes"]}}
SETTINGS: dict[str, Any] = {
    "target": "ill",
    "kind": "logistic",
    "sites": ("bonn", "graz", "lyon"),
    "name": "pilot",
}
KEY = new_key()
PLAN = StudyPlan(**SETTINGS, columns=COLUMNS)
ESCAPES = ["../../.ssh/id", "/etc/passwd", "a\x1b[2J", "graz\nSHA256:forged", "", "a b", ".", "..", "-rf"]


@pytest.fixture
def joined(tmp_path: Path) -> JoinedSite:
    rng = np.random.default_rng(0)
    names = [f"patient {k}" for k in range(40)]
    table = pd.DataFrame({"age": rng.normal(50, 9, 40), "ill": ["no", "yes"] * 20, "name": names})
    table.to_csv(tmp_path / "visits.csv", index=False)
    public = public_line(KEY, "coordinator")
    invite = Invite(site="bonn", plan=PLAN, address="127.0.0.1:9092", authority="", coordinator=public)
    invite.save(tmp_path / invite.file_name)
    return JoinedSite(
        tmp_path / "site", Invite.load(tmp_path / "pilot-bonn.invite"), TableFile(tmp_path / "visits.csv")
    )


def propose(joined: JoinedSite, plan: Any) -> RefusalCode | None:
    request = Payload({KIND: "plan", DOCUMENT: json.dumps(plan if isinstance(plan, dict) else plan.to_json())})
    return refusal_in(joined.answer(joined.open(), sign(request, "bonn", KEY)))


@pytest.mark.parametrize(
    "change",
    [
        {"min_cell": 1},
        {"columns": {**COLUMNS, "name": {"type": "category"}}},
        {"target": "age", "kind": "ridge"},
        {"evaluate": 0.5},
        {"sums": "open"},
        {"sites": ("bonn", "graz", "oslo")},
        {"max_exchanges": 100_000},
    ],
)
def test_a_site_accepts_the_plan_of_its_invitation_alone(joined: JoinedSite, change: dict[str, Any]) -> None:
    other = StudyPlan(**{**SETTINGS, "columns": COLUMNS, **change})
    assert propose(joined, other) is RefusalCode.OTHER_SETTINGS
    assert propose(joined, PLAN) is None
    assert propose(joined, other) is RefusalCode.OTHER_SETTINGS  # later, too


def test_rubbish_in_a_plan_is_a_code(joined: JoinedSite) -> None:
    for rubbish in (
        {},
        {"format": "fedscaffold plan 2"},
        {**PLAN.to_json(), "columns": 3},
        {**PLAN.to_json(), "x": 1},
    ):
        assert propose(joined, rubbish) is RefusalCode.BAD_REQUEST


@pytest.mark.parametrize("name", ESCAPES)
@pytest.mark.parametrize("which", ["study", "site", "column"])
def test_names_of_an_invitation_are_neither_paths_nor_escapes(joined: JoinedSite, which: str, name: str) -> None:
    file = joined.folder.parent / "pilot-bonn.invite"
    values = json.loads(file.read_text())
    if which == "study":
        values["plan"]["name"] = name
    elif which == "site":
        values["site"] = name
        values["plan"]["sites"][0] = name
    elif name.isprintable() and name:
        return  # a column may be called like a path; it never becomes one
    else:
        values["plan"]["columns"][0]["name"] = name
    file.write_text(json.dumps(values))
    with pytest.raises(fs.InvalidInput, match="not an invitation that can be used") as error:
        Invite.load(file)
    assert str(error.value).isprintable()


@pytest.mark.parametrize(
    "change",
    [
        {"address": "here"}, {"address": "a:1\nb"}, {"coordinator": "rubbish"}, {"site": 3},
        {"more": 1}, {"plan": []},
    ],
)  # fmt: skip
def test_other_values_of_an_invitation_are_checked(joined: JoinedSite, change: dict[str, Any]) -> None:
    file = joined.folder.parent / "pilot-bonn.invite"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(fs.InvalidInput, match="not an invitation that can be used"):
        Invite.load(file)
    done = CliRunner().invoke(app, ["study", "join", str(file), "--data", "none.csv"])
    assert done.exit_code == 2
    assert "Traceback" not in done.output


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"format": "fedscaffold invitation 3"}', "null", "\x00", "{" + '"a":' * 9]
)
def test_rubbish_is_no_invitation(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.invite").write_text(text)
    with pytest.raises(fs.InvalidInput, match="not an invitation that can be used"):
        Invite.load(tmp_path / "x.invite")


def test_a_hostile_end_of_a_study_is_text(joined: JoinedSite) -> None:
    """The last message is kept as JSON; its reason reaches the terminal without escapes, by `shown`."""
    site = joined.open()
    for document in ("[]", "3", '{"stopped": 3', "null"):
        request = sign(Payload({KIND: "result", DOCUMENT: document}), "bonn", KEY)
        assert refusal_in(joined.answer(site, request)) is not None
        assert not joined.over
    request = sign(Payload({KIND: "result", DOCUMENT: json.dumps({"stopped": "\x1b[2J\nok"})}), "bonn", KEY)
    assert refusal_in(joined.answer(site, request)) is None
    assert joined.stopped
    log = (joined.folder / "audit.jsonl").read_text()
    assert "\x1b" not in log


def test_escapes_in_a_studys_file_do_not_reach_the_terminal(tmp_path: Path) -> None:
    file = tmp_path / "pilot.toml"
    text = StudyFile(PLAN).text()
    for old, new in (
        ('"bonn"', '"bo\\u001b[2Jnn"'),
        ('name = "pilot"', 'name = "\\u001b[2J"'),
        ('"ill"', '"\\u001b[2J"'),
    ):
        assert old in text
        file.write_text(text.replace(old, new))
        done = CliRunner().invoke(app, ["study", "invite", str(file)])
        assert done.exit_code == 2
        assert "\x1b[2J" not in done.output
    assert not list(tmp_path.glob("*.invite"))
