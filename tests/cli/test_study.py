"""`fedscaffold study`: files and rejections; studies of real processes are in tests/flower/study."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fedscaffold.cli.main import app
from fedscaffold.federation.study.plan import StudySettings
from fedscaffold.federation.study.rows import TableFile
from fedscaffold.federation.study.status import StatusBoard
from fedscaffold.flower.study.study_file import Invite, JoinedSite, StudyFile, StudyFolder
from tests.flower.study.studies import Deployment, visits
from tests.hospitals import written

runner = CliRunner(env={"COLUMNS": "200"})
THREE = ("--site", "bonn,lyon", "--site", "oslo")
NAMED = ("--target", "ill", "--kind", "logistic", "--features", "age,dose,ward", "--set", "categorical=ward")


def study(*words: object, code: int = 0) -> str:
    result = runner.invoke(app, ["study", *(str(word) for word in words)])
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result.output


@pytest.fixture
def file(tmp_path: Path) -> Path:
    found = tmp_path / "pilot.toml"
    study("new", found, *NAMED, *THREE, "--tolerance", "0.01")
    return found


def join(file: Path, site: str, folder: Path) -> JoinedSite:
    data = written(visits(0), file.parent / "visits.csv")
    joined = JoinedSite(folder, Invite.load(file.parent / f"pilot-{site}.invite"), TableFile(data))
    joined.open()
    return joined


def test_new_writes_a_file_that_can_be_read_and_invitations(file: Path) -> None:
    found = StudyFile.load(file)
    assert found.plan.sites == ("bonn", "lyon", "oslo")
    assert (found.plan.name, found.plan.target, found.plan.tolerance) == ("pilot", "ill", 0.01)
    assert [column.type for column in found.plan.columns.values()] == ["number", "number", "category", "category"]
    settings = [line for line in file.read_text().splitlines() if line.startswith(("target", "l2", "timeout"))]
    assert len(settings) == 3
    assert all("#" in line for line in settings)
    invite = json.loads((file.parent / "pilot-oslo.invite").read_text())
    assert invite["address"] == "127.0.0.1:9092"
    assert "BEGIN CERTIFICATE" in invite["authority"]
    assert "PRIVATE" not in json.dumps(invite)
    keys = StudyFolder(file).path
    assert keys.stat().st_mode & 0o077 == 0
    assert all((keys / name).stat().st_mode & 0o077 == 0 for name in ("server.key", "coordinator.key"))


def test_new_and_join_show_the_same_fingerprint(tmp_path: Path) -> None:
    data = written(visits(0), tmp_path / "visits.csv")
    said = study("new", tmp_path / "pilot.toml", "--target", "ill", "--like", data, *THREE)
    fingerprint = StudyFile.load(tmp_path / "pilot.toml").plan.fingerprint
    assert fingerprint in said
    assert fingerprint in study("join", tmp_path / "pilot-bonn.invite", "--data", data, "--dry-run")
    assert fingerprint in study("invite", tmp_path / "pilot.toml")


def test_times_until_events_are_two_columns(tmp_path: Path) -> None:
    file = tmp_path / "pilot.toml"
    study("new", file, "--target", "days,died", "--kind", "cox", "--features", "age", *THREE)
    plan = StudyFile.load(file).plan
    assert (plan.target, plan.status, plan.used_columns) == ("days", "died", ("age", "days", "died"))
    assert plan.incomplete == ("age",)
    assert "needs two columns" in study(
        "new", tmp_path / "b.toml", "--target", "days", "--kind", "cox", "--features", "age", *THREE, code=2
    )


def test_two_studies_in_one_folder_keep_their_invitations(file: Path) -> None:
    study("new", file.parent / "other.toml", *NAMED, *THREE)
    assert Invite.load(file.parent / "pilot-bonn.invite").plan.name == "pilot"
    assert Invite.load(file.parent / "other-bonn.invite").plan.name == "other"


def test_the_options_are_those_of_the_settings(tmp_path: Path) -> None:
    """Every setting is an option or a name of --set, with the default of the class."""
    text = " ".join(study("new", "--help").split())
    for name in StudySettings.model_fields:
        assert f"--{name}" in text or name in text
    plan_file = tmp_path / "a.toml"
    more = ("--set", "hessians=false", "--set", "max_exchanges=70", "--set", "columns={age = {range = [0, 99]}}")
    study("new", plan_file, *NAMED, *THREE, "--l2", "0.5", "--sums", "open", "--set", "event=no", *more)
    plan = StudyFile.load(plan_file).plan
    assert (plan.l2, plan.sums, plan.event, plan.hessians, plan.max_exchanges) == (0.5, "open", "no", False, 70)
    assert plan.columns["age"].range == (0.0, 99.0)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), ["give --target and --site, for example: fedscaffold study new other.toml --target"]),
        ((*NAMED, "--site", "bonn"), ["a study has two or more sites"]),
        ((*NAMED, "--site", "bonn,bonn,graz"), ["different names"]),
        ((*NAMED, "--site", "bonn,graz"), ["secure sums need three sites", "--sums open"]),
        ((*NAMED, *THREE, "--kind", "probit"), ["'ridge', 'logistic', 'poisson', 'gamma' or 'cox'"]),
        ((*NAMED, *THREE, "--address", "here"), ["HOST:PORT"]),
        ((*NAMED, *THREE, "--set", "missing_sites=go", "--set", "l2=1", "--set", "x"),
         ["--set does not know 'missing_sites'", "give 'l2' as --l2", "--set must be NAME=VALUE, got 'x'"]),
        ((*NAMED, "--site", "a,../b,c"), ["../b is not a name"]),
        ((*NAMED, *THREE, "--l2", "-1", "--tolerance", "near", "--set", "min_cell=0"), ["l2", "min_cell"]),
        (("--target", "ill", *THREE), ["--kind and --features, or --like"]),
        ((*NAMED, *THREE, "--like", "none.csv"), ["none.csv"]),
    ],
)  # fmt: skip
def test_new_names_all_that_it_cannot_use(tmp_path: Path, words: tuple[str, ...], said: list[str]) -> None:
    other = tmp_path / "other.toml"
    shown = study("new", other, *words, code=2)
    for sentence in said:
        assert sentence in shown
    assert not list(tmp_path.iterdir())


def test_invite_and_accept_know_the_sites(file: Path, tmp_path: Path) -> None:
    assert "exists" in study("new", file, *NAMED, *THREE, code=2)
    assert "pilot-oslo.invite" in study("invite", file, "oslo")
    assert "no site called ulm" in study("invite", file, "ulm", code=2)
    assert "is not a site's public key" in study("accept", file, file, code=2)
    assert "cannot read the key" in study("accept", file, tmp_path / "none.pub", code=2)
    keys = {site: join(file, site, tmp_path / site).public_key for site in ("bonn", "lyon")}
    said = study("accept", file, keys["bonn"], keys["lyon"])
    assert said.count("SHA256:") == 2
    assert "not accepted yet: oslo" in said
    study("accept", file, keys["bonn"])  # again, the same
    other = join(file, "bonn", tmp_path / "new").public_key
    assert "--replace" in study("accept", file, other, code=2)
    study("accept", file, other, "--replace")
    assert StudyFolder(file).accepted()["bonn"] == other.read_text().strip()
    text = other.read_text().strip()
    assert "two sites have the same key" in study("accept", file, text.replace(" bonn", " oslo"), code=2)
    shown = study("accept", file, text.replace(" bonn", " ../b"), text.replace(" bonn", " u\x1b[2J"), code=2)
    assert "\x1b[2J" not in shown
    assert shown.count("no site called") == 2
    assert sorted(path.name for path in (StudyFolder(file).path / "accepted").iterdir()) == [
        "bonn.pub",
        "lyon.pub",
    ]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"ill": None, "dose": None}, ["'dose'", "'ill'"]),
        ({"age": [1.0, None] * 30}, ["missing"]),
        ({"age": float("inf")}, ["age"]),
        ({"ward": [f"room {k}" for k in range(60)]}, ["ward"]),
    ],
)
def test_join_checks_the_table_before_anything_is_made(
    file: Path, tmp_path: Path, change: dict[str, Any], words: list[str]
) -> None:
    table = visits(0)
    for name, values in change.items():
        table = table.drop(columns=name) if values is None else table.assign(**{name: values})
    data = written(table, tmp_path / "visits.parquet")
    shown = study("join", file.parent / "pilot-bonn.invite", "--data", data, "--accept", "auto", code=2)
    for word in words:
        assert word in shown
    assert not (tmp_path / "pilot-bonn").exists()


def test_join_rejects_what_it_cannot_use_and_shows_what_would_leave(file: Path, tmp_path: Path) -> None:
    invite, data = file.parent / "pilot-bonn.invite", written(visits(0), tmp_path / "visits.csv")
    empty = written(visits(0).head(0), tmp_path / "empty.csv")
    study("join", invite, "--data", empty, "--accept", "auto", code=2)
    assert "is not an invitation" in study("join", file, "--data", data, code=2)
    assert "none.csv" in study("join", invite, "--data", tmp_path / "none.csv", code=2)
    assert "--accept must be" in study("join", invite, "--data", data, "--accept", "yes", code=2)
    assert "needs a terminal" in study("join", invite, "--data", data, code=2)
    assert "settings are 'delimiter'" in study("join", invite, "--data", data, "--set", "l2=1", code=2)
    assert "--peer must be" in study("join", invite, "--data", data, "--peer", "ulm=12", code=2)
    policy = tmp_path / "policy.toml"
    policy.write_text("[study]\nmin_cel = 10\nmin_rows = 'many'\n")
    shown = study("join", invite, "--data", data, "--policy", policy, code=2)
    assert "min_cel" in shown
    assert "min_rows" in shown
    policy.write_text("[study]\nmin_cell = 10\nallow_hessians = false\n")
    shown = study("join", invite, "--data", data, "--policy", policy, "--dry-run", code=2)
    assert "min_cell = 5, the site's policy asks for 10" in shown
    assert "Hessians" in shown
    assert "Nothing has been sent" in study("join", invite, "--data", data, "--dry-run")
    assert not (tmp_path / "pilot-bonn").exists()


@pytest.mark.parametrize("by_post", [False, True])
def test_a_site_without_messages_stops_after_the_stated_time(file: Path, tmp_path: Path, by_post: bool) -> None:
    data, shared = written(visits(0), tmp_path / "visits.csv"), ("--folder", tmp_path / "share") if by_post else ()
    words = ("join", tmp_path / "pilot-bonn.invite", "--data", data, "--accept", "auto", "--wait", "0.0001")
    said = study(*words, *shared, code=2)
    assert "no message has come for 0.0001 hours; the study may be over" in said


def test_status(tmp_path: Path) -> None:
    assert "cannot read" in study("status", tmp_path, code=2)
    plan = Deployment(tmp_path / "study").plan
    board = StatusBoard(tmp_path, plan)
    with board.watch():
        board.site("bonn", "refused", "its table\x1b[2J has changed")
        shown = study("status", tmp_path, code=3)
        assert "\x1b[2J" not in shown
        assert "its table" in shown
    assert json.loads(study("status", tmp_path, "--json"))["state"] == "finished"


def test_run_rejects_a_folder_of_another_study_and_missing_keys(tmp_path: Path) -> None:
    one, other = Deployment(tmp_path / "one"), Deployment(tmp_path / "other", min_cell=6)
    with one.answering(tmp_path / "share"):
        one.conduct(tmp_path / "share")
    words = ("--out", one.out, "--folder", tmp_path / "share")
    assert "another plan or other keys" in study("run", other.file, *words, code=2)
    (StudyFolder(other.file).path / "accepted" / "graz.pub").unlink()
    shown = study("run", other.file, "--out", tmp_path / "out", code=2)
    assert "no key has been accepted yet of graz" in shown
    assert "ok: the model" in study("verify", one.out)
    (one.out / "for-sites.json").write_text("{}")
    assert "PROBLEM" in study("verify", one.out, code=1)
    study("verify", tmp_path / "none", code=2)


WITHOUT = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocked())
sys.argv = ["fedscaffold", *{words!r}]
from fedscaffold.cli.start import main
main()
"""


