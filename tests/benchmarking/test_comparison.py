"""Comparisons: same noise as plain runs, budgets kept, nothing lost by stopping early, costs, cells used again."""

import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

import fedscaffold as fs
from fedscaffold.benchmarking import FedNewton, compare
from fedscaffold.benchmarking.comparison import Cost, Curve, MethodComparison, holds_from
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.protocols import Method
from fedscaffold.core.types import Array
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
    np.testing.assert_array_equal(curve.values, trace.mse)
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
    assert {curve.name: curve.values.shape[1] - 1 for curve in found} == rounds
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
    assert limited.costs == MethodComparison(full.curves, targets).costs
    assert sum(c.values.size for c in limited) < 0.5 * sum(c.values.size for c in full)
    reached = [cost.rounds for cost in limited.costs]
    assert None not in reached[:6]
    assert len(set(reached)) > 4


def test_the_budget_is_for_reaching_a_target_not_for_keeping_it() -> None:
    method = {"it": fs.Scaffold(step_size=0.025, local_steps=1)}

    def rounds(budget: int) -> int | None:
        return compare(problem(), method, rounds=budget, targets=[0.1], **SETTINGS).costs[0].rounds

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
    assert np.isfinite(tame.values).all()


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
        {"record": "loss"},
    ],
)
def test_other_settings_are_other_cells(tmp_path: Path, change: dict[str, Any]) -> None:
    methods = {"it": fs.Scaffold(step_size=0.1, local_steps=5)}
    for settings in (SETTINGS, SETTINGS | change):
        compare(problem(), methods, rounds=10, cells=tmp_path, **settings)
    assert len(list(tmp_path.iterdir())) == 2


def assert_same(a: Curve, b: Curve) -> None:
    assert (a.name, a.method, a.n_clients, a.diverged) == (b.name, b.method, b.n_clients, b.diverged)
    for one, other in ((a.values, b.values), (a.gradients, b.gradients), (a.vectors, b.vectors)):
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
        ({"rounds": 1, "batch_size": "small"}, "batch_size must be a number, None for all records, or 'auto'"),
        ({"rounds": 1, "record": "average"}, "observer that records every round"),
        ({"rounds": 1, "record": "speed"}, "unknown observer"),
        ({"rounds": 1, "record": "loss", "targets": [np.nan]}, "targets must be finite"),
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


@dataclass(frozen=True)
class Norm:
    """Records ‖θ‖, or θ itself."""

    whole: bool = False
    name: str = field(default="norm", init=False)
    keep: Literal["every", "last"] = field(default="every", init=False)

    def watch(self, problem: Any) -> Any:
        return lambda round, theta, previous: theta if self.whole else np.linalg.norm(theta, axis=1)


def test_other_observers_than_squared_error() -> None:
    method = fs.Scaffold(step_size=0.1, local_steps=5)
    for record in ("loss", Norm()):
        found = compare(problem(), {"it": method, "newton": FedNewton()}, rounds=12, record=record, **SETTINGS)
        trace = fs.run(problem(), method, rounds=12, record=(record,), **SETTINGS)
        np.testing.assert_array_equal(found[0].values, trace.metrics[found[0].metric])
    level = float(found[0].mean.max())
    assert MethodComparison(found.curves, [level]).costs[0].rounds == 0
    assert "norm" in found.table()
    with pytest.raises(InvalidInput, match="one number per repetition"):
        compare(problem(), {"it": method}, rounds=2, record=Norm(whole=True), **SETTINGS)


def test_the_loss_needs_no_optimum(monkeypatch: pytest.MonkeyPatch) -> None:
    it = problem()
    monkeypatch.setattr(type(it), "optimum", lambda self: pytest.fail("the optimum was computed"))
    methods = {"it": fs.Scaffold(step_size=0.1, local_steps=5)}
    found = compare(it, methods, rounds=20, record="loss", targets=[0.99 * it.loss(np.zeros(it.dim))], **SETTINGS)
    assert found.costs[0].rounds is not None


