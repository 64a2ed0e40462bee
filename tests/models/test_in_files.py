"""Fits of tables that lie in files are those of tables in memory."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from fedscaffold.models.compare import score_model

from fedscaffold.core import machine as mapped
from fedscaffold.core.machine import in_file
from fedscaffold.data import from_file, open_problem
from fedscaffold.data import open as model_tables
from fedscaffold.models import FitSettings, fit, local_models
from fedscaffold.models.heterogeneity import class_counts, heterogeneity
from fedscaffold.models.metrics import classification_metrics, regression_metrics, training_metrics
from fedscaffold.models.metrics import streamed_classification_metrics as streamed_classes
from fedscaffold.models.metrics import streamed_regression_metrics as streamed_values
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


def test_the_same_model_to_the_bit_and_the_same_report(both: tuple[Any, Any]) -> None:
    settings = FitSettings(tolerance=0.02, batch_size=None)
    one, two = (fit(problem, settings=settings, progress=False) for problem in both)
    assert in_file(two.planned.problem.x)
    assert one.model.equations == two.model.equations
    assert one.planned.method == two.planned.method
    np.testing.assert_array_equal(one.trace.mse, two.trace.mse)
    for theta in (one.theta, np.zeros(one.theta.size)):
        expected, found = (training_metrics(each.planned, theta) for each in (one, two))
        assert found == pytest.approx(expected, abs=1e-4 if "AUC" in expected else 1e-12)
    np.testing.assert_array_equal(
        score_model("", one.planned, one.theta).client_losses,
        score_model("", two.planned, one.theta).client_losses,
    )
    assert heterogeneity(both[0], one.planned.optimum) == heterogeneity(both[1], one.planned.optimum)
    counts = [class_counts(problem) for problem in both]
    assert (counts[0] is None) == (one.model.classes is None)
    if counts[0] is not None and counts[1] is not None:
        np.testing.assert_array_equal(counts[0], counts[1])


def test_who_is_helped(both: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The common model of the halves comes from blocks of clients, here of one each."""
    monkeypatch.setattr(local_models, "NUMBERS_AT_ONCE", 1)
    settings = FitSettings(step_size=0.01, local_steps=1, rounds=1)
    one, two = (
        local_models.compare_local_models(fit(problem, settings=settings, progress=False).planned)
        for problem in both
    )
    np.testing.assert_allclose(two.common, one.common, rtol=1e-3)
    np.testing.assert_allclose(two.local, one.local, rtol=1e-3)


def test_halves() -> None:
    """Every other row of each client; a client of one row keeps it in both."""
    problem = from_frame_of([5, 1, 4, 2])
    for parity, rows in ((0, [0, 2, 4, 5, 6, 8, 10]), (1, [1, 3, 5, 7, 9, 11])):
        half = local_models.half_of_rows(problem, range(4), parity)
        np.testing.assert_array_equal(half.y, rows)
    assert local_models.half_of_rows(problem, [3], 1).y.tolist() == [11]
    assert local_models.half_of_rows(problem, [2, 0], 0).sizes.tolist() == [2, 3]


def from_frame_of(sizes: list[int]) -> Any:
    from fedscaffold.data import from_frame

    owners = np.repeat(np.arange(len(sizes)), sizes)
    frame = pd.DataFrame({"c": owners, "x": np.arange(owners.size) % 3, "y": np.arange(owners.size) * 1.0})
    return from_frame(frame, target="y", client="c", min_rows=1)


def test_metrics_of_pieces() -> None:
    rng = np.random.default_rng(0)
    z = np.concatenate([rng.normal(size=2999), [800.0]])
    seen = (rng.logistic(size=z.size) < z).astype(np.int64)
    p = 1.0 / (1.0 + np.exp(-z))
    shares = np.column_stack([1.0 - p, p])
    parts = [slice(0, 100), slice(100, 101), slice(101, 3000)]
    found, expected = (
        streamed_classes((seen[part], shares[part]) for part in parts),
        classification_metrics(seen, shares),
    )
    near = np.abs(z[seen == 0][:, None] - z[seen == 1]) < 2.0**-12  # pairs whose odds may be taken for equal
    assert found.pop("AUC") == pytest.approx(expected.pop("AUC"), abs=near.mean() / 2.0)
    assert near.mean() < 2e-4
    assert found == pytest.approx(expected)
    p = np.round(p, 1)
    tied = np.column_stack([1.0 - p, p])
    assert streamed_classes([(seen, tied)])["AUC"] == pytest.approx(
        classification_metrics(seen, tied)["AUC"], abs=1e-12
    )
    ones = streamed_classes([(np.ones(3, np.int64), shares[:3])])
    assert set(ones) == set(classification_metrics(np.ones(3, np.int64), shares[:3])) == {"accuracy", "log loss"}
    several = rng.dirichlet(np.ones(3), size=z.size)
    three = rng.integers(3, size=z.size)
    assert streamed_classes((three[part], several[part]) for part in parts) == pytest.approx(
        classification_metrics(three, several)
    )
    y = z[:-1] + rng.normal(size=z.size - 1)
    assert streamed_values((y[part], z[:-1][part]) for part in parts) == pytest.approx(
        regression_metrics(y, z[:-1])
    )
    assert "r2" not in streamed_values([(np.ones(3), np.zeros(3))])


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
