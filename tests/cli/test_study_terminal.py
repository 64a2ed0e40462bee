"""What `fedscaffold study` asks on a terminal: a real one, by way of a pseudo-terminal."""

import os
import pty
import re
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedscaffold.flower.study.study_file import StudyFile
from tests.cli.test_study import study
from tests.flower.study.studies import visits

ROOT = Path(__file__).parents[2]
MAIN = ("-c", "from fedscaffold.cli.start import main; main()")
NODE = ("-m", "tests.cli.terminal_node")


def on_terminal(
    folder: Path, words: list[str], answers: list[tuple[str, str]], program: tuple[str, ...] = MAIN
) -> tuple[int, str]:
    """Run a command on a terminal and answer each question when it is asked; exit code and what was shown."""
    master, slave = pty.openpty()
    environment = {**os.environ, "COLUMNS": "200", "TERM": "dumb", "STUDY_FILE": str(folder / "pilot.toml")}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    process = subprocess.Popen(
        [sys.executable, *program, *words], stdin=slave, stdout=slave, stderr=slave, cwd=folder, env=environment
    )
    os.close(slave)
    shown, waiting, end = "", list(answers), time.monotonic() + 120.0
    while time.monotonic() < end:
        if select.select([master], [], [], 0.2)[0]:
            try:
                shown += os.read(master, 4096).decode(errors="replace")
            except OSError:  # the terminal's other side is closed
                break
        if waiting and waiting[0][0] in shown:
            os.write(master, f"{waiting.pop(0)[1]}\n".encode())
        elif process.poll() is not None:
            break
    os.close(master)
    assert not waiting, shown
    return process.wait(30.0), shown


def test_new_asks_for_what_is_missing(tmp_path: Path) -> None:
    answers = [
        ("Which column is to be predicted?", "ill"),
        ("Names of the sites", "bonn, graz"),
        ("HOST:PORT", ""),
    ]
    code, shown = on_terminal(tmp_path, ["study", "new", "pilot.toml"], answers)
    assert code == 0, shown
    found = StudyFile.load(tmp_path / "pilot.toml")
    assert (found.settings.target, found.sites, found.address) == ("ill", ("bonn", "graz"), "127.0.0.1:9092")
    assert (tmp_path / "graz.invite").exists()


@pytest.mark.parametrize(
    ("secure", "yes"),
    [(True, True), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((True, False), (False, True)))],
)
def test_join_asks_before_it_takes_part(tmp_path: Path, secure: bool, yes: bool) -> None:
    file = tmp_path / "pilot.toml"
    more = ["--secure"] if secure else []
    study("new", file, "--target", "ill", "--site", "bonn,graz,lyon", "--set", "evaluate=0", *more)
    visits(0).to_csv(tmp_path / "visits.csv", index=False)
    answers = [("Are they the ones that their people gave you?", "y")] if secure else []
    answers.append(("Does this site take part?", "y" if yes else "n"))
    words = ["study", "join", "bonn.invite", "--data", "visits.csv"]
    code, shown = on_terminal(tmp_path, words, answers, NODE)
    assert "ward: categories north, south" in shown
    assert "to predict ill: no, yes" in shown
    if secure:
        assert re.search(r"graz: ([0-9a-f]{4} ){7}[0-9a-f]{4}", shown)
    if yes:
        assert code == 0, shown
        assert "the study is over" in shown
    else:
        assert code == 3, shown
        assert "the agreement was not accepted by bonn" in shown


@pytest.mark.slow
def test_join_refuses_keys_that_people_do_not_know(tmp_path: Path) -> None:
    study("new", tmp_path / "pilot.toml", "--target", "ill", "--site", "bonn,graz,lyon", "--secure")
    visits(0).to_csv(tmp_path / "visits.csv", index=False)
    words = ["study", "join", "bonn.invite", "--data", "visits.csv"]
    code, shown = on_terminal(tmp_path, words, [("Are they the ones that their people gave you?", "n")], NODE)
    assert code == 3, shown
    assert "keys were not accepted by bonn" in shown
    known = ["--accept", "auto", "--peer", f"graz={'0' * 32}", "--peer", f"lyon={'1' * 32}"]
    code, shown = on_terminal(tmp_path, [*words, *known], [], NODE)
    assert code == 3, shown
    assert "keys were not accepted by bonn" in shown


def test_fingerprints_that_are_none_are_refused(tmp_path: Path) -> None:
    study("new", tmp_path / "pilot.toml", "--target", "ill", "--site", "bonn,graz,lyon", "--secure")
    study("new", tmp_path / "open.toml", "--target", "ill", "--site", "kiel,linz")
    visits(0).to_csv(tmp_path / "visits.csv", index=False)
    data = ("--data", tmp_path / "visits.csv", "--peer")
    assert "32 hexadecimal digits" in study("join", tmp_path / "bonn.invite", *data, "graz=12", code=2)
    assert "which this one is not" in study("join", tmp_path / "kiel.invite", *data, f"linz={'0' * 32}", code=2)
    few = ("new", tmp_path / "few.toml", "--target", "ill", "--site", "a,b,c,d")
    assert "more than half" in study(*few, "--secure", "--set", "secure_threshold=2", code=2)
    assert "secure_threshold requires --secure" in study(*few, "--set", "secure_threshold=3", code=2)
