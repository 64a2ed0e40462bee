"""The figure's file, and the numbers that it shows."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedscaffold.reports import layout
from fedscaffold.reports.plateaus import PlateauSeries, draw


def test_svg(tmp_path: Path) -> None:
    clients = np.array([10.0, 100.0, 1000.0])
    falling = PlateauSeries(clients=clients, plateau=1 / clients, error=1 / clients, predicted=np.full(3, np.nan))
    flat = PlateauSeries(
        clients=clients, plateau=1 / clients + 0.01, error=0.1 / clients, predicted=1 / clients + 0.01,
        saturation=(103.0, 98.0),
    )  # fmt: skip
    file = tmp_path / "a.svg"
    draw({"one": {"A": falling}, "two": {"B": flat}}, [file])
    svg = file.read_text()
    for text in ("one", "two", "A, measured", "B, predicted", "measured: N = 103", "predicted: N = 98"):
        assert text in svg
    assert "A, predicted" not in svg
    assert len(list(tmp_path.iterdir())) == 1


def test_bars_are_two_standard_errors_and_do_not_reach_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    figures: list[Any] = []
    monkeypatch.setattr(layout, "save", lambda figure, file: figures.append(figure))
    clients, plateau, error = np.array([10.0, 100.0]), np.array([1.0, 0.1]), np.array([0.1, 0.06])
    series = PlateauSeries(clients=clients, plateau=plateau, error=error, predicted=np.full(2, np.nan))
    draw({"one": {"A": series}}, [Path("a.svg")])
    (bars,) = figures[0].axes[0].containers[0].lines[2]
    ends = np.array(bars.get_segments())[:, :, 1]
    np.testing.assert_allclose(ends, [[0.8, 1.2], [0.01, 0.22]], rtol=1e-12)
