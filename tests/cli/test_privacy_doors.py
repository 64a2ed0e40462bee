"""Wrong privacy budgets and too few sites on the command line: all problems at once, nothing written."""

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fedscaffold.cli.main import app


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    rng = np.random.default_rng(0)
    for site in "abc":
        lines = [f"{rng.normal(50, 10):.1f},{'yes' if rng.random() < 0.5 else 'no'},{site}" for _ in range(40)]
        (tmp_path / f"{site}.csv").write_text("\n".join(["age,ill,site", *lines]) + "\n")
    (tmp_path / "bounds.toml").write_text('age = [0, 120]\nill = ["no", "yes"]\n')
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(folder: Path, *arguments: str) -> str:
    before = sorted(folder.iterdir())
    found = CliRunner().invoke(app, list(arguments))
    assert found.exit_code == 2, found.output
    assert sorted(folder.iterdir()) == before
    return " ".join(found.output.split())


BUDGET = ("--epsilon", "0", "--set", "delta=2", "--set", "clip=-1")
COLUMNS = ("--set", 'columns={age = {range = [0, 120]}, ill = {levels = ["no", "yes"]}}')


@pytest.mark.parametrize("command", [
    ("fit", "a.csv", "--target", "ill", "--client", "site", "--out", "out", "--bounds", "bounds.toml"),
    ("study", "new", "new.toml", "--target", "ill", "--site", "a,b,c", "--like", "a.csv", *COLUMNS),
    ("federate", "a.csv", "b.csv", "c.csv", "--target", "ill", "--out", "out", *COLUMNS),
])  # fmt: skip
def test_all_problems_of_a_budget_at_once(command: tuple[str, ...], folder: Path) -> None:
    told = refused(folder, *command, *BUDGET)
    for flag in ("--epsilon", "delta", "clip"):
        assert f"{flag} must be" in told


@pytest.mark.parametrize("command", [
    ("study", "new", "new.toml", "--target", "ill", "--site", "a,b", "--like", "a.csv"),
    ("federate", "a.csv", "b.csv", "--target", "ill", "--out", "out"),
])  # fmt: skip
def test_two_sites_have_no_secure_sums(command: tuple[str, ...], folder: Path) -> None:
    assert "secure sums need three sites" in refused(folder, *command)
