"""Files of measured figures, and how pages of the documentation show them."""

import importlib.util
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks import measured

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def extension() -> Any:
    """The Sphinx extension docs/_ext/measured.py as a module."""
    pytest.importorskip("sphinx")
    specification = importlib.util.spec_from_file_location("measured_ext", ROOT / "docs" / "_ext" / "measured.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    figures = {"stream": {"two_over_one": 1.8375, "clients": 50_000, "nanoseconds": 1234.5}, "engine": "ray"}
    measured.write(tmp_path / "shards.json", figures, command="python -m benchmarks.shards", busy=0.9)
    return tmp_path


def render(extension: Any, folder: Path, source: str) -> str:
    """A line of Markdown as docutils and MyST render it, as text."""
    docutils, myst = (pytest.importorskip(name) for name in ("docutils.core", "myst_parser.docutils_"))
    rst = pytest.importorskip("docutils.parsers.rst")
    rst.roles.register_local_role("measured", extension.MeasuredRole(folder))
    rst.directives.register_directive("measured-from", extension.measured_from(folder))
    rst.directives.register_directive("measured-list", extension.measured_list(folder))
    settings = {"report_level": 5, "halt_level": 5}
    return str(docutils.publish_doctree(source, parser=myst.Parser(), settings_overrides=settings).astext())


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("shards.stream.two_over_one:.2f", "1.84"),
        ("shards.stream.two_over_one", "1.84"),
        ("shards.stream.nanoseconds:,", "1,230"),
        ("shards.stream.clients:,", "50,000"),
        ("shards.engine", "ray"),
    ],
)
def test_a_page_shows_a_figure_by_name(extension: Any, folder: Path, text: str, shown: str) -> None:
    assert render(extension, folder, f"It is {{measured}}`{text}` here.") == f"It is {shown} here."


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("shards.stream.three_over_one", "three_over_one"),
        ("shards.stream.clients.more", "more"),
        ("shards.stream", "shards.stream"),
        ("other.stream", "other"),
        ("shards.engine:.2f", "cannot be written"),
    ],
)
def test_a_figure_that_is_missing_ends_the_build(extension: Any, folder: Path, text: str, named: str) -> None:
    from sphinx.errors import ExtensionError

    with pytest.raises(ExtensionError, match=named):
        extension.show_figure(folder, text)


def test_a_page_says_where_the_figures_come_from(extension: Any, folder: Path) -> None:
    origin = json.loads((folder / "shards.json").read_text())
    shown = render(extension, folder, "```{measured-from} shards\n```\n")
    wanted = f"Measured on {origin['date']} at commit {origin['commit']} on {origin['machine']['cores']} core"
    assert shown.startswith(wanted)
    assert shown.endswith(" with python -m benchmarks.shards. The machine was shared with other programs.")


def test_a_file_says_where_it_comes_from_and_does_not_name_the_machine(folder: Path) -> None:
    import platform

    text = (folder / "shards.json").read_text()
    content = json.loads(text)
    assert list(content) == ["date", "commit", "machine", "command", "quiet", "figures"]
    assert content["quiet"] is False
    assert content["machine"]["cores"] >= 1
    assert {"python", "numpy", "numba"} <= set(content["machine"]["versions"])
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


def test_a_page_lists_figures(extension: Any, folder: Path) -> None:
    shown = render(extension, folder, "```{measured-list} shards.stream\n```")
    assert shown.split() == ["two_over_one:", "1.8375", "clients:", "50000", "nanoseconds:", "1234.5"]
    with pytest.raises(extension.ExtensionError, match="not a list of figures but 'ray'"):
        extension.show_list(folder, "shards.engine")


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
