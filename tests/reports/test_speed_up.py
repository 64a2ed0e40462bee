"""The figure's file, and the numbers that it shows."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedscaffold.reports import layout
from fedscaffold.reports.speed_up import draw


def test_svg(tmp_path: Path) -> None:
    clients = np.array([10.0, 100.0, 1000.0])
    lines = {"ScaffLSA": np.stack([clients, 1 / clients, 0.1 / clients]), "FedAvg": np.stack([clients] * 3)}
    file = tmp_path / "a.svg"
    draw({"one": lines, "two": lines}, [file], falling="ScaffLSA")
    svg = file.read_text()
    for text in ("one", "two", "ScaffLSA", "FedAvg", "1/N", "number of clients N"):
        assert text in svg
    assert len(list(tmp_path.iterdir())) == 1


def test_the_dashed_line_falls_as_one_over_n(monkeypatch: pytest.MonkeyPatch) -> None:
    figures: list[Any] = []
    monkeypatch.setattr(layout, "save", lambda figure, file: figures.append(figure))
    clients = np.array([10.0, 20.0, 50.0])
    lines = {"ScaffLSA": np.stack([clients, [4.0, 1.0, 1.0], [0.5, 0.1, 0.1]])}
    draw({"one": lines}, [Path("a.svg")], falling="ScaffLSA")
    axis = figures[0].axes[0]
    dashed = next(line for line in axis.get_lines() if line.get_label() == "1/N")
    np.testing.assert_allclose(dashed.get_ydata(), [4.0, 2.0, 0.8], rtol=1e-12)
    (bars,) = axis.containers[0].lines[2]
    np.testing.assert_allclose(bars.get_segments()[0][:, 1], [3.0, 5.0], rtol=1e-12)
