"""Published libraries: how their environments are run, the command, and the page that is written about them."""

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.conformance_league import PAGE, kept, page
from fedscaffold.cli.commands import conformance
from fedscaffold.cli.main import app
from fedscaffold.conformance import Report, check
from fedscaffold.conformance.adapters import LIBRARIES, environment
from fedscaffold.conformance.checks import CHECKS
from tests.conformance.implementations import OneVariate, TwoSided

OWN = "tests.conformance.implementations:TwoSided"


def test_a_report_comes_back_from_plain_data() -> None:
    report = check(OneVariate, only=["reaches the optimum"])
    assert Report.from_dict(json.loads(json.dumps(report.to_dict()))) == report


def stub_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, adapter: str) -> None:
    """An environment whose Python runs our program with an adapter of the tests."""
    python = tmp_path / "python"
    python.write_text(
        f"#!{sys.executable}\n"
        "import sys\n"
        f"sys.path[:0] = {[str(Path.cwd()), str(Path.cwd() / 'src')]!r}\n"
        "import fedscaffold.conformance.adapters.__main__ as program\n"
        f"def adapter(name):\n    {adapter}\n"
        "program.adapter = adapter\n"
        "program.main(sys.argv[3:])\n"
    )
    python.chmod(0o755)
    monkeypatch.setattr(environment, "make_environment", lambda name, folder: python)


def test_a_library_is_checked_in_another_process_and_may_print(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stub_environment(
        monkeypatch, tmp_path,
        "from tests.conformance.implementations import TwoSided; print('{not a report'); return TwoSided",
    )  # fmt: skip
    report = environment.check_library("declearn", folder=tmp_path, only=["lost replies"])
    assert report == check(TwoSided, only=["lost replies"])


def test_a_library_that_does_not_run_is_one_message(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stub_environment(monkeypatch, tmp_path, "raise ImportError('no wheel for this Python')")
    monkeypatch.setattr(conformance, "default_folder", lambda: tmp_path)
    result = CliRunner().invoke(app, ["conformance", "--against", "declearn"])
    assert result.exit_code == 2
    assert "declearn could not be run" in result.output
    assert "no wheel for this Python" in result.output


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([OWN, "--only", "lost replies"], 0, "1 passed, 0 failed"),
        ([OWN.replace("TwoSided", "Broken")], 2, "has no attribute 'Broken'"),
        (["my_scaffold"], 2, "an implementation is given as module:Class, got 'my_scaffold'"),
        (["no_such_module:X"], 2, "No module named 'no_such_module'"),
        ([], 2, "give either module:Class of your own or --against a library"),
        ([OWN, "--against", "declearn"], 2, "give either"),
        (["--against", "flower"], 2, "--against must be one of 'declearn'"),
        (["--against", "declearn", "--only", "speed"], 2, "--only must be one of 'reaches the optimum'"),
        ([OWN, "--tolerance", "0.5"], 2, "--tolerance must be at most 0.001"),
    ],
)
def test_the_command(arguments: list[str], code: int, words: str) -> None:
    result = CliRunner().invoke(app, ["conformance", *arguments])
    assert result.exit_code == code, result.output
    assert words in result.output.replace("\n", " ")


def test_the_page_is_what_the_figures_say_of_every_library_at_its_version() -> None:
    figures = kept()["figures"]
    assert PAGE.read_text(encoding="utf-8") == page(**kept())
    assert {name: found["version"] for name, found in figures.items()} == {
        name: library.version for name, library in LIBRARIES.items()
    }
    for found in figures.values():
        assert [row["name"] for row in found["checks"]] == list(CHECKS)


@pytest.mark.slow
def test_a_library_is_installed_in_an_environment_of_its_own(tmp_path: Path) -> None:
    report = environment.check_library("declearn", folder=tmp_path, only=["reaches the optimum"])
    assert report.failures == ()
    again = environment.check_library("declearn", folder=tmp_path, only=["control variates sum to zero"])
    assert again.entries[0].measured == pytest.approx(2 / 3, rel=1e-3)
