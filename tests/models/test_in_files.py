"""Fits of tables that lie in files are those of tables in memory."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedscaffold.cli.prepare import class_counts, heterogeneity
from fedscaffold.core import machine as mapped
from fedscaffold.core.machine import in_file
from fedscaffold.data import from_file, open_problem
from fedscaffold.data import open as model_tables
from fedscaffold.models import FitSettings, fit
from tests.hospitals import cancer, diabetes, wine

FRAMES: dict[str, tuple[Callable[[], pd.DataFrame], str]] = {
    "ridge": (diabetes, "target"),
    "logistic": (cancer, "diagnosis"),
    "multinomial": (wine, "target"),
}


@pytest.fixture(params=FRAMES)
def both(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """A problem in memory and the same in files, of which a few rows are taken at once."""
    make, target = FRAMES[request.param]
    make().to_parquet(tmp_path / "t.parquet")
    words: dict[str, Any] = {"target": target, "client": "hospital"}
    held = open_problem(tmp_path / "t.parquet", **words)
    there = open_problem(tmp_path / "t.parquet", cache_dir=tmp_path / "records", **words)
    assert held.kind == there.kind == request.param
    assert in_file(there.x)
    assert not in_file(held.x)
    monkeypatch.setattr(mapped, "AT_ONCE", 4096)
    return held, there


@pytest.mark.parametrize("trainer", ["newton", "scaffold"])
def test_the_same_model_to_the_bit(both: tuple[Any, Any], trainer: Any) -> None:
    settings = FitSettings(trainer=trainer)
    one, two = (fit(problem, settings=settings) for problem in both)
    assert one.model == two.model
    assert one.trained.history == two.trained.history
    np.testing.assert_array_equal(one.summary("cluster").se, two.summary("cluster").se)
    assert heterogeneity(both[0], both[0].optimum()) == heterogeneity(both[1], both[0].optimum())
    counts = [class_counts(problem) for problem in both]
    assert (counts[0] is None) == (one.model.classes is None)
    if counts[0] is not None and counts[1] is not None:
        np.testing.assert_array_equal(counts[0], counts[1])


def test_a_quarter_of_the_memory_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_tables, "memory_limit", lambda: 1000)
    assert model_tables.default_max_bytes_in_memory() == 250
    monkeypatch.setattr(model_tables, "memory_limit", lambda: None)
    assert model_tables.default_max_bytes_in_memory() > 10**15


def test_parts_of_a_table(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    frame = diabetes()
    frame.iloc[:200].to_parquet(tmp_path / "parts" / "a.parquet")
    frame.iloc[200:].to_parquet(tmp_path / "parts" / "b.parquet")
    problem = open_problem(tmp_path / "parts", target="target", client="hospital")
    frame.to_parquet(tmp_path / "whole.parquet")
    whole = from_file(
        tmp_path / "whole.parquet", target="target", client="hospital", l2="auto", standardize=True, intercept=True
    )
    assert problem.fingerprint() == whole.fingerprint()
