"""The figure's files."""

from pathlib import Path

import numpy as np

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
