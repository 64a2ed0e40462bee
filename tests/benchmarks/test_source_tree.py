"""The measures of the source tree and of the start count what they say."""

from pathlib import Path

import pytest

from benchmarks import source_tree, startup
from fedscaffold.core import checks


def test_lines_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one folder of the package, whose folders take the place of the rooms: all of it takes seconds."""
    monkeypatch.setattr(source_tree, "SOURCE", source_tree.SOURCE / "core")
    found = source_tree.lines_of_rooms()
    assert set(found) >= {"all", "front", "random"}
    rooms = [counts for room, counts in found.items() if room != "all"]
    for name, total in found["all"].items():
        assert sum(counts[name] for counts in rooms) == total
    lines = sum(len(file.read_text().splitlines()) for file in (source_tree.SOURCE / "random").rglob("*.py"))
    assert found["random"]["lines"] == lines


def test_code_is_what_is_neither_blank_nor_comment_nor_docstring() -> None:
    module = '"""A module.\n\nOf two lines."""\n\n# A comment.\nx = """\n\n"""  # a string\n'
    source = module + '\n\ndef f():\n    """None."""\n'
    assert source_tree.code_lines(source) == 4


def test_files_per_folder_are_those_of_the_disk() -> None:
    found = source_tree.files_per_folder()
    assert found["methods"] == len(list((source_tree.SOURCE / "methods").glob("[!_]*.py")))
    assert sum(found.values()) == len([f for f in source_tree.SOURCE.rglob("*.py") if f.name != "__init__.py"])


def test_a_call_into_another_file_is_a_hop() -> None:
    one = source_tree.hops(lambda: checks.whole_number("rounds", 3, least=1))
    assert one["files"] == 1
    assert one["calls_between_files"] == 0
    assert one["calls"] >= 1


def test_a_run_touches_several_files(tmp_path: Path) -> None:
    found = source_tree.hops(source_tree.cases(tmp_path)["run"])
    assert found["files"] > 5
    assert found["files"] <= found["calls_between_files"] + 1 <= found["calls"]


def test_a_python_process_takes_time() -> None:
    seconds, processor = startup.process(["-c", "sum(range(10**6))"])
    assert seconds > 0.0
    assert processor > 0.0
