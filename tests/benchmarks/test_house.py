"""The measures of the source tree and of the start count what they say."""

from pathlib import Path

from benchmarks import house, startup
from fedscaffold.core import checks


def test_lines_add_up() -> None:
    found = house.lines_of_rooms()
    rooms = [counts for room, counts in found.items() if room != "all"]
    for name, total in found["all"].items():
        assert sum(counts[name] for counts in rooms) == total
    core = sum(len(file.read_text().splitlines()) for file in (house.SOURCE / "core").rglob("*.py"))
    assert found["core"]["lines"] == core


def test_files_per_folder_are_those_of_the_disk() -> None:
    found = house.files_per_folder()
    assert found["methods"] == len(list((house.SOURCE / "methods").glob("[!_]*.py")))
    assert sum(found.values()) == len([f for f in house.SOURCE.rglob("*.py") if f.name != "__init__.py"])


def test_a_call_into_another_file_is_a_hop() -> None:
    one = house.hops(lambda: checks.whole_number("rounds", 3, least=1))
    assert one["files"] == 1
    assert one["calls_between_files"] == 0
    assert one["calls"] >= 1


def test_a_run_touches_several_files(tmp_path: Path) -> None:
    found = house.hops(house.cases(tmp_path)["run"])
    assert found["files"] > 5
    assert found["files"] <= found["calls_between_files"] + 1 <= found["calls"]


def test_a_python_process_takes_time() -> None:
    seconds, processor = startup.process(["-c", "sum(range(10**6))"])
    assert seconds > 0.0
    assert processor > 0.0
