"""The examples run and print what their pages say."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_hospitals(tmp_path: Path) -> None:
    folder = ROOT / "examples" / "hospitals"
    done = subprocess.run(
        [sys.executable, folder / "hospitals.py"], cwd=tmp_path, env={**os.environ, "COLUMNS": "80"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    shown = (folder / "README.md").read_text().split("```text\n")[1].split("```")[0]
    assert [line.rstrip() for line in done.stdout.splitlines()] == shown.splitlines()
    assert (tmp_path / "hospitals" / "model" / "report.html").is_file()
