"""Published libraries: how their environments are run, the command, and the page that is written about them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.conformance_league import PAGE, kept, page
from fedscaffold.cli.commands import conformance
from fedscaffold.cli.main import app
from fedscaffold.conformance import Report, check, environment
from fedscaffold.conformance.adapters import LIBRARIES
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
    figures = kept()
    assert PAGE.read_text(encoding="utf-8") == page(figures)
    assert set(figures) == set(LIBRARIES)
    for name, library in LIBRARIES.items():
        assert figures[name]["version"] == library.version or (library.repository and figures[name]["version"])
    for found in figures.values():
        assert [row["name"] for row in found["checks"]] == list(CHECKS)


@pytest.mark.slow
def test_a_library_is_installed_in_an_environment_of_its_own(tmp_path: Path) -> None:
    report = environment.check_library("declearn", folder=tmp_path, only=["reaches the optimum"])
    assert report.failures == ()
    again = environment.check_library("declearn", folder=tmp_path, only=["control variates sum to zero"])
    assert again.entries[0].measured == pytest.approx(2 / 3, rel=1e-3)


def test_a_checkout_is_found_before_anything_is_installed(tmp_path: Path) -> None:
    def problem(*arguments: str) -> str:
        result = CliRunner().invoke(app, ["conformance", "--against", *arguments])
        assert result.exit_code == 2
        return " ".join(result.output.split())

    assert "give --source, a checkout of github.com/TsingZ0/PFLlib" in problem("pfllib")
    assert "it has no system" in problem("pfllib", "--source", str(tmp_path))
    assert "leave --source out" in problem("declearn", "--source", str(tmp_path))


def test_the_modules_of_a_checkout_are_imported_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "system").mkdir()
    (tmp_path / "system" / "their_scaffold.py").write_text(
        "from tests.conformance.implementations import TwoSided as Theirs\n"
    )
    stub_environment(monkeypatch, tmp_path, "from their_scaffold import Theirs; return Theirs")
    report = environment.check_library("pfllib", folder=tmp_path, source=tmp_path, only=["lost replies"])
    assert report == check(TwoSided, only=["lost replies"])


PLUGIN = ["-p", "fedscaffold.conformance.pytest_plugin", "-p", "no:cacheprovider", "--noconftest", "-q", "-rs"]


def run_plugin(tmp_path: Path, adapter: str) -> subprocess.CompletedProcess[str]:
    """Run pytest with the plugin in an empty folder."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    paths = os.pathsep.join(str(Path.cwd() / folder) for folder in ("src", "."))
    settings = {**os.environ, "PYTHONPATH": paths, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", *PLUGIN, "--scaffold-conformance", adapter, str(tmp_path)]
    return subprocess.run(command, cwd=tmp_path, env=settings, capture_output=True, text=True, check=False)


def test_the_plugin_runs_every_check_as_a_test(tmp_path: Path) -> None:
    done = run_plugin(tmp_path, OWN)
    report = check(TwoSided)
    assert done.returncode == 0, done.stdout
    assert f"{report.count('passed')} passed" in done.stdout
    assert len(CHECKS) == report.count("passed") + report.count("not supported")


def test_the_plugin_fails_with_the_entry_of_the_report(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from tests.conformance.implementations import TwoSided\n"
        "class Wrong(TwoSided):\n"
        "    def correction(self, client):\n"
        "        return -super().correction(client)\n"
    )
    done = run_plugin(tmp_path, "mine:Wrong")
    assert done.returncode == 1
    assert "the sign is wrong" in " ".join(done.stdout.split())


def test_the_plugin_names_an_adapter_that_cannot_be_imported(tmp_path: Path) -> None:
    done = run_plugin(tmp_path, "mine:Missing")
    assert done.returncode == 4
    assert "give module:adapter" in done.stderr + done.stdout
