"""Sweeps: the numbers of single runs, on any function that makes problems, kept and not computed twice."""

import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedscaffold as fs
from fedscaffold.benchmarking import Sweep, sweeps
from fedscaffold.benchmarking.sweeps import SweepRow, SweepTable
from fedscaffold.core.errors import InvalidInput
from fedscaffold.engines import Ray
from fedscaffold.problems import RidgeStream
from fedscaffold.simulation.stages.stationarity import plateau

# 7 features, as other tests have compiled kernels for
SCAFFOLD, FEDAVG = fs.Scaffold(step_size=0.05, local_steps=3), fs.FedAvg(step_size=0.05, local_steps=3)
STREAM = partial(RidgeStream, dim=7, spectrum=np.ones(7))
GRID = Sweep(
    problem=STREAM, grid={"n_clients": [6, 3], "method": [SCAFFOLD, FEDAVG], "batch_size": [1, 2]},
    rounds=16, repetitions=2, seed=4,
)  # fmt: skip
SMALL = replace(GRID, grid={"n_clients": 3}, method=SCAFFOLD, batch_size=1)
SAME = ["n_clients", "plateau", "standard_error", "final_mse", "outcome", "step_size"]


def swept(study: Sweep, **settings: Any) -> pd.DataFrame:
    return study.run(**{"progress": False, **settings}).to_frame()


def test_rows_are_single_runs() -> None:
    frame = swept(GRID)
    assert list(frame["n_clients"]) == [6, 6, 6, 6, 3, 3, 3, 3]
    assert list(frame["method"]) == ["Scaffold", "Scaffold", "FedAvg", "FedAvg"] * 2
    assert list(frame["batch_size"]) == [1, 2] * 4
    row = frame.iloc[1]
    trace = fs.run(STREAM(n_clients=6), SCAFFOLD, rounds=16, batch_size=2, repetitions=2, seed=4)
    found = trace.plateau() or plateau(trace.mse, 12)
    assert (row["plateau"], row["standard_error"], row["from_round"]) == found[:3]
    assert row["outcome"] == ("moving" if trace.plateau() is None else "stationary")
    assert row["final_mse"] == trace.mse[:, -1].mean()
    assert row["local_steps"] == 3
    assert '"engine": "native-float64"' in row["provenance"]


def made(n_clients: int, noise: float = 1.0, seed: int = 0) -> fs.problems.Ridge:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n_clients, 20, 7))
    return fs.problems.Ridge(x, x.sum(axis=2) + noise * rng.normal(size=(n_clients, 20)), l2=0.1)


def test_names_go_to_the_function_then_the_method_then_the_run() -> None:
    grid = {
        "n_clients": 2,
        "noise": [0.5, 2.0],
        "seed": [7],
        "step_size": (0.02, 0.05),
        "local_steps": 3,
        "rounds": 20,
    }
    study = Sweep(problem=made, grid=grid, batch_size=4, seed=9)
    frame = swept(study)
    assert len(frame) == 4
    method = fs.Scaffold(step_size=0.05, local_steps=3)
    trace = fs.run(made(2, noise=2.0, seed=7), method, rounds=20, batch_size=4, seed=9)
    row = frame[(frame["noise"] == 2.0) & (frame["step_size"] == 0.05)].iloc[0]
    assert row["final_mse"] == trace.mse[0, -1]
    assert row["seed"] == 7
    assert repr(study) == "Sweep(made, 4 cells: noise 0.5, 2; step_size 0.02, 0.05)"


def test_fields_that_a_method_does_not_have_are_left_out_of_its_cells() -> None:
    grid = {"n_clients": 2, "method": [fs.Scaffold, fs.ProxSkip], "step_size": 0.05, "local_steps": [2, 4],
            "communication_probability": 0.25}  # fmt: skip
    frame = swept(Sweep(problem=made, grid=grid, rounds=3))
    assert list(frame["method"]) == ["Scaffold", "Scaffold", "ProxSkip"]
    assert frame["local_steps"].isna().tolist() == [False, False, True]


def test_full_gradients_and_an_automatic_batch() -> None:
    frame = swept(
        Sweep(problem=made, grid={"n_clients": 2, "batch_size": [None, "auto", 3]}, method=SCAFFOLD, rounds=5)
    )
    trace = fs.run(made(2), SCAFFOLD, rounds=5)
    assert frame["final_mse"].tolist()[:2] == [trace.mse[0, -1]] * 2
    assert frame["final_mse"][2] != trace.mse[0, -1]


def test_a_start_at_the_optimum() -> None:
    problem = STREAM(n_clients=3)
    trace = fs.run(
        problem, SCAFFOLD, rounds=16, batch_size=1, repetitions=2, seed=4, theta0=problem.optimum()
    )  # fmt: skip
    assert swept(replace(SMALL, start="optimum"))["final_mse"][0] == trace.mse[:, -1].mean()


