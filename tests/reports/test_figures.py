"""Figures: their files, and the numbers and words in them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedscaffold.reports import figures
from fedscaffold.reports.figures import CurvePanel, PlateauSeries, draw_curves, draw_plateaus


def test_curves(tmp_path: Path) -> None:
    cost = np.arange(40.0)
    line = cost, np.exp(-cost / 10) * np.array([[1.0], [1.3]])
    panel = CurvePanel(
        title="N = 8", x="vectors per client", lines={"one": line, "two": line}, levels=(0.1,), log_x=True
    )
    other = CurvePanel(title="N = 8", lines={"three": line}, spread=False)
    for name, rows in (("same", [[panel, panel]]), ("different", [[panel, other]])):
        file = tmp_path / f"{name}.svg"
        draw_curves(rows, [file, file.with_suffix(".png")])
        svg = file.read_text()
        for text in ("N = 8", "vectors per client", "one", "two"):
            assert text in svg
        assert file.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "same.svg").read_text().count(">one<") == 1  # one legend for all panels
    assert ">three<" in (tmp_path / "different.svg").read_text()


def test_values_that_are_not_positive_have_a_linear_scale() -> None:
    line = np.arange(3.0), np.array([[1.0, 0.0, -1.0]])
    axes = figures.draw_panel(CurvePanel(title="", lines={"one": line}, y="loss"))
    assert (axes.get_yscale(), axes.get_ylabel()) == ("linear", "loss")


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Figures instead of files."""
    found: list[Any] = []
    monkeypatch.setattr(figures, "save", lambda figure, file: found.append(figure))
    return found


def series(factor: float = 1.0, **more: Any) -> PlateauSeries:
    x = np.array([10.0, 100.0, 1000.0])
    usual = {"plateau": factor / x, "error": 0.1 * factor / x, "predicted": np.full(3, np.nan)}
    return PlateauSeries(**{"x": x, "stationary": np.full(3, True), **usual, **more})


def test_saturations_that_were_reached_are_in_the_legend(tmp_path: Path) -> None:
    flat = series(predicted=np.ones(3), saturation=(103.0, 98.0))
    draw_plateaus({"one": {"A": series()}, "two": {"B": flat}}, [tmp_path / "a.svg"])
    svg = (tmp_path / "a.svg").read_text()
    for text in ("one", "two", "A", "saturation: N = 103 measured, 98 predicted", "number of clients N"):
        assert text in svg
    assert svg.count("saturation") == 1
    assert svg.count(">predicted<") == 1


def test_bars_are_two_standard_errors_and_do_not_reach_zero(drawn: list[Any]) -> None:
    wide = series(plateau=np.array([1.0, 0.1, 0.1]), error=np.array([0.1, 0.06, 0.01]))
    draw_plateaus({"one": {"A": wide}}, [Path("a.svg")])
    (bars,) = drawn[0].axes[0].containers[0].lines[2]
    ends = np.array(bars.get_segments())[:, :, 1]
    np.testing.assert_allclose(ends, [[0.8, 1.2], [0.01, 0.22], [0.08, 0.12]], rtol=1e-12)


def test_eight_settings_can_be_told_apart(drawn: list[Any]) -> None:
    """Eight different pairs of colour and marker, and a legend beside the axes, inside the figure."""
    moving = series(9.0, stationary=np.array([True, True, False]))
    lines = {f"γ=0.0{k} H=10 B=10": series(float(k)) for k in range(1, 8)} | {"γ=0.09 H=10 B=10": moving}
    draw_plateaus({"one": lines}, [Path("a.png")])
    figure = drawn[0]
    figure.draw_without_rendering()
    axes = figure.axes[0]
    named = [line for line in axes.get_lines() if line.get_label() in lines]
    assert len({(line.get_color(), line.get_marker()) for line in named}) == 8
    legend = axes.get_legend()
    assert [text.get_text() for text in legend.get_texts()] == [*lines, "still moving"]
    box, inside = legend.get_window_extent(), axes.get_window_extent()
    assert box.x0 >= inside.x1
    assert box.x1 <= figure.bbox.x1
    assert box.y0 >= figure.bbox.y0
