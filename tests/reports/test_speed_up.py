"""The figure's files."""

from pathlib import Path

import numpy as np

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