def test_divergence_is_a_row() -> None:
    study = replace(SMALL, grid={"n_clients": [3, 4], "step_size": [90.0, 0.05]})
    table = study.run(progress=False)
    assert [row.outcome == "diverged" for row in table.rows] == [True, False] * 2
    assert "is safe" in (table.rows[0].message or "")
    assert table.to_frame()["plateau"].isna().tolist() == [True, False] * 2
    assert list(table.series()) == ["γ=0.05"]
    with pytest.raises(InvalidInput, match="every cell diverged"):
        SweepTable([table.rows[0], table.rows[2]]).series()


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the cells that are run; the sixth is interrupted."""
    seen: list[int] = []
    measure = sweeps._Runner._measure

    def counting(self: Any, k: int, progress: Any) -> Any:
        seen.append(k)
        if len(seen) == 6:
            raise KeyboardInterrupt
        return measure(self, k, progress)

    monkeypatch.setattr(sweeps._Runner, "_measure", counting)
    return seen


def test_cells_that_are_done_are_not_done_again(tmp_path: Path, measured: list[int]) -> None:
    with pytest.raises(KeyboardInterrupt):
        swept(GRID, out=tmp_path)
    found = swept(GRID, out=tmp_path)
    assert measured == [0, 1, 2, 3, 4, 5, 5, 6, 7]
    assert swept(GRID, out=tmp_path).equals(found)  # times and all
    more = replace(GRID, grid={**GRID.grid, "n_clients": [3, 4]})
    both = swept(more, out=tmp_path)
    assert measured[9:] == [4, 5, 6, 7]  # the cells of three clients are kept
    pd.testing.assert_frame_equal(both[:4], found[4:].reset_index(drop=True))
    pd.testing.assert_frame_equal(found[SAME], swept(GRID)[SAME])
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "sweep.parquet")[SAME], both[SAME], check_dtype=False)


@pytest.mark.parametrize(
    "change",
    [{"seed": 5}, {"start": "optimum"}, {"rounds": 17}, {"repetitions": 1}, {"problem": partial(STREAM, seed=1)}],
)
def test_other_settings_are_other_cells(tmp_path: Path, measured: list[int], change: dict[str, Any]) -> None:
    for study in (SMALL, replace(SMALL, **change)):
        swept(study, out=tmp_path)
    assert len(measured) == 2


def test_a_damaged_cell_is_run_again(tmp_path: Path, measured: list[int]) -> None:
    found = swept(SMALL, out=tmp_path)
    (file,) = (tmp_path / "cells").iterdir()
    file.write_bytes(file.read_bytes()[:-40])
    pd.testing.assert_frame_equal(swept(SMALL, out=tmp_path)[SAME], found[SAME])
    assert len(measured) == 2


CODE = """
import sys
from functools import partial
import fedscaffold as fs
grid = {"n_clients": int(sys.argv[2]), "step_size": [0.01 * k for k in range(1, 8)], "local_steps": 1}
study = fs.benchmarking.Sweep(problem=partial(fs.problems.RidgeStream, dim=2), grid=grid, rounds=2)
study.run(out=sys.argv[1], engine="reference", progress=False)
"""


def test_sweeps_may_share_a_folder(tmp_path: Path) -> None:
    running = [subprocess.Popen([sys.executable, "-c", CODE, str(tmp_path), str(n)]) for n in (2, 3)]
    assert [process.wait() for process in running] == [0, 0]
    assert len(list((tmp_path / "cells").glob("cell-*.npz"))) == 14


def test_predictions_are_added_later(tmp_path: Path) -> None:
    before = swept(SMALL, out=tmp_path)
    assert before["predicted"].isna().all()
    found = swept(SMALL, out=tmp_path, predict=True)
    theory = fs.theory.predict(STREAM(n_clients=3), SCAFFOLD, batch_size=1)
    assert found["predicted"][0] == theory.mse
    assert found["predicted_variance"][0] + found["predicted_bias"][0] == theory.mse
    assert found["seconds"][0] == before["seconds"][0]


def test_of_many_clients_some_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their variance falls as 1/N, their bias stays."""
    asked: list[int] = []

    def predict(problem: Any, method: Any, **options: Any) -> Any:
        asked.append(problem.n_clients)
        return SimpleNamespace(variance=8.0, squared_bias=3.0)

    monkeypatch.setattr(sweeps, "predict", predict)
    many = partial(fs.problems.LogisticStream, dim=2)
    study = Sweep(problem=many, grid={"n_clients": 4000}, method=SCAFFOLD, rounds=1, batch_size=1)
    (row,) = study.run(predict=True, progress=False).rows
    assert asked == [1000]
    assert (row.predicted, row.predicted_variance, row.predicted_bias) == (5.0, 2.0, 3.0)


