"""Sweeps: the numbers of single runs, kept in a file, not computed twice."""

import itertools
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedscaffold as fs
from fedscaffold.benchmarking import Cell, Family, Sweep, SweepRow, sweep
from fedscaffold.benchmarking.sweeps import cells, loop, saturation, tasks
from fedscaffold.benchmarking.sweeps.figure import panels
from fedscaffold.engines import Ray
from fedscaffold.problems import RidgeStream
from fedscaffold.simulation.stages.stationarity import plateau

# 7 features, as other tests have compiled kernels for
SCAFFOLD, FEDAVG = fs.Scaffold(step_size=0.05, local_steps=3), fs.FedAvg(step_size=0.05, local_steps=3)
FAMILY = Family(name="ridge-stream", settings={"dim": 7, "spectrum": 1.0})
GRID = Sweep(
    family=FAMILY, clients=(6, 3), methods=(SCAFFOLD, FEDAVG), batch_sizes=(1, 2), rounds=16, seeds=2, seed=4
)
SMALL = replace(GRID, clients=(3,), methods=(SCAFFOLD,), batch_sizes=(1,))
HERE: Any = "here"
SAME = ["n_clients", "plateau", "plateaus", "standard_error", "final_mse", "outcome", "settings"]


def swept(grid: Sweep, **kwargs: Any) -> pd.DataFrame:
    return sweep(grid, **{"progress": False, **kwargs})


def test_rows_are_single_runs() -> None:
    frame = swept(GRID)
    assert list(frame["n_clients"]) == [3, 3, 3, 3, 6, 6, 6, 6]
    assert list(frame["method"]) == ["Scaffold", "Scaffold", "FedAvg", "FedAvg"] * 2
    assert list(frame["batch_size"]) == [1, 2] * 4
    row = frame.iloc[5]
    problem = RidgeStream(n_clients=6, dim=7, spectrum=np.ones(7))
    trace = fs.run(problem, SCAFFOLD, rounds=16, batch_size=2, repetitions=2, seed=4)
    found = trace.plateau() or plateau(trace.mse, 12)
    assert (row["plateau"], row["standard_error"], row["from_round"]) == found[:3]
    assert row["outcome"] == ("moving" if trace.plateau() is None else "stationary")
    assert row["final_mse"] == trace.mse[:, -1].mean()
    np.testing.assert_array_equal(row["plateaus"], trace.mse[:, found.from_round :].mean(axis=1))
    assert json.loads(row["settings"])["local_steps"] == 3
    assert json.loads(row["provenance"])["engine"] == "numba-float64"
    assert 0 < row["ns_per_step"] < 1e9 * row["seconds"]


