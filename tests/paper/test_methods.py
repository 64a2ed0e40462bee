"""The figures of the methods' documentation."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks import method_figures
from fedscaffold.cli.main import app
from fedscaffold.paper import methods

ROOT = Path(__file__).parents[2]
runner = CliRunner()


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the two quickest figures; `make test-slow` draws them all."""
    quick = {name: methods.FIGURES[name] for name in ("fedlin", "fedavg")}
    monkeypatch.setattr(methods, "FIGURES", quick)
    result = runner.invoke(app, ["reproduce", "methods", "--out", str(tmp_path / "new")])
    assert result.exit_code == 0, result.output
    assert {file.name for file in (tmp_path / "new").iterdir()} == {"fedlin.png", "fedavg.png"}


@pytest.mark.slow
def test_all_figures(tmp_path: Path) -> None:
    methods.draw(tmp_path)
    assert {file.stem for file in tmp_path.iterdir()} == set(methods.FIGURES)


def test_every_figure_is_in_the_documentation() -> None:
    pages = "".join(page.read_text() for page in (ROOT / "docs" / "explanation" / "methods").glob("*.md"))
    for name in (*methods.FIGURES, *method_figures.FIGURES):
        assert f"images/methods/{name}.png" in pages


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = runner.invoke(app, ["reproduce", "methods", "--out", str(tmp_path / "file" / "sub")])
    assert result.exit_code == 2
    assert "cannot make a folder" in result.output