def rows(law: Any, **more: Any) -> list[SweepRow]:
    """Stationary rows whose plateaus follow a law of N."""
    return [
        SweepRow(
            settings={"n_clients": n, "step_size": 0.1, **more}, outcome="stationary", plateau=law(n),
            standard_error=0.01 * law(n), predicted_variance=2.0 / n, predicted_bias=0.004, seconds=1.0,
            provenance={},
        )
        for n in (10, 100, 1000)
    ]  # fmt: skip


def test_the_table_has_what_varies_and_saturations() -> None:
    floored = SweepTable(rows(lambda n: 2.0 / n + 0.004))
    lines = repr(floored).splitlines()
    assert lines[0].split() == ["n_clients", "plateau", "outcome", "seconds"]
    assert lines[3].split() == ["1,000", "0.006", "±", "6e-05", "stationary", "1.0"]
    assert lines[4].startswith("saturation: N = 500 ± ")
    assert lines[4].endswith("predicted N = 500")
    (series,) = floored.series().values()
    np.testing.assert_allclose([at or 0.0 for at in series.saturation], 500.0)
    falling = SweepTable([*rows(lambda n: 2.0 / n), *rows(lambda n: 2.0 / n + 0.0004, method="FedAvg")])
    assert "saturation of –: not reached up to N = 1,000" in falling.table().replace(
        "saturation:", "saturation of –:"
    )
    assert "saturation of FedAvg: not reached up to N = 1,000, predicted N = 500" in falling.table()


def test_runs_that_still_move_show_no_saturation() -> None:
    moving = [replace(row, outcome="moving") for row in rows(lambda n: 2.0 / n + 0.004)]
    table = SweepTable(moving)
    assert "saturation" not in table.table()
    (series,) = table.series().values()
    assert not series.stationary.any()


def test_another_number_than_clients_is_drawn() -> None:
    table = replace(SMALL, grid={"n_clients": 3, "step_size": [0.02, 0.05]}).run(progress=False)
    axes = table.plot()
    assert axes.get_xlabel() == "step size"
    with pytest.raises(InvalidInput, match="at least two values"):
        SMALL.run(progress=False).plot()


def not_a_problem(n_clients: int) -> int:
    return n_clients


def but(**wrong: Any) -> Sweep:
    """SMALL with other settings, of wrong types too."""
    return replace(SMALL, **wrong)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: but(problem="ridge"), "problem must be a function"),
        (lambda: but(grid=[1]), "grid must be a dictionary"),
        (lambda: but(grid={}), "RidgeStream needs n_clients; add it to the grid"),
        (lambda: but(grid={"n_clients": []}), "n_clients in the grid has no values"),
        (
            lambda: but(grid={"n_client": 3}),
            "unknown name 'n_client' in the grid; did you mean 'n_clients'",
        ),
        (lambda: but(grid={"n_clients": 3, "stepsize": 1}), "did you mean 'step_size'"),
        (lambda: but(grid={"n_clients": 3, "x": 1}), "Known names of RidgeStream: .*Scaffold: .*run: "),
        (lambda: but(method=fs.Scaffold), "Scaffold needs step_size, local_steps; add to the grid"),
        (lambda: but(method=3), "method must be a method"),
        (lambda: but(method=int), "method must be a method"),
        (lambda: but(grid={"n_clients": 3, "step_size": -1.0}), "step_size must be"),
        (lambda: but(rounds=0), "rounds must be"),
        (lambda: but(repetitions=0), "repetitions must be"),
        (lambda: but(seed=2**64), "seed must be below"),
        (lambda: but(start="here"), "start must be one of .zero., .optimum."),
        (lambda: but(batch_size=0), "batch_size must be"),
        (lambda: but(batch_size="small"), "batch_size must be"),
        (lambda: swept(but(grid={"n_clients": [3, 0]})), "n_clients must be"),
        (lambda: swept(but(grid={"n_clients": [3, 5], "cohort": 4})), "cohort"),
        (lambda: swept(but(batch_size=None)), "no full gradients"),
        (lambda: swept(but(problem=not_a_problem)), "problem must be a problem"),
        (lambda: swept(SMALL, engine="foo"), "engine must be one of"),
        (lambda: swept(SMALL, out=Path(__file__)), "cannot make a folder"),
    ],
)
def test_bad_input_is_rejected_before_any_cell_is_run(
    make: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeps, "run", lambda *given, **more: pytest.fail("work was done"))
    with pytest.raises(fs.InvalidInput, match=message):
        make()


@pytest.mark.slow
def test_ray_gives_the_same_rows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    study = replace(SMALL, grid={"n_clients": [70, 140], "step_size": [0.05, 90.0]})
    found = swept(study, engine=Ray(shards=2), out=tmp_path)
    pd.testing.assert_frame_equal(found[[*SAME, "message"]], swept(study)[[*SAME, "message"]])
    assert swept(study, out=tmp_path).equals(found)  # either resumes from the other's cells
