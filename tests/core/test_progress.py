"""Progress where there is no terminal: a line now and then, also while nothing advances."""

import time

import pytest

from fedscaffold.core import display


def test_lines_are_written_where_there_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(display, "SECONDS_BETWEEN_LINES", 0.05)
    with display.progress_bar("Planning", None):
        time.sleep(0.3)
    with display.progress_bar("Running", None) as advance:
        advance(3, 12)
        time.sleep(0.3)
    with display.progress_bar("Silent", False):
        time.sleep(0.2)
    lines = capsys.readouterr().err
    assert "Planning: 0 s\n" in lines
    assert "Running: 0 s, 3 of 12, about " in lines
    assert "Silent" not in lines


def test_a_short_job_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with display.progress_bar("Planning", None) as advance:
        advance(1, 1)
    assert capsys.readouterr().err == ""
