"""Files of measured figures, and how pages of the documentation show them."""

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks import measured, pages

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    figures = {"stream": {"two_over_one": 1.8375, "clients": 50_000, "nanoseconds": 1234.5}, "engine": "ray"}
    measured.write(tmp_path / "shards.json", figures, command="python -m benchmarks.shards", busy=0.9)
    return tmp_path


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("shards.stream.two_over_one:.2f", "1.84"),
        ("shards.stream.two_over_one", "1.84"),
        ("shards.stream.nanoseconds:,", "1,230"),
        ("shards.stream.clients:,", "50,000"),
        ("shards.engine", "ray"),
    ],
)
def test_a_figure_is_written_behind_its_label(folder: Path, address: str, shown: str) -> None:
    block = f"\n<!-- figures, written by `python -m benchmarks.pages`\n1 = {address}\n-->\n"
    page = f"| (old<!--1--> s) | [12.5<!--1-->, 3] |\n{block}"
    assert pages.updated(page, folder) == f"| ({shown}<!--1--> s) | [{shown}<!--1-->, 3] |\n{block}"


@pytest.mark.parametrize(
    ("address", "named"),
    [
        ("shards.stream.three_over_one", "three_over_one"),
        ("shards.stream.clients.more", "more"),
        ("shards.stream", "shards.stream"),
        ("other.stream", "other"),
    ],
)
def test_a_figure_that_is_missing_is_named(folder: Path, address: str, named: str) -> None:
    with pytest.raises(KeyError, match=named):
        pages.figure(address, folder)


def test_labels_and_addresses_must_match(folder: Path) -> None:
    with pytest.raises(KeyError, match="labels without an address"):
        pages.updated("It takes 3<!--1--> s.\n", folder)


def test_a_page_says_where_the_figures_come_from(folder: Path) -> None:
    origin = json.loads((folder / "shards.json").read_text())
    shown = pages.updated("old<!--from shards-->\n", folder)
    wanted = f"Measured on {origin['date']} at commit {origin['commit']} on {origin['machine']['cores']} core"
    assert shown.startswith(wanted)
    assert shown.endswith(
        " with `python -m benchmarks.shards`. The machine was shared with other programs.<!--from shards-->\n"
    )


def test_pages_of_the_documentation_are_up_to_date() -> None:
    """`python -m benchmarks.pages` writes the figures of docs/measured into the pages."""
    assert list(pages.stale()) == []
    assert not any("{measured}" in path.read_text() for path in (ROOT / "docs").rglob("*.md"))


def test_a_file_says_where_it_comes_from_and_does_not_name_the_machine(folder: Path) -> None:
    import platform

    text = (folder / "shards.json").read_text()
    content = json.loads(text)
    assert list(content) == ["date", "commit", "machine", "command", "quiet", "figures"]
    assert content["quiet"] is False
    assert content["machine"]["cores"] >= 1
    assert {"python", "numpy", "scipy"} <= set(content["machine"]["versions"])
    assert platform.node() not in text
    assert str(Path.home()) not in text


@pytest.mark.parametrize("name", ["a.b", "a:b", "two words", ""])
def test_names_that_no_page_could_write_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="cannot be the name of a figure"):
        measured.write(tmp_path / "x.json", {"inside": {name: 1.0}})


def test_the_command_is_the_one_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    script = str(ROOT / "benchmarks" / "source_tree.py")
    monkeypatch.setattr(sys, "argv", [script, "--out", "x.json", "--quick"])
    assert measured.command_line() == "python -m benchmarks.source_tree --quick"


@pytest.mark.parametrize("path", sorted(measured.FOLDER.glob("*.json")), ids=lambda path: path.stem)
def test_every_file_of_the_documentation_has_an_origin(path: Path) -> None:
    content = measured.read(path)
    assert {"date", "commit", "machine", "command", "quiet", "figures"} <= set(content)
    if content.get("carried_over"):
        assert content["source"]  # the page that stated the figures; it may not say on how many cores
    else:
        assert content["machine"]["cores"] >= 1
    measured.check_names(content["figures"])


def test_a_page_lists_figures(folder: Path) -> None:
    shown = pages.updated("<!--list shards.stream-->\nold\n<!--end-->\n", folder)
    lines = ["- **two_over_one**: 1.8375", "- **clients**: 50000", "- **nanoseconds**: 1234.5"]
    assert shown.splitlines()[1:-1] == lines
    with pytest.raises(KeyError, match="not a mapping but 'ray'"):
        pages.listing("shards.engine", folder)


def test_rows_that_were_kept_are_not_measured_again(tmp_path: Path) -> None:
    path, made = tmp_path / "folder" / "rows.jsonl", []

    def make(seed: int) -> dict[str, Any]:
        made.append(seed)
        return {"kind": "ridge", "seed": seed, "value": 0.5 * seed}

    rows = measured.KeptRows(path, ("kind", "seed"))
    assert [rows.row(("ridge", seed), partial(make, seed))["value"] for seed in (3, 4)] == [1.5, 2.0]
    again = measured.KeptRows(path, ("kind", "seed"))
    assert [again.row(("ridge", seed), partial(make, seed))["value"] for seed in (3, 4, 5)] == [1.5, 2.0, 2.5]
    assert made == [3, 4, 5]
