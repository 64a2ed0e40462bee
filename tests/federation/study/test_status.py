"""The status of a study: the coordinator's folder while it runs, when it stops and when it ends."""

import json
from pathlib import Path
from typing import Any

import pytest

from fedscaffold.core.errors import InUse, InvalidInput
from fedscaffold.core.files import exclusive
from fedscaffold.federation import Plan, StatusBoard, Study, StudyStatus, study_status
from fedscaffold.federation.study import status as module
from fedscaffold.federation.study.status import LOCK, STATUS
from fedscaffold.inference.training import ErrorPoint
from tests.federation.study.tables import TABLES, deal

COLUMNS: Any = {"age": {"range": [18, 99]}, "ill": {"levels": ["no", "yes"]}}
PLAN = Plan(name="pilot", target="ill", kind="logistic", sites=("bonn", "lyon", "oslo"), columns=COLUMNS)


def conduct(folder: Path, **changes: Any) -> Any:
    frame, kind = TABLES["wards"]()
    tables = {name.replace(" ", "-"): table for name, table in deal(frame, 3, "even", seed=1).items()}
    study = Study(**{"name": "wards", "target": "y", "kind": kind, **changes})
    return study.run(tables, engine="reference", folder=folder)


def test_the_folder_says_how_a_study_went(tmp_path: Path) -> None:
    result = conduct(tmp_path)
    status = study_status(tmp_path)
    assert (status.state, status.phase, status.error) == ("finished", "report", "")
    assert (status.name, status.target, status.tolerance) == ("wards", "y", "se:0.05")
    assert status.history == result.trained.history
    assert status.history[-1].exchange == result.rounds
    assert status.current_error == result.certified_error["standard_errors"]
    assert (status.aim, status.in_standard_errors) == (0.05, True)
    assert list(status.sites) == ["site-0", "site-1", "site-2"]
    assert status.notes == result.trained.notes
    assert status.exchanges == len(result.log["site-0"]) - 1  # but for the receipt of the result


def test_a_study_that_starts_again_counts_the_exchanges_of_before(tmp_path: Path) -> None:
    conduct(tmp_path)
    first = study_status(tmp_path)
    board = StatusBoard(tmp_path, PLAN)
    assert board.status.exchanges == 0
    conduct(tmp_path)
    assert study_status(tmp_path).exchanges == first.exchanges


def test_the_error_goes_down_and_its_end_is_the_certificate(tmp_path: Path) -> None:
    history = conduct(tmp_path, trainer="scaffold").trained.history
    assert study_status(tmp_path).history == history
    assert {point.certified for point in history} == {True, False}
    assert any("local steps" in point.method for point in history)
    assert history[-1].relative < 1e-6 < history[0].relative


def test_a_study_that_stops_says_why(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput):
        conduct(tmp_path, max_exchanges=2)
    status = study_status(tmp_path)
    assert (status.state, status.phase) == ("stopped", "survey")
    assert "site-0" in status.error


def test_errors_of_other_kinds_are_named_without_their_text(tmp_path: Path) -> None:
    """A text may hold anything; the status is shown to everybody who may see the live page."""
    with pytest.raises(ZeroDivisionError), StatusBoard(tmp_path, PLAN).watch():
        raise ZeroDivisionError("row 17 of the table")
    assert study_status(tmp_path).error == "ZeroDivisionError"


def test_running_and_killed_differ_by_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOCK_WAIT", 0.0)
    board = StatusBoard(tmp_path / "out", PLAN)
    with board.watch():
        board.phase("train")
        board.phase("accept")  # of a plan that the survey completed
        board.site("bonn", "online")
        board.site("lyon", "refused", "column 'age' is missing")
        status = study_status(tmp_path / "out")
        with pytest.raises(InUse), StatusBoard(tmp_path / "out", PLAN).watch():
            pass
    assert (status.state, status.phase, status.fingerprint) == ("running", "train", PLAN.fingerprint)
    assert status.sites["lyon"].why == "column 'age' is missing"
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o700
    file = tmp_path / "out" / STATUS
    file.write_text(file.read_text().replace('"finished"', '"running"'))
    assert study_status(tmp_path / "out").state == "killed"
    with exclusive(tmp_path / "out" / LOCK, "the folder"):
        assert study_status(tmp_path / "out").state == "running"


def test_errors_are_compared_in_the_unit_of_the_tolerance() -> None:
    status = StudyStatus(name="a", target="y", tolerance="se:0.05")
    assert (status.current_error, status.in_standard_errors) == (None, False)
    without = status.model_copy(update={"history": (ErrorPoint(exchange=1, relative=0.2),)})
    assert (without.current_error, without.aim, without.in_standard_errors) == (0.2, 0.005, False)
    points = (*without.history, ErrorPoint(exchange=2, relative=0.1, standard_errors=0.7))
    known = status.model_copy(update={"history": points})
    assert (known.current_error, known.aim, known.in_standard_errors) == (0.7, 0.05, True)
    relative = known.model_copy(update={"tolerance": 0.01})
    assert (relative.current_error, relative.aim) == (0.1, 0.01)
    private = Plan(**{**PLAN.model_dump(), "epsilon": 1.0, "delta": 1e-6, "rows": 900})
    assert (StatusBoard(None, private).status.tolerance, StatusBoard(None, private).status.aim) == (None, None)


def test_files_without_a_status_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot read"):
        study_status(tmp_path)
    good = StudyStatus(name="a", target="y", tolerance="se:0.05").model_dump(mode="json")
    bad = [json.dumps({**good, name: [[]]}) for name in good if name not in ("history", "notes")]
    for text in ("", "[]", '{"what": "other"}', "[" * 100_000, *bad):
        (tmp_path / STATUS).write_text(text)
        with pytest.raises(InvalidInput, match="is not the status of a study"):
            study_status(tmp_path)


@pytest.mark.parametrize("told", [SystemExit(1), KeyboardInterrupt()], ids=["exit", "interrupt"])
def test_a_process_that_exits_on_request_does_not_stop_the_study(tmp_path: Path, told: BaseException) -> None:
    """The coordinator's next process may be at work already, and whoever follows it reads the same file."""
    with pytest.raises(type(told)), StatusBoard(tmp_path, PLAN).watch():
        raise told
    assert study_status(tmp_path).state == "killed"  # nobody holds the folder
    assert study_status(tmp_path).error == ""
