"""The picture of a split."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedscaffold import InvalidInput
from fedscaffold.data import partition
from fedscaffold.reports.partition import draw_partition

FOUND = partition.summary(["u", "u", "v", "v", "v"], ["red", "blue", "red", "red", "red"])


@pytest.mark.parametrize(
    ("style", "texts"), [("bars", ("rows", "class", "red")), ("bubbles", ("largest is 3", "red"))]
)
def test_files(style: Any, texts: tuple[str, ...], tmp_path: Path) -> None:
    for name in ("a.png", "a.svg"):
        draw_partition(
            FOUND.counts, clients=FOUND.clients, classes=FOUND.classes, file=tmp_path / name, style=style
        )
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    svg = (tmp_path / "a.svg").read_text()
    for text in ("client", "u", "v", *texts):
        assert re.search(rf">[^<]*{text}[^<]*</text>", svg)
    assert len(list(tmp_path.iterdir())) == 2


def test_many_clients_are_not_named(tmp_path: Path) -> None:
    names = [f"client number {c}" for c in range(41)]
    draw_partition(np.ones((41, 2), dtype=int), clients=names, classes=[0, 1], file=tmp_path / "a.svg")
    assert "client number" not in (tmp_path / "a.svg").read_text()
    draw_partition(np.ones((40, 2), dtype=int), clients=names[:40], classes=[0, 1], file=tmp_path / "a.svg")
    assert "client number 39" in (tmp_path / "a.svg").read_text()


def test_refusals(tmp_path: Path) -> None:
    names: dict[str, Any] = {"clients": FOUND.clients, "classes": FOUND.classes, "file": tmp_path / "a.png"}
    with pytest.raises(InvalidInput, match=r"one row per client and one column per class, \(2, 2\), got \(1, 2\)"):
        draw_partition([[1, 2]], **names)
    with pytest.raises(InvalidInput, match="style must be one of"):
        draw_partition(FOUND.counts, **{**names, "style": "pie"})
