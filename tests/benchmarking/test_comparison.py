"""Comparisons: same noise as plain runs, budgets kept, nothing lost by stopping early, cells used again."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedscaffold as fs
from fedscaffold.benchmarking import Curve, cheapest, compare, nested_problems
from fedscaffold.core.protocols import Method
from tests.samples import make

GRID: dict[str, list[Method]] = {
    "scaffold": [fs.Scaffold(step_size=g, local_steps=h) for h in (1, 4, 16) for g in (0.4, 0.1, 0.025, 0.006)],
    "fedavg": [fs.FedAvg(step_size=g, local_steps=h) for h in (1, 4, 16) for g in (0.4, 0.1, 0.025, 0.006)],
}
SETTINGS: dict[str, Any] = {"batch_size": 4, "seed": 5, "repetitions": 3, "progress": False}


def problem() -> fs.problems.Ridge | fs.problems.Logistic:
    return make("ridge", (12, 20, 9, 15), 3)


@pytest.mark.parametrize(
    "method",
    [
        fs.Scaffold(step_size=0.1, local_steps=5),
        fs.ProxSkip(step_size=0.1, communication_probability=0.2),
        fs.FedLin(step_size=0.05, local_steps=5),
        fs.TwoSidedScaffold(step_size=0.05, local_steps=5, server_step_size=1.1, cohort=2),
    ],
)
def test_a_curve_is_that_of_a_run(method: Method) -> None:
    (curve,) = compare(problem(), {"it": method}, rounds=12, **SETTINGS)
    trace = fs.run(problem(), method, rounds=12, **SETTINGS)
    np.testing.assert_array_equal(curve.mse, trace.mse)
    np.testing.assert_array_equal(curve.gradients, trace.gradients_per_client.mean(axis=0))
    np.testing.assert_array_equal(curve.vectors, trace.vectors_per_client)


@pytest.mark.parametrize(
    ("budget", "rounds"),
    [
        ({"rounds": 7}, {"Scaffold": 7, "FedLin": 7, "half": 7}),
        ({"gradients": 60}, {"Scaffold": 12, "FedLin": 10, "half": 24}),  # FedLin: one gradient more a round
        ({"vectors": 40}, {"Scaffold": 20, "FedLin": 10, "half": 40}),
        ({"vectors": 40, "rounds": 15}, {"Scaffold": 15, "FedLin": 10, "half": 15}),
        ({"gradients": 4}, {"Scaffold": 0, "FedLin": 0, "half": 1}),
    ],
)
def test_budgets(budget: dict[str, Any], rounds: dict[str, int]) -> None:
    methods: dict[str, Method] = {
        "Scaffold": fs.Scaffold(step_size=0.05, local_steps=5),
        "FedLin": fs.FedLin(step_size=0.05, local_steps=5, correction_gradients="minibatch"),
        "half": fs.Scaffold(step_size=0.05, local_steps=5, participation=0.5),
    }
    found = compare(problem(), methods, **budget, **SETTINGS)
    assert {curve.name: curve.mse.shape[1] - 1 for curve in found} == rounds
    for curve in found:
        assert curve.gradients.shape == curve.vectors.shape == curve.mean.shape


def test_proxskip_is_held_to_its_mean_number_of_gradients() -> None:
    method = fs.ProxSkip(step_size=0.05, communication_probability=0.2)
    (curve,) = compare(problem(), {"it": method}, gradients=2000, **SETTINGS)
    assert 1950 < curve.gradients[-1] <= 2000


def test_stopping_early_changes_no_cost() -> None:
    targets = (0.15, 0.1, 0.06, 0.04)
    limited = compare(problem(), GRID, rounds=100, targets=targets, **SETTINGS)
    full = compare(problem(), GRID, rounds=200, **SETTINGS)  # a target at round 100 must be kept until 200
    assert cheapest(limited, targets) == cheapest(full, targets)
    assert sum(c.mse.size for c in limited) < 0.5 * sum(c.mse.size for c in full)
    reached = [cost.rounds for cost in cheapest(limited, targets)]
    assert None not in reached[:6]
    assert len(set(reached)) > 4


def test_the_budget_is_for_reaching_a_target_not_for_keeping_it() -> None:
    method = {"it": fs.Scaffold(step_size=0.025, local_steps=1)}

    def rounds(budget: int) -> int | None:
        return cheapest(compare(problem(), method, rounds=budget, targets=[0.1], **SETTINGS), [0.1])[0].rounds

    needed = rounds(300)
    assert needed is not None
    assert needed > 5
    assert rounds(needed) == needed
    assert rounds(needed - 1) is None


def test_divergence_is_recorded() -> None:
    methods: dict[str, list[Method]] = {"it": [fs.Scaffold(step_size=g, local_steps=50) for g in (50.0, 0.01)]}
    wild, tame = compare(problem(), methods, rounds=50, targets=[1e-9], **SETTINGS)
    assert wild.diverged
    assert not tame.diverged
    assert np.isfinite(tame.mse).all()


def test_cells_are_used_again(tmp_path: Path) -> None:
    once = compare(problem(), GRID, rounds=30, targets=[1e-2], cells=tmp_path, **SETTINGS)
    files = {file: file.stat().st_mtime_ns for file in tmp_path.iterdir()}
    assert len(files) == 24
    more: dict[str, list[Method]] = {
        **GRID,
        "proxskip": [fs.ProxSkip(step_size=0.1, communication_probability=0.5)],
    }
    again = compare(problem(), more, rounds=30, targets=[1e-2], cells=tmp_path, **SETTINGS)
    assert {file: file.stat().st_mtime_ns for file in files} == files
    assert len(list(tmp_path.iterdir())) == 25
    for a, b in zip(once, again, strict=False):
        assert_same(a, b)


def test_a_damaged_cell_is_computed_anew(tmp_path: Path) -> None:
    methods = {"it": fs.Scaffold(step_size=0.1, local_steps=5)}
    (once,) = compare(problem(), methods, rounds=10, cells=tmp_path, **SETTINGS)
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:100])
    (again,) = compare(problem(), methods, rounds=10, cells=tmp_path, **SETTINGS)
    assert_same(once, again)
    assert file.stat().st_size > 100


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 6},
        {"batch_size": 3},
        {"repetitions": 2},
        {"engine": "reference"},
        {"sampling": "without_replacement"},
    ],
)
def test_other_settings_are_other_cells(tmp_path: Path, change: dict[str, Any]) -> None:
    methods = {"it": fs.Scaffold(step_size=0.1, local_steps=5)}
    for settings in (SETTINGS, SETTINGS | change):
        compare(problem(), methods, rounds=10, cells=tmp_path, **settings)
    assert len(list(tmp_path.iterdir())) == 2


def assert_same(a: Curve, b: Curve) -> None:
    assert (a.name, a.method, a.n_clients, a.diverged) == (b.name, b.method, b.n_clients, b.diverged)
    for one, other in ((a.mse, b.mse), (a.gradients, b.gradients), (a.vectors, b.vectors)):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs a budget"),
        ({"rounds": 0}, "rounds must be"),
        ({"gradients": -1.0}, "gradients must be"),
        ({"rounds": 1, "targets": [0.0]}, "target must be"),
        ({"rounds": 1, "repetitions": 0}, "repetitions must be"),
        ({"rounds": 1, "seed": -1}, "seed must be"),
        ({"rounds": 1, "methods": {}}, "by name"),
        ({"rounds": 1, "methods": {"a": []}}, "no candidates"),
        ({"rounds": 1, "methods": {"a": fs.Scaffold(step_size=0.1, local_steps=(1, 2))}}, "local_steps has 2"),
        ({"rounds": 1, "methods": {"a": fs.Scaffold(step_size=0.1, local_steps=1, cohort=9)}}, "cohort=9"),
    ],
)
def test_refusals(options: dict[str, Any], message: str) -> None:
    methods = options.pop("methods", {"it": fs.Scaffold(step_size=0.1, local_steps=5)})
    with pytest.raises(fs.InvalidInput, match=message):
        compare(problem(), methods, **(SETTINGS | options))


def test_smaller_problems_are_parts_of_the_largest() -> None:
    found = nested_problems("regression", [4, 10, 2], seed=1)
    assert list(found) == [2, 4, 10]
    whole = fs.problems.paper("regression", n_clients=10, seed=1)
    assert found[10].fingerprint() == whole.fingerprint()
    assert found[4].fingerprint() == whole.subset([0, 1, 5, 6]).fingerprint()
    with pytest.raises(fs.InvalidInput, match="even"):
        nested_problems("regression", [3])
