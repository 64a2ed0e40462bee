"""`fedscaffold study`: files and refusals; studies of real processes are in tests/flower/study."""

import json
import socket
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from fedscaffold.federation.study.report.status import StatusBoard, StudyStatus, study_status
from fedscaffold.flower.study.invite import Invite
from typer.testing import CliRunner

from fedscaffold import dashboard
from fedscaffold.cli.main import app
from fedscaffold.flower.study.site_folder import JoinedSite
from fedscaffold.flower.study.study_file import StudyFile, StudyFolder
from tests.flower.study.studies import visits
from tests.hospitals import written

runner = CliRunner(env={"COLUMNS": "200"})
SITES = ("--set", "protect=sites")


def study(*words: object, code: int = 0) -> str:
    result = runner.invoke(app, ["study", *(str(word) for word in words)])
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result.output


@pytest.fixture
def file(tmp_path: Path) -> Path:
    found = tmp_path / "pilot.toml"
    study("new", found, "--target", "ill", "--site", "bonn,lyon", "--site", "oslo", "--set", "tolerance=0.01")
    return found


def test_new_writes_a_file_that_can_be_read_and_invitations(file: Path) -> None:
    found = StudyFile.load(file)
    assert found.sites == ("bonn", "lyon", "oslo")
    assert (found.name, found.settings.target, found.settings.tolerance) == ("pilot", "ill", 0.01)
    assert all(
        "#" in line for line in file.read_text().splitlines() if line.startswith(("target", "l2", "timeout"))
    )
    invite = json.loads((file.parent / "oslo.invite").read_text())
    assert invite["address"] == "127.0.0.1:9092"
    assert "BEGIN CERTIFICATE" in invite["authority"]
    assert "PRIVATE" not in json.dumps(invite)
    keys = StudyFolder(file).path
    assert keys.stat().st_mode & 0o077 == 0
    assert all((keys / name).stat().st_mode & 0o077 == 0 for name in ("server.key", "coordinator.key"))


def test_new_refuses_what_it_cannot_use(file: Path, tmp_path: Path) -> None:
    assert "exists" in study("new", file, "--target", "ill", "--site", "a,b", code=2)
    other = tmp_path / "other.toml"
    assert "give --target and --site" in study("new", other, code=2)
    assert "two sites or more" in study("new", other, "--target", "ill", "--site", "bonn", code=2)
    assert "different names" in study("new", other, "--target", "ill", "--site", "bonn,bonn", code=2)
    assert "kind must be" in study("new", other, "--target", "ill", "--site", "a,b", "--kind", "probit", code=2)
    assert "HOST:PORT" in study("new", other, "--target", "ill", "--site", "a,b", "--address", "here", code=2)
    assert "--set does not know 'missing_sites'" in study(
        "new", other, "--target", "i", "--site", "a,b", "--set", "missing_sites=go", code=2
    )
    assert "the name of a site must be" in study("new", other, "--target", "ill", "--site", "a,../b", code=2)
    assert not other.exists()


