"""`fedscaffold reproduce figure1`, small."""

import json
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from fedscaffold.cli.main import app

runner = CliRunner()


def test_a_small_figure(tmp_path: Path) -> None:
    out = tmp_path / "new" / "folder"
    result = runner.invoke(app, ["reproduce", "figure1", "--clients", "10,50,200", "--out", str(out)])
    assert result.exit_code == 0, result.output
    names = {file.name for file in out.iterdir()}
    tables = {"figure1.parquet", "figure1.csv", "claims.json", "claims.md"}
    assert names == {"figure1.png", "figure1.svg", *tables}
    frame = pd.read_parquet(out / "figure1.parquet")
    assert len(frame) == 2 * 3 * 2 * 3 * 101  # problems, N, methods, runs, rounds
    pd.testing.assert_frame_equal(frame, pd.read_csv(out / "figure1.csv"), check_dtype=False)
    found = json.loads((out / "claims.json").read_text())["claims"]
    assert [claim["holds"] for claim in found] == [True, None, True, None, True, None]
    late = frame[frame["round"] > 75].groupby(["kind", "n_clients", "method"])["mse"].mean()
    for kind in ("regression", "classification"):
        for n_clients in (10, 50, 200):
            assert late[kind, n_clients, "Scaffold"] < late[kind, n_clients, "FedAvg"]


def test_draws_and_the_other_reading(tmp_path: Path) -> None:
    """The help's example with seed 7, small: no claim about one draw of the data ends with exit code 1."""
    options = ["--clients", "10,20", "--runs", "1", "--seed", "7", "--seeds", "3", "--informative", "default"]
    result = runner.invoke(app, ["reproduce", "figure1", *options, "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    drawn = pd.read_csv(tmp_path / "draws.csv")
    assert drawn["seed"].tolist() == [7, 8, 9] * 2
    content = json.loads((tmp_path / "claims.json").read_text())
    assert content["settings"]["informative"] == [2, 2]
    assert "of 3 draws" in content["claims"][1]["measured"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--clients", "10,x"], "whole numbers with commas"),
        (["--clients", "9"], "even"),
        (["--clients", "10,10"], "different numbers"),
        (["--runs", "0"], "runs must be"),
        (["--seed", "-1"], "seed must be"),
        (["--l2", "-1"], "l2 must be"),
        (["--seeds", "0"], "seeds must be"),
        (["--informative", "2"], "--informative takes two numbers"),
        (["--informative", "2,x"], "whole numbers with commas"),
        (["--informative", "2,30"], "informative must be"),
    ],
)
def test_bad_input(tmp_path: Path, options: list[str], message: str) -> None:
    result = runner.invoke(app, ["reproduce", "figure1", *options, "--out", str(tmp_path / "out")])
    assert result.exit_code == 2
    assert message in result.output
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = runner.invoke(app, ["reproduce", "figure1", "--out", str(tmp_path / "file" / "sub")])
    assert result.exit_code == 2
    assert "cannot make a folder" in result.output
