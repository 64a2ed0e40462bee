"""The figure's files."""

from pathlib import Path

import numpy as np

from fedscaffold.reports.curves import draw


def test_png_and_svg(tmp_path: Path) -> None:
    falling = np.exp(-np.arange(50) / 10) * np.array([[1.0], [1.2]])
    lines = {"Scaffold": falling, "FedAvg": falling + 0.1}
    rows = {kind: {"N = 10": lines, "N = 20": lines} for kind in ("ridge", "logistic")}
    files = [tmp_path / "a.png", tmp_path / "a.svg"]
    draw(rows, files)
    assert files[0].read_bytes().startswith(b"\x89PNG")
    svg = files[1].read_text()
    for text in ("N = 10", "Scaffold", "FedAvg", "round"):
        assert text in svg
    assert len(list(tmp_path.iterdir())) == 2
