"""`fedscaffold verify`: exit codes, files and the table."""

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console
from typer.testing import CliRunner

from fedscaffold.cli.commands.verify import show
from fedscaffold.cli.main import app
from fedscaffold.paper import verify as experiment
from fedscaffold.paper.verify.rows import Printed, StatementRow
from fedscaffold.theory.bounds import Condition

runner = CliRunner()
GOOD = StatementRow(
    statement="Lemma 5.1",
    claim="Cov(θ, ξ_c) = (γ/N){−𝐀C̄(∇²f_c−∇²f) + C_c − C̄}",
    setting="ridge, γ = 0.003, H = 2, B = 4, N = 3",
    relation="≈",
    predicted=3.3e-4,
    measured=3.3e-4,
    standard_error=4e-6,
    tolerance=0.05,
    difference=4e-6,
    printed=Printed("(γ/N){+𝐀C̄(∇²f_c−∇²f) + C_c − C̄}", 5e-4, 2.7e-4),
)
BAD = StatementRow(statement="A1", claim="μ", setting="[ridge]", relation="≥", predicted=2.0, measured=1.0)
OUTSIDE = StatementRow(
    statement="Lemma 5.1",
    claim="x",
    setting="the paper's",
    relation="≤",
    predicted=1.0,
    measured=2.0,
    conditions=(Condition("γH(L + μ) ≤ 1/48", 12.0, 1 / 48),),
)


def pretend(monkeypatch: pytest.MonkeyPatch, rows: list[StatementRow]) -> list[experiment.Budget]:
    asked: list[experiment.Budget] = []

    def verify(budget: experiment.Budget, *, advance: Any) -> list[StatementRow]:
        asked.append(budget)
        advance(1, 1)
        return rows

    monkeypatch.setattr(experiment, "verify", verify)
    return asked


def test_all_well(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = pretend(monkeypatch, [GOOD, OUTSIDE])
    out = tmp_path / "new" / "folder"
    result = runner.invoke(app, ["verify", "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert asked == [experiment.DEFAULT]
    assert "printed: fails" in result.output
    assert "none fails" in result.output
    assert {file.name for file in out.iterdir()} == {"verify.md", "verify.json"}
    assert "printed: fails" in (out / "verify.md").read_text()
    written = json.loads((out / "verify.json").read_text())
    assert [row["verdict"] for row in written["rows"]] == ["holds", "not claimed"]
    assert written["rows"][0]["printed_verdict"] == "fails"
    assert written["provenance"]["full"] is False


@pytest.mark.parametrize("bad", [BAD, StatementRow(**{**vars(GOOD), "standard_error": 1e-4})])
def test_a_failed_row_ends_with_1(monkeypatch: pytest.MonkeyPatch, bad: StatementRow) -> None:
    pretend(monkeypatch, [GOOD, bad])
    result = runner.invoke(app, ["verify"])
    assert result.exit_code == 1
    assert "1 fails" in result.output


def test_a_statement_that_is_never_inside_its_conditions_ends_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, [OUTSIDE])
    assert runner.invoke(app, ["verify"]).exit_code == 1


def test_full(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = pretend(monkeypatch, [GOOD])
    assert runner.invoke(app, ["verify", "--full"]).exit_code == 0
    assert asked == [experiment.FULL]


def test_a_folder_that_cannot_be_made_is_refused_before_work(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = pretend(monkeypatch, [GOOD])
    (tmp_path / "file").write_text("")
    result = runner.invoke(app, ["verify", "--out", str(tmp_path / "file" / "sub")])
    assert result.exit_code == 2
    assert "cannot make a folder" in result.output
    assert asked == []


def test_the_table_at_80_columns() -> None:
    console = Console(width=80, record=True, file=StringIO())
    show([GOOD, BAD, OUTSIDE], console)
    text = console.export_text()
    assert max(map(cell_len, text.split("FAILS")[0].splitlines())) <= 80
    for words in ("Lemma 5.1", "[ridge]", "measured 0.00033 ± 4e-06", "missed 576 times"):
        assert words in text
