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

from tests.cli.test_study import NAMED, study
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


@pytest.mark.parametrize(
    ("sums", "take_part", "roster"),
    [
        ("secure", "y", "y"),
        *(pytest.param(*case, marks=pytest.mark.slow)
          for case in (("secure", "y", "n"), ("secure", "n", ""), ("open", "y", "y"))),
    ],
)  # fmt: skip
def test_join_asks_before_anything_has_left(tmp_path: Path, sums: str, take_part: str, roster: str) -> None:
    study("new", tmp_path / "pilot.toml", *NAMED, "--site", "bonn,graz,lyon", "--sums", sums, "--l2", "auto")
    visits(0).to_csv(tmp_path / "visits.csv", index=False)
    answers = [("Does this site take part?", take_part)]
    answers += [("Are they the ones that their people gave you?", roster)] if roster else []
    code, shown = on_terminal(
        tmp_path, ["study", "join", "pilot-bonn.invite", "--data", "visits.csv"], answers, NODE
    )
    assert "Nothing has been sent" in shown
    folder = tmp_path / "pilot-bonn"
    if take_part == "n":
        assert code == 2, shown
        assert "nothing has left this site" in shown
        assert not folder.exists()
        return
    assert re.search(r"graz: SHA256:[A-Za-z0-9+/]{43}", shown)
    if roster == "y":
        assert code == 0, shown
        assert "the study is over" in shown
        assert (folder / "site.html").exists()
        assert (folder / "bonn.log.json").exists()
    else:
        assert code == 3, shown
        assert "rejected: the people of the site did not accept the roster" in shown
        assert "words" not in (folder / "audit.jsonl").read_text()


@pytest.mark.slow
def test_join_rejects_keys_that_people_do_not_know(tmp_path: Path) -> None:
    study("new", tmp_path / "pilot.toml", *NAMED, "--site", "bonn,graz,lyon")
    visits(0).to_csv(tmp_path / "visits.csv", index=False)
    words = ["study", "join", "pilot-bonn.invite", "--data", "visits.csv", "--accept", "auto"]
    code, shown = on_terminal(tmp_path, [*words, "--peer", f"graz=SHA256:{'0' * 43}"], [], NODE)
    assert code == 3, shown
    assert "the key of graz is another than the one that --peer gives" in shown
