"""The status of a study: what the coordinator's folder says while it runs, when it stops and when it ends."""

from pathlib import Path
from typing import Any

import pytest

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.files import exclusive
from fedscaffold.federation import StatusBoard, StudySettings, StudyStatus, study_status
from fedscaffold.federation.client.rules import SiteRules
from fedscaffold.federation.study.report.history import ErrorPoint
from fedscaffold.federation.study.report.status import LOCK, STATUS, exchanges_left
from fedscaffold.federation.study.site import StudySite
from fedscaffold.federation.study.study import InProcess, conduct_study
from tests.federation.study.tables import TABLES, deal


def conduct(folder: Path, **changes: Any) -> Any:
    frame, kind = TABLES["wards"]()
    members = {
        name: StudySite(name=name, table=table, rules=SiteRules(by_the_clock=False), engine="reference")
        for name, table in deal(frame, 3, "even", seed=1).items()
    }
    settings = StudySettings(**{"target": "y", "kind": kind, **changes})
    return conduct_study(InProcess(members), settings, name="wards", folder=folder)


def test_the_folder_tells_how_a_study_went(tmp_path: Path) -> None:
    result = conduct(tmp_path)
    status = study_status(tmp_path)
    assert (status.state, status.phase, status.error) == ("finished", "report", "")
    assert (status.name, status.target, status.tolerance) == ("wards", "y", "se:0.05")
    assert status.rounds == result.rounds == status.history[-1].exchange
    assert tuple(status.history) == result.training.history
    assert status.current_error == result.certified_error["standard_errors"]
    assert status.aim == 0.05
    assert status.seconds_left == 0.0
    assert list(status.sites) == ["site 0", "site 1", "site 2"]
    assert tuple(status.notes) == result.training.notes
    messages = {sum(one.messages for one in phases.values()) for phases in result.traffic.values()}
    assert messages == {status.exchanges}


def test_the_error_goes_down_and_its_end_is_the_certificate(tmp_path: Path) -> None:
    history = conduct(tmp_path, trainer="scaffold", evaluate=0.0).training.history
    assert {point.how for point in history} == {"estimated", "certified"}
    assert any("local steps" in point.method for point in history)
    assert history[-1].relative < 1e-6 < history[0].relative
    assert [point.exchange for point in history] == sorted(point.exchange for point in history)


def test_a_study_that_stops_says_why(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput):
        conduct(tmp_path, target="nobody has this")
    status = study_status(tmp_path)
    assert status.state == "stopped"
    assert "nobody has this" in status.error


def test_running_and_killed_differ_by_the_lock(tmp_path: Path) -> None:
    board = StatusBoard(tmp_path, name="pilot", target="ill", tolerance=0.01, sites=["bonn", "lyon"])
    board.phase("train")
    board.site("bonn", "online")
    board.site("lyon", "refused", "column 'age' is missing")
    board.refused("key 3f2a", "nobody accepted it")
    assert study_status(tmp_path).state == "killed"
    with exclusive(tmp_path / LOCK, "the folder"):
        status = study_status(tmp_path)
    assert status.state == "running"
    assert status.sites["lyon"].why == "column 'age' is missing"
    assert status.refused[0]["who"] == "key 3f2a"
    with pytest.raises(InvalidInput, match="phases"):
        board.phase("lunch")


def test_the_time_left_follows_the_error() -> None:
    points = [ErrorPoint(exchange=4 * k, relative=10.0**-k, how="estimated") for k in range(4)]
    assert exchanges_left(points, "0.00001", 1e-5) == pytest.approx(8.0)
    assert exchanges_left(points, "0.01", 1e-2) == 0.0
    assert exchanges_left(points[:1], "0.01", 1e-2) is None
    assert exchanges_left(points[::-1], "0.01", 1e-2) is None
    # standard errors become known when the certificates begin, and only those are compared
    certified = ErrorPoint(exchange=16, relative=1e-4, standard_errors=0.3)
    assert exchanges_left([*points, certified], "se:0.05", 0.05) is None
    better = ErrorPoint(exchange=17, relative=1e-5, standard_errors=0.1)
    assert exchanges_left([*points, certified, better], "se:0.05", 0.05) == pytest.approx(0.6309, abs=1e-4)


def test_files_that_are_no_status_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot read"):
        study_status(tmp_path)
    for text in ("", "[]", '{"what": "other"}', "[" * 100_000):
        (tmp_path / STATUS).write_text(text)
        with pytest.raises(InvalidInput):
            study_status(tmp_path)
    values = StudyStatus(name="a", target="y", tolerance="0.01").to_json()
    for name in values.keys() - {"current_error", "seconds_left"}:
        with pytest.raises(InvalidInput):
            StudyStatus.from_json(values | {name: object()})


@pytest.mark.parametrize("told", [SystemExit(1), KeyboardInterrupt()], ids=["exit", "interrupt"])
def test_a_process_that_is_told_to_exit_does_not_stop_the_study(tmp_path: Path, told: BaseException) -> None:
    """The coordinator's next process may be at work already, and whoever follows it reads the same file."""
    board = StatusBoard(tmp_path, name="pilot", target="ill", tolerance="se:0.05", sites=["bonn"])
    board.phase("train")
    with pytest.raises(type(told)), board.watch():
        raise told
    assert study_status(tmp_path).state == "killed"  # nobody holds the folder
    assert study_status(tmp_path).error == ""
