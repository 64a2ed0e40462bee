"""Axes, style and saving of figures."""

import sys
from pathlib import Path

import matplotlib as mpl
import pytest
from matplotlib.figure import Figure

from fedscaffold import InvalidInput, MissingDependency
from fedscaffold.core import display


def test_given_axes_are_used_and_new_ones_have_the_asked_size() -> None:
    own = Figure().subplots()
    assert display.new_axes(own) is own
    made = display.new_axes(width=3.0, height=2.0)
    assert made is not own
    assert made.get_figure().get_size_inches().tolist() == [3.0, 2.0]  # type: ignore[union-attr]


def test_the_style_ends_with_its_context() -> None:
    before = mpl.rcParams["svg.fonttype"]
    with display.style():
        assert mpl.rcParams["svg.fonttype"] == "none"
    assert mpl.rcParams["svg.fonttype"] == before


@pytest.mark.parametrize(("name", "start"), [("a.png", b"\x89PNG"), ("a.svg", b"<?xml"), ("a.PDF", b"%PDF")])
def test_save_writes_the_format_of_the_file_name(tmp_path: Path, name: str, start: bytes) -> None:
    figure = Figure()
    figure.subplots().set_title("kept as text")
    display.save(figure, tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(start)
    if name.endswith("svg"):
        assert "kept as text" in (tmp_path / name).read_text()
    assert [file.name for file in tmp_path.iterdir()] == [name]


def test_other_formats_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"pdf, png, svg; .*a.xyz"):
        display.save(Figure(), tmp_path / "a.xyz")
    assert not list(tmp_path.iterdir())


def test_without_matplotlib_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(MissingDependency, match=r"pip install 'fedscaffold\[reproduce\]'"):
        display.load_matplotlib()
