"""A coordinator whose processes end before the study has begun."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from fedscaffold.flower.study.link import CoordinatorLink

from fedscaffold.core.errors import FedScaffoldError
from fedscaffold.flower.study import link as link_module
from tests.flower.study.studies import Deployment

ENDS = {"killed": "import os; os.kill(os.getpid(), 9)", "failed": "raise SystemExit(1)"}


def starts(how: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """How often processes that end in some way are started, if those of the eighth start do not."""
    monkeypatch.setattr(link_module, "time", SimpleNamespace(sleep=lambda seconds: None))
    link, counted = CoordinatorLink(Deployment(folder).file, folder / "out", tell=lambda sentence: None), []

    def one_run(each: object) -> object:
        counted.append(how)
        link._link = subprocess.Popen([sys.executable, "-c", ENDS[how]])
        link._link.wait()
        return "finished" if len(counted) == 8 else None

    monkeypatch.setattr(link, "_one_run", one_run)
    link.run()
    return len(counted)


def test_processes_that_are_killed_are_started_again_and_broken_ones_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ENDS:
        (tmp_path / name).mkdir()
    assert starts("killed", tmp_path / "killed", monkeypatch) == 8
    with pytest.raises(FedScaffoldError, match="end again and again"):
        starts("failed", tmp_path / "failed", monkeypatch)