def test_time_per_step_is_counted_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock that moves a second at every look: after the first, 15 rounds of 3 clients, 3 steps, 2 seeds."""
    ticks = itertools.count()
    monkeypatch.setattr(cells, "time", SimpleNamespace(perf_counter=lambda: float(next(ticks))))
    cell = SMALL.cells()[0]
    problem = FAMILY(3)
    row = cells.measure(SMALL, cell, problem, problem.optimum(), fs.engines.Reference())
    assert row.ns_per_step == pytest.approx(1e9 * 15 / (15 * 3 * 3 * 2))
    assert row.seconds == 17 + 1  # a look at each of rounds 0 to 16, and one at the end
    assert cell.steps() == 3 * 3 * 16 * 2


def test_local_steps_of_proxskip_are_those_to_expect() -> None:
    proxskip = fs.ProxSkip(step_size=0.05, communication_probability=0.25)
    assert swept(replace(SMALL, methods=(proxskip,)))["local_steps"].tolist() == [4.0]


def test_the_papers_problem_and_full_gradients(tmp_path: Path) -> None:
    grid = replace(SMALL, family=Family(name="regression", seed=3), clients=(2,), batch_sizes=(None,), seeds=1)
    frame = swept(grid, out=tmp_path / "a.parquet")
    problem = fs.problems.paper("regression", n_clients=2, seed=3)
    trace = fs.run(problem, SCAFFOLD, rounds=16, seed=4)
    assert frame["final_mse"][0] == trace.mse[0, -1]
    assert frame["batch_size"].isna().all()
    assert next(iter(panels(frame).values())).keys() == {"Scaffold γ=0.05 H=3 B=all"}
    assert swept(grid, out=tmp_path / "a.parquet").equals(frame)


def test_a_start_at_the_optimum() -> None:
    frame = swept(replace(SMALL, start="optimum"))
    problem = FAMILY(3)
    trace = fs.run(
        problem, SCAFFOLD, rounds=16, batch_size=1, repetitions=2, seed=4,
        theta0=problem.optimum(),
    )  # fmt: skip
    assert frame["final_mse"][0] == trace.mse[:, -1].mean()


def test_divergence_is_a_row() -> None:
    frame = swept(replace(SMALL, methods=(fs.Scaffold(step_size=90.0, local_steps=3), SCAFFOLD)))
    gone, fine = frame.iloc[0], frame.iloc[1]
    assert gone["outcome"] == "diverged"
    assert "is safe" in gone["message"]
    assert frame["plateau"].isna().tolist() == [True, False]
    assert fine["outcome"] != "diverged"
    assert next(iter(panels(frame).values())).keys() == {"Scaffold γ=0.05 H=3 B=1"}


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[Cell]:
    """The cells that are run; the sixth is interrupted."""
    seen: list[Cell] = []

    def measure(grid: Sweep, cell: Cell, *rest: Any) -> SweepRow:
        seen.append(cell)
        if len(seen) == 6:
            raise KeyboardInterrupt
        return cells.measure(grid, cell, *rest)

    monkeypatch.setattr(loop, "measure", measure)
    return seen


def test_cells_that_are_done_are_not_done_again(tmp_path: Path, measured: list[Cell]) -> None:
    file = tmp_path / "sweep.parquet"
    with pytest.raises(KeyboardInterrupt):
        swept(GRID, out=file)
    assert len(pd.read_parquet(file)) == 5
    rows: list[SweepRow] = []
    found = swept(GRID, out=file, seen=rows.append)
    assert len(measured) == 6 + 3
    assert len(rows) == 8
    assert swept(GRID, out=file).equals(found)  # times and all
    assert len(measured) == 6 + 3
    pd.testing.assert_frame_equal(found[SAME], swept(GRID)[SAME])
    assert sorted(path.name for path in tmp_path.iterdir()) == [".sweep.parquet.lock", file.name]


@pytest.fixture
def done(tmp_path: Path) -> Path:
    """A file of a sweep."""
    swept(SMALL, out=tmp_path / "sweep.parquet")
    return tmp_path / "sweep.parquet"


def test_another_grid_adds_to_the_file(done: Path) -> None:
    before = pd.read_parquet(done)
    more = swept(replace(SMALL, clients=(4,), rounds=12), out=done)
    assert list(more["n_clients"]) == [4]
    both = pd.read_parquet(done)
    assert list(both["n_clients"]) == [3, 4]
    assert both["provenance"][0] == before["provenance"][0]


def test_predictions_are_added_later(done: Path) -> None:
    before = pd.read_parquet(done)
    assert before["predicted"].isna().all()
    found = swept(SMALL, out=done, predict=True)
    theory = fs.theory.predict(FAMILY(3), SCAFFOLD, batch_size=1)
    assert found["predicted"][0] == theory.mse
    assert found["predicted_variance"][0] + found["predicted_bias"][0] == theory.mse
    assert found["seconds"][0] == before["seconds"][0]
    assert pd.read_parquet(done)["predicted"][0] == theory.mse


def test_of_many_clients_some_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their variance falls as 1/N, their bias stays."""
    cell = replace(SMALL, clients=(4000,)).cells()[0]
    asked: list[int] = []

    def predict(problem: Any, method: Any, **options: Any) -> Any:
        asked.append(problem.n_clients)
        return SimpleNamespace(variance=8.0, squared_bias=3.0)

    monkeypatch.setattr(cells, "predict", predict)
    found = cells.forecast(cell, fs.problems.LogisticStream(n_clients=4000, dim=2))
    assert asked == [1000]
    assert found == {"predicted": 5.0, "predicted_variance": 2.0, "predicted_bias": 3.0}


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"seed": 5}, r"seed differ \(seed: 4 there, 5 here\)"),
        ({"start": "optimum"}, "start"),
        ({"family": replace(FAMILY, seed=1)}, "data seed"),
        ({"family": replace(FAMILY, settings={"dim": 7})}, "settings"),
        ({"family": Family(name="logistic-stream", settings={"dim": 7, "spectrum": 1.0})}, "problem"),
    ],
)
def test_a_file_of_another_sweep_is_refused(done: Path, change: dict[str, Any], what: str) -> None:
    before = done.read_bytes()
    with pytest.raises(fs.CheckpointMismatch, match=f"belongs to another sweep: .*{what}"):
        swept(replace(SMALL, **change), out=done)
    assert done.read_bytes() == before