def without(blocked: tuple[str, ...], *words: str) -> tuple[int, str]:
    """Run a command in a process without some packages."""
    code = WITHOUT.format(blocked=set(blocked), words=words)
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "COLUMNS": "200"},
    )
    return done.returncode, done.stdout + done.stderr


def test_the_help_works_without_optional_packages(file: Path) -> None:
    code, shown = without(("cryptography", "flwr"), "study", "--help")
    assert code == 0, shown
    assert "verify" in shown
    code, shown = without(("cryptography", "flwr"), "study", "invite", str(file))
    assert code == 2
    assert "cryptography" in shown
    assert "pip install" in shown
    assert "Traceback" not in shown
    code, shown = without(("pydantic",), "study", "--help")
    assert code == 2
    assert "fedscaffold[study]" in shown


def test_the_extra_for_studies_has_all_that_coordinator_and_sites_need(tmp_path: Path) -> None:
    """A new study and a dry run without packages that the extra does not install; sites need no pandas either."""
    blocked = ("pandas", "matplotlib", "jax", "ray", "torch", "statsmodels", "dp_accounting", "polars", "optax")
    data = written(visits(0), tmp_path / "visits.csv")
    new = ("study", "new", str(tmp_path / "pilot.toml"), "--target", "ill", "--like", str(data), *THREE)
    code, shown = without(blocked, *new)
    assert code == 0, shown
    code, shown = without(
        blocked, "study", "join", str(tmp_path / "pilot-bonn.invite"), "--data", str(data), "--dry-run"
    )
    assert code == 0, shown
    code, shown = without(blocked, "federate", "--help")
    assert code == 0, shown


def test_a_study_under_a_privacy_budget(tmp_path: Path) -> None:
    columns = "columns={age = {range = [0, 120]}, ill = {levels = ['no', 'yes']}}"
    file = tmp_path / "pilot.toml"
    new = ("new", file, "--target", "ill", "--kind", "logistic", *THREE, "--set", columns)
    for wrong, words in (
        (("--epsilon", "0"), "epsilon"),
        (("--epsilon", "1", "--l2", "0.1"), "--rows, the public number of rows"),
        (("--epsilon", "1", "--rows", "100", "--l2", "0.1", "--set", "clip=0"), "clip"),
        (("--epsilon", "1", "--rows", "100", "--l2", "0.1", "--set", "protect=phones"), "protect"),
        (("--rows", "100"), "--rows, the public number of rows"),
        (("--set", "delta=0.1"), "delta"),
    ):
        assert words in study(*new, *wrong, code=2)
        assert not file.exists()
    study(*new, "--epsilon", "2", "--rows", "1000", "--l2", "0.1")
    plan = StudyFile.load(file).plan
    assert (plan.epsilon, plan.rows, plan.delta, plan.sums) == (2.0, 1000, 1e-4, "secure")
