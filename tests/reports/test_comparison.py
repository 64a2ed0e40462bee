"""Figures of comparisons: their files, and what is written in them."""

from pathlib import Path

import numpy as np

from fedscaffold.reports import comparison, growth


def test_curves(tmp_path: Path) -> None:
    cost = np.arange(40.0)
    line = cost, np.exp(-cost / 10) * np.array([[1.0], [1.3]])
    panel = comparison.CostPanel("N = 8", "vectors per client", {"one": line, "two": line}, targets=(0.1,))
    other = comparison.CostPanel("N = 8", "round", {"three": line}, log=False, spread=False)
    for name, rows in (("same", [[panel, panel]]), ("different", [[panel, other]])):
        file = tmp_path / f"{name}.svg"
        comparison.draw(rows, [file])
        svg = file.read_text()
        for text in ("N = 8", "vectors per client", "one", "two"):
            assert text in svg
    assert (tmp_path / "same.svg").read_text().count(">one<") == 1  # one legend for all panels
    assert ">three<" in (tmp_path / "different.svg").read_text()


def test_costs(tmp_path: Path) -> None:
    x = np.array([10.0, 100.0, 1000.0])
    series = {"one": (x, 5 * x), "two": (x[:1], x[:1])}
    panels = [
        growth.GrowthPanel("title", "N", "gradients", series),
        growth.GrowthPanel("", "ε", "rounds", series, power=False),
    ]
    growth.draw(panels, [tmp_path / "a.svg"])
    svg = (tmp_path / "a.svg").read_text()
    for text in ("title", "gradients", "rounds", "one", "two"):
        assert text in svg
    assert len(list(tmp_path.iterdir())) == 1