def test_invite_and_accept_know_the_sites(file: Path, tmp_path: Path) -> None:
    assert "oslo.invite" in study("invite", file, "oslo")
    assert "no site called ulm" in study("invite", file, "ulm", code=2)
    assert "is not a site's public key" in study("accept", file, file, code=2)
    assert "cannot read the key" in study("accept", file, tmp_path / "none.pub", code=2)
    data = written(visits(0), tmp_path / "visits.csv")
    keys = {}
    for site in ("bonn", "lyon"):
        invited = Invite.load(file.parent / f"{site}.invite")
        keys[site] = JoinedSite(folder=tmp_path / site, invite=invited, data=data).save()
    told = study("accept", file, keys["bonn"], keys["lyon"])
    assert told.count("SHA256:") == 2
    assert "not accepted yet: oslo" in told
    study("accept", file, keys["bonn"])  # again, the same
    other = JoinedSite(folder=tmp_path / "new", invite=Invite.load(file.parent / "bonn.invite"), data=data).save()
    assert "--replace" in study("accept", file, other, code=2)
    study("accept", file, other, "--replace")
    assert StudyFolder(file).accepted()["bonn"] == other.read_text().strip()
    text = other.read_text().replace(" bonn", " oslo")
    assert "two sites have the same key" in study("accept", file, text, code=2)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"ill": None}, "has no column 'ill'"),
        ({"age": [1.0, None] * 30}, "column 'age' has missing values"),
        ({"age": float("inf")}, "infinite"),
    ],
)
def test_join_checks_the_table_before_anything_is_made(
    file: Path, tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    table = visits(0)
    for name, values in change.items():
        table = table.drop(columns=name) if values is None else table.assign(**{name: values})
    data = written(table, tmp_path / "visits.parquet")
    assert words in study("join", file.parent / "bonn.invite", "--data", data, "--accept", "auto", code=2)
    assert not (tmp_path / "bonn-site").exists()


def test_join_refuses_what_it_cannot_use_and_shows_what_would_leave(file: Path, tmp_path: Path) -> None:
    invite, data = file.parent / "bonn.invite", written(visits(0), tmp_path / "visits.csv")
    empty = written(visits(0).head(0), tmp_path / "empty.csv")
    assert "the table has no rows" in study("join", invite, "--data", empty, "--accept", "auto", code=2)
    assert "is not an invitation" in study("join", file, "--data", data, code=2)
    assert "cannot read" in study("join", invite, "--data", tmp_path / "none.csv", code=2)
    assert "--accept must be" in study("join", invite, "--data", data, "--accept", "yes", code=2)
    assert "needs a terminal" in study("join", invite, "--data", data, code=2)
    policy = tmp_path / "policy.toml"
    policy.write_text("min_batch_size = 20\n[study]\nmin_cel = 10\n")
    assert "unknown fields: min_cel" in study("join", invite, "--data", data, "--policy", policy, code=2)
    policy.write_text("min_batch_size = 20\n[study]\nmin_cell = 10\nallow_hessians = false\n")
    told = study("join", invite, "--data", data, "--policy", policy, "--dry-run")
    assert "Nothing has been sent" in told
    assert "hessian of" not in told
    assert "hessian of" in study("join", invite, "--data", data, "--dry-run")


def test_join_knows_the_classes_of_the_study(tmp_path: Path) -> None:
    file = tmp_path / "pilot.toml"
    study("new", file, "--target", "ill", "--site", "a,b", "--set", "classes=no,yes")
    data = written(visits(0).assign(ill=[0, 1] * 30), tmp_path / "visits.csv")
    told = study("join", tmp_path / "a.invite", "--data", data, "--accept", "auto", code=2)
    assert "the target 'ill' has the values '0', '1', but the classes of the study are 'no', 'yes'" in told


def test_status(tmp_path: Path) -> None:
    assert "cannot read" in study("status", tmp_path, code=2)
    board = StatusBoard(tmp_path, name="pilot", target="ill", tolerance="se:0.05", sites=["bonn", "lyon"])
    board.site("lyon", "refused", "site lyon refuses: the site's table has no rows")
    told = study("status", tmp_path, code=1)
    assert "killed" in told
    assert "the site's table has no rows" in told
    assert json.loads(study("status", tmp_path, "--json", code=1))["sites"]["bonn"]["state"] == "invited"


def test_run_refuses_a_folder_of_another_study(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "study.json").write_text(json.dumps({"name": "other"}))
    assert "other settings, sites or keys" in study("run", file, "--out", out, code=2)
    assert "cannot read" in study("run", tmp_path / "none.toml", "--out", out, code=2)


def test_run_serves_a_live_page_while_the_study_goes_on(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    class Link:
        def __init__(self, file: Path, folder: Path, tell: Any) -> None:
            self.folder = folder

        def run(self, each: Any) -> StudyStatus:
            board = StatusBoard(self.folder, name="pilot", target="ill", tolerance="se:0.05")
            with board.watch():
                board.phase("measure")
                with urlopen(f"http://127.0.0.1:{port}/secret/") as page:
                    assert b"pilot" in page.read()
            return study_status(self.folder)

    monkeypatch.setattr("fedscaffold.flower.study.link.CoordinatorLink", Link)
    monkeypatch.setattr(dashboard, "serve_dashboard", partial(dashboard.serve_dashboard, token="secret"))
    out = tmp_path / "out"
    out.mkdir()
    told = study("run", file, "--out", out, "--dashboard", f"127.0.0.1:{port}")
    assert f"http://127.0.0.1:{port}/secret/" in told
    with pytest.raises(OSError, match="refused"):
        urlopen(f"http://127.0.0.1:{port}/secret/")


def test_a_study_under_a_privacy_budget(tmp_path: Path) -> None:
    """The budget reaches the invitation, and from there the site's own policy; bad ones leave no file."""
    bounds = tmp_path / "bounds.toml"
    bounds.write_text('age = [0, 120]\nill = ["no", "yes"]\n')
    file = tmp_path / "pilot.toml"
    new = ("new", file, "--target", "ill", "--site", "bonn,lyon", "--bounds", bounds)
    for wrong, words in [
        (("--epsilon", 0), "--epsilon must be a positive number, got 0.0"),
        (("--epsilon", 1, "--set", "delta=1"), "delta must be below 1"),
        (("--epsilon", 1, "--set", "clip=0"), "clip must be a positive number"),
        (("--epsilon", 1, *SITES, "--set", "delta=0.01"), "--set protect=sites requires --l2"),
        (("--epsilon", 1, *SITES, "--l2", 0.1), "--set protect=sites requires --set delta=..."),
        (("--epsilon", 1, *SITES, "--l2", 0.1, "--set", "delta=0.9"), "delta must be below"),
        (("--epsilon", 1, "--set", "protect=phones"), "protect must be one of 'rows', 'sites'"),
        (
            ("--epsilon", 1, "--secure", "--set", "trainer=newton"),
            "cannot be combined with --set trainer=...",
        ),
        ((), "--bounds requires --epsilon"),
    ]:
        assert words in study(*new, *wrong, code=2)
        assert not file.exists()
    study(*new, "--epsilon", 2, "--set", "delta=0.001", "--secure")
    assert StudyFile.load(file).settings.epsilon == 2.0
    assert StudyFile.load(file).settings.secure
    invite = Invite.load(tmp_path / "bonn.invite")
    joined = JoinedSite(folder=tmp_path / "bonn", invite=invite, data=tmp_path / "bonn.csv")
    policy = joined.site().policy
    assert (policy.epsilon, policy.delta) == (2.0, 0.001)
    own = tmp_path / "policy.toml"
    for text, budget in [
        ("epsilon = 0.5", (0.5, 0.5, 0.001)),
        ("epsilon = 9.0\ndelta = 1e-5", (9.0, 2.0, 1e-5)),  # of all studies together, and of this one
    ]:
        own.write_text(f"{text}\n")
        site = JoinedSite(folder=tmp_path / "bonn", invite=invite, data=tmp_path / "bonn.csv", policy=own).site()
        assert (site.policy.epsilon, site.policy.run_epsilon, site.policy.delta) == budget