def test_a_file_that_is_no_sweep_is_refused(tmp_path: Path) -> None:
    other, text = tmp_path / "other.parquet", tmp_path / "text.parquet"
    pd.DataFrame({"a": [1]}).to_parquet(other)
    text.write_text("text")
    for file in (other, text):
        with pytest.raises(fs.CheckpointMismatch, match="is not a table of a sweep"):
            swept(SMALL, out=file)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Family(name="foo"), "problem must be one of .regression., .classification., .ridge-stream."),
        (lambda: Family(name="ridge-stream", settings={"speed": 1}), "no setting 'speed'; choose among dim"),
        (lambda: Family(name="regression", settings={"dim": 3}), "no setting 'dim'; choose among l2"),
        (lambda: Family(name="ridge-stream", settings={"dim": 0}), "dim must be"),
        (lambda: Family(name="ridge-stream", settings={"dim": 2.5, "spectrum": 1}), "dim must be"),
        (lambda: Family(name="ridge-stream", settings={"l2": np.ones(2)}), "must be numbers or lists"),
        (lambda: replace(SMALL, clients=()), "clients must be some, all different"),
        (lambda: replace(SMALL, clients=(3, 3)), "clients must be some, all different"),
        (lambda: replace(SMALL, clients=(0,)), "clients must be"),
        (lambda: replace(SMALL, family=Family(name="regression"), clients=(3,)), "even"),
        (lambda: replace(SMALL, methods=(SCAFFOLD, SCAFFOLD)), "methods must be some, all different"),
        (lambda: replace(SMALL, methods=(replace(SCAFFOLD, cohort=4),)), "cohort"),
        (lambda: replace(SMALL, rounds=0), "rounds must be"),
        (lambda: replace(SMALL, seeds=0), "seeds must be"),
        (lambda: replace(SMALL, seed=2**64), "seed must be below"),
        (lambda: replace(SMALL, start=HERE), "start must be one of .zero., .optimum."),
        (lambda: swept(replace(SMALL, batch_sizes=(None,))), "no full gradients"),
        (lambda: swept(replace(SMALL, batch_sizes=(0,))), "batch_size must be"),
        (lambda: swept(SMALL, engine="foo"), "engine must be one of"),
        (lambda: swept(SMALL, out=Path("no/such/folder.parquet")), "no folder"),
    ],
)
def test_refusals(make: Any, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "measure", lambda *given: pytest.fail("work was done"))
    with pytest.raises(fs.InvalidInput, match=message):
        make()


def test_saturation() -> None:
    clients = np.array([10.0, 100.0, 1000.0, 10000.0])
    truth = 2.0 / clients + 0.004
    fit = saturation.fit_saturation(clients, truth, 0.01 * truth)
    assert fit is not None
    np.testing.assert_allclose(fit[:2], (2.0, 0.004))
    np.testing.assert_allclose(fit.n_clients or 0.0, 500.0)
    assert saturation.predict_saturation(clients, 2.0 / clients, np.full(4, 0.004)) == 500.0
    no_floor = saturation.fit_saturation(clients, 2.0 / clients, 0.01 / clients)
    assert no_floor is not None
    assert no_floor.n_clients is None
    assert saturation.predict_saturation(clients, 2.0 / clients, np.full(4, 1e-30)) is None
    assert saturation.predict_saturation(clients, np.full(4, np.nan), np.full(4, np.nan)) is None
    assert saturation.fit_saturation(clients[:2], truth[:2], truth[:2]) is None


def test_the_error_of_a_saturation_is_that_of_many_fits() -> None:
    """Its standard deviation over 400 data sets, whose own error is 3.5 %, within 4 of these."""
    rng = np.random.default_rng(0)
    clients = np.geomspace(10, 1e5, 9)
    truth = 2.0 / clients + 0.004
    fits = [
        saturation.fit_saturation(clients, truth * (1 + 0.02 * rng.normal(size=9)), 0.02 * truth)
        for _ in range(400)
    ]
    at = np.array([fit.n_clients for fit in fits if fit is not None and fit.n_clients is not None])
    exact = saturation.fit_saturation(clients, truth, 0.02 * truth)
    assert exact is not None
    assert exact.standard_error is not None
    assert at.size == 400
    np.testing.assert_allclose(at.std(), exact.standard_error, rtol=0.14)


@pytest.mark.slow
def test_ray_gives_the_same_rows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Cells of 70 clients whole, those of 140 in two shards."""
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    monkeypatch.setattr(tasks, "MODELS_WORTH_SHARDS", 280)
    wide = fs.Scaffold(step_size=90.0, local_steps=3)
    some = replace(SCAFFOLD, cohort=20)  # of two seeds: whole in any case
    grid = replace(GRID, clients=(70, 140), methods=(SCAFFOLD, some, wide), batch_sizes=(1,))
    assert [tasks.worth_shards(cell) for cell in grid.cells()] == [False, False, False, True, False, True]
    engine = Ray(shards=2)
    found = swept(grid, engine=engine, out=tmp_path / "ray.parquet", predict=True)
    pd.testing.assert_frame_equal(found[[*SAME, "message"]], swept(grid, predict=True)[[*SAME, "message"]])
    assert swept(grid, out=tmp_path / "ray.parquet", predict=True).equals(found)  # either goes on from the other's
