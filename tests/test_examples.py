"""The examples run and print what their pages say; gallery scripts end in a figure."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import matplotlib as mpl
import pytest
from matplotlib import pyplot as plt

ROOT = Path(__file__).parents[1]
LONG = ("cost_of_a_target", "speed_up")  # ten seconds each; the pages run them too
GALLERY = [
    pytest.param(script, marks=pytest.mark.slow if script.stem in LONG else (), id=script.stem)
    for script in sorted((ROOT / "examples" / "gallery").glob("*.py"))
]


@pytest.mark.slow
def test_hospitals(tmp_path: Path) -> None:
    folder = ROOT / "examples" / "hospitals"
    done = subprocess.run(
        [sys.executable, folder / "hospitals.py"], cwd=tmp_path, env={**os.environ, "COLUMNS": "80"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    shown = (folder / "README.md").read_text().split("```text\n")[1].split("```")[0]
    found = [re.sub(r"[\d.,]+ s\b", "0.0 s", line.rstrip()) for line in done.stdout.splitlines()]
    assert found == [re.sub(r"[\d.,]+ s\b", "0.0 s", line) for line in shown.splitlines()]
    assert (tmp_path / "hospitals" / "model" / "report.html").is_file()


@pytest.mark.parametrize("script", GALLERY)
def test_gallery(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each script draws one figure, in which something is drawn on every axis, and shows it at its end."""
    mpl.use("agg")
    plt.close("all")  # figures of other tests
    shown: list[int] = []
    monkeypatch.setattr(plt, "show", lambda: shown.extend(plt.get_fignums()))
    try:
        runpy.run_path(str(script))
        assert len(shown) == 1
        for axis in plt.figure(shown[0]).axes:
            assert axis.has_data(), axis.get_title()
            assert axis.get_xlabel() or axis.get_title()
    finally:
        plt.close("all")


def test_client_drift_shows_what_its_page_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """The picture on the page about Scaffold: FedAvg stays 28 % away, Scaffold reaches the optimum."""
    mpl.use("agg")
    monkeypatch.setattr(plt, "show", lambda: None)
    try:
        runpy.run_path(str(ROOT / "examples" / "gallery" / "client_drift.py"))
        titles = [axis.get_title() for axis in plt.gcf().axes]
    finally:
        plt.close("all")
    assert titles == ["FedAvg: 28% off after 300 rounds", "Scaffold: 0% off after 300 rounds"]
    assert "28 % away" in (ROOT / "docs" / "explanation" / "what-is-scaffold.md").read_text()