@pytest.mark.parametrize(("rows", "batch"), [(20, None), (600, 64)])
def test_an_automatic_batch_is_small_if_clients_have_many_records(rows: int, batch: int | None) -> None:
    it = make("ridge", (rows, rows), 3)
    methods = {"it": fs.Scaffold(step_size=0.1, local_steps=5)}
    (auto,) = compare(it, methods, rounds=5, **{**SETTINGS, "batch_size": "auto"})
    (same,) = compare(it, methods, rounds=5, **{**SETTINGS, "batch_size": batch})
    np.testing.assert_array_equal(auto.values, same.values)


def test_several_problems_are_compared_one_by_one() -> None:
    both = [make("ridge", (12, 20), 3), problem()]
    methods = {"it": fs.Scaffold(step_size=0.1, local_steps=5)}
    found = compare(both, methods, rounds=5, **SETTINGS)
    assert [curve.n_clients for curve in found] == [2, 4]
    assert_same(found[1], compare(problem(), methods, rounds=5, **SETTINGS)[0])
    with pytest.raises(InvalidInput, match="different numbers of clients"):
        compare([both[0], both[0]], methods, rounds=5, **SETTINGS)


def test_nothing_but_a_figure_needs_matplotlib() -> None:
    code = """
import sys
sys.modules["matplotlib"] = None
import numpy as np, fedscaffold as fs
problem = fs.problems.Ridge(np.eye(4).reshape(2, 2, 4), np.ones((2, 2)), l2=0.1)
methods = {"it": fs.Scaffold(step_size=0.1, local_steps=2)}
found = fs.benchmarking.compare(problem, methods, rounds=4, engine="reference", repetitions=1, progress=False)
print(found.table())
try:
    found.plot()
except fs.MissingDependency as error:
    print(error)
from fedscaffold.cli.main import app
app(["compare", "--method", "fedavg:step_size=0.1,local_steps=1", "--clients", "2", "--rounds", "2"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "figures need matplotlib" in done.stdout
    assert done.stdout.count("Best of each method") == 2


@pytest.mark.parametrize(
    ("mean", "target", "expected"),
    [
        ([4, 2, 1, 1, 1], 1.0, 2),
        ([4, 2, 1, 1], 1.0, None),  # not known yet to be kept until round 4
        ([4, 2, 1, 9, 9, 1, 1, 1, 1, 1, 1], 1.0, 5),  # below by chance at round 2
        ([4, 2, 1, 1.1, 0.8], 1.0, 2),  # above at round 3, below on average
        ([4, 2, 1, 1.1, 1.0], 1.0, None),  # above on average
        ([1, 5, 5], 1.0, 0),
        ([4, 3, 2, 2, 2], 1.0, None),
        ([4, 1, np.inf], 1.0, None),
    ],
)
def test_when_a_target_is_reached(mean: list[float], target: float, expected: int | None) -> None:
    assert holds_from(np.array(mean, dtype=np.float64), target) == expected


def curve(name: str, mean: list[float], steps: int, *, n: int = 10, diverged: bool = False) -> Curve:
    errors: Array = np.array(mean, dtype=np.float64)
    rounds = np.arange(errors.size, dtype=np.float64)
    return Curve(
        name=name, method={"local_steps": steps}, n_clients=n, values=np.stack([errors * 0.5, errors * 1.5]),
        gradients=steps * rounds, vectors=2 * rounds, bits=128 * rounds, diverged=diverged,
    )  # fmt: skip


def costs(curves: list[Curve]) -> list[Cost]:
    return MethodComparison(curves, [1.0]).costs


def test_the_cheapest_in_rounds_and_in_gradients() -> None:
    few_rounds = curve("a", [9, 1, 1, 1], 100)
    few_gradients = curve("a", [9, 9, 9, 1, 1, 1, 1], 10)
    other = curve("b", [9, 9, 9], 1)
    in_rounds, in_gradients, *none = costs([few_rounds, few_gradients, other])
    assert (in_rounds.rounds, in_rounds.gradients, in_rounds.vectors) == (1, 100.0, 2.0)
    assert (in_gradients.rounds, in_gradients.gradients, in_gradients.vectors) == (3, 30.0, 6.0)
    assert [cost.rounds for cost in none] == [None, None]
    assert [cost.name for cost in none] == ["b", "b"]


def test_equal_rounds_are_decided_by_gradients() -> None:
    assert costs([curve("a", [9, 1, 1], 100), curve("a", [9, 1, 1], 50)])[0].gradients == 50.0


def test_the_best_at_the_end_is_not_one_that_diverged() -> None:
    curves = [curve("a", [9, 0.1], 1, diverged=True), curve("a", [9, 3], 2), curve("a", [9, 4], 3)]
    assert [each.method["local_steps"] for each in MethodComparison(curves).best] == [2]


def test_figures_show_the_cheapest_curve_on_each_axis(tmp_path: Path) -> None:
    few_rounds, few_gradients = curve("a", [9, 1, 1, 1], 100), curve("a", [9, 9, 9, 1, 1, 1, 1], 10)
    found = MethodComparison([few_rounds, few_gradients], [1.0])
    shown = {cost: found.plot(cost=cost).get_lines()[0].get_xdata() for cost in ("rounds", "gradients")}
    np.testing.assert_array_equal(shown["rounds"], [1.0, 2.0, 3.0])
    np.testing.assert_array_equal(shown["gradients"], [10.0, 20.0, 30.0, 40.0, 50.0, 60.0])
    found.draw(tmp_path / "a.svg")
    for text in ("round", "gradients per client", "vectors per client"):
        assert text in (tmp_path / "a.svg").read_text()
    far = curve("a", [9, 9, 9], 1, n=20)  # no target is reached at N = 20, which is left out
    MethodComparison([few_rounds, far], [1.0]).draw(tmp_path / "a.svg")
    assert "N = 20" not in (tmp_path / "a.svg").read_text()
    with pytest.raises(InvalidInput, match="no method reached a target"):
        MethodComparison([few_rounds], [1e-9]).draw(tmp_path / "b.svg")


def test_newton_converges_quadratically_to_the_optimum_of_logistic_regression() -> None:
    it = make("logistic", l2=0.01)
    errors = np.linalg.norm(FedNewton().path(it, rounds=12) - it.optimum(), axis=1)
    assert errors[-1] < 1e-12
    small = (errors < 0.1) & (errors > 1e-7)
    first = int(np.flatnonzero(small)[0])
    assert errors[first + 1] < 10.0 * errors[first] ** 2


def test_a_newton_step_that_goes_too_far_is_taken_back() -> None:
    """Separable records with a tiny penalty: full Newton steps from zero overshoot in the second coordinate."""
    x = np.array([[[0.1, 5.0], [0.2, -5.0], [8.0, 0.3], [-7.0, -0.2]]])
    it = fs.problems.Logistic(x, np.array([[1.0, 0.0, 1.0, 0.0]]), l2=1e-6)
    path = FedNewton().path(it, rounds=60)
    assert np.linalg.norm(path[-1] - it.optimum()) < 1e-6 * np.linalg.norm(it.optimum())


def test_costs_of_newton() -> None:
    it = make("ridge")
    found = compare(it, {"newton": FedNewton()}, rounds=5, targets=[1e-20], repetitions=2, batch_size=4)
    cost = found.costs[0]
    assert cost.rounds == 1  # a quadratic problem
    assert cost.bits == 64 * (it.dim * (it.dim + 1) / 2 + 2 * it.dim + 1)
    assert cost.gradients == pytest.approx(np.mean(it.sizes) / 4)
    with pytest.raises(InvalidInput, match="FedNewton needs the clients' Hessians"):
        compare(fs.problems.GarnetTD(n_clients=2, states=5, dim=2), {"newton": FedNewton()}, rounds=2)
