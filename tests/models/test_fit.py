"""Fitting: the model is the pooled one to within the tolerance, and what is asked of it is done."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from fedscaffold import InvalidInput, Scaffold, plan, problems
from fedscaffold.data import from_frame, open_problem
from fedscaffold.data.encoded import EncodedRidge
from fedscaffold.models import fit
from fedscaffold.models.compare import run_fedavg
from fedscaffold.models.fit import run_fit
from fedscaffold.models.planning.batches import (
    DRAWN_ROW_SECONDS,
    NUMBER_SECONDS,
    ROUND_SECONDS,
    ROW_SECONDS,
    candidate_batches,
    costs_in_seconds,
    fastest_plan,
)
from fedscaffold.models.planning.planned import (
    FitSettings,
    automatic_batch,
    plan_fit,
    prepare_problem,
)
from fedscaffold.models.planning.target import standardize_target
from fedscaffold.problems.glm import Glm
from tests.hospitals import cancer, diabetes, wine, written

L2 = 0.01


def test_ridge_comes_as_close_to_scikit_learns_pooled_model_as_was_asked(tmp_path: Path) -> None:
    frame = diabetes()
    problem = open_problem(written(frame, tmp_path / "d.csv"), target="target", client="hospital", l2=L2)
    features = list(frame.columns[:10])
    pooled = make_pipeline(StandardScaler(), Ridge(alpha=L2 * len(frame))).fit(frame[features], frame.target)
    found = fit(problem, settings=FitSettings(tolerance=1e-4))
    assert found.relative_distance <= 1e-4
    scale = frame[features].std(ddof=0).to_numpy()
    own = np.array(found.model.equations[0].coefficients)
    assert found.model.encoding.names == tuple(features)
    wanted = pooled[-1].coef_
    assert np.linalg.norm(own * scale - wanted) <= 1.1e-4 * np.linalg.norm(wanted)
    np.testing.assert_allclose(found.model.predict(frame), pooled.predict(frame[features]), atol=0.02)


def test_two_classes_are_scikit_learns(tmp_path: Path) -> None:
    frame = cancer().drop(columns="ward")
    problem = open_problem(written(frame, tmp_path / "c.parquet"), target="diagnosis", client="hospital", l2=L2)
    found = fit(problem, settings=FitSettings(tolerance=1e-3))
    features = list(frame.columns[:8])
    sk = LogisticRegression(C=1 / (L2 * len(frame)), tol=1e-8, max_iter=5000)
    pooled = make_pipeline(StandardScaler(), sk).fit(frame[features], frame.diagnosis)
    assert found.relative_distance <= 1e-3
    np.testing.assert_allclose(
        found.model.predict_proba(frame), pooled.predict_proba(frame[features]), rtol=0, atol=0.003
    )


def test_three_classes_are_scikit_learns(tmp_path: Path) -> None:
    frame = wine()
    problem = open_problem(written(frame, tmp_path / "w.csv"), target="target", client="hospital", l2=0.1)
    found = fit(problem, settings=FitSettings(tolerance=1e-3))
    features = list(frame.columns[:13])
    sk = LogisticRegression(C=1 / (0.1 * len(frame)), tol=1e-8, max_iter=5000)
    pooled = make_pipeline(StandardScaler(), sk).fit(frame[features], frame.target)
    np.testing.assert_allclose(
        found.model.predict_proba(frame), pooled.predict_proba(frame[features]), rtol=0, atol=0.003
    )


def test_where_the_targets_zero_lies_does_not_matter() -> None:
    frame = diabetes()
    found = []
    for shift, scale in ((0.0, 1.0), (1e6, 1e-3)):
        moved = frame.assign(target=shift + scale * frame.target)
        problem = from_frame(moved, target="target", client="hospital", l2=L2, standardize=True, intercept=True)
        found.append((fit(problem).model.predict(moved) - shift) / scale)
    np.testing.assert_allclose(found[0], found[1], atol=1e-4)


def test_the_standardize_targets_optimum_is_the_same_one() -> None:
    problem = from_frame(diabetes(), target="target", client="hospital", l2=L2, standardize=True, intercept=True)
    assert isinstance(problem, EncodedRidge)
    other, mean, deviation = standardize_target(problem)
    back = other.optimum() * deviation
    back[-1] += mean
    np.testing.assert_allclose(back, problem.optimum(), rtol=1e-9)
    assert other.loss(other.optimum()) * deviation**2 == pytest.approx(problem.loss(problem.optimum()), rel=1e-9)


def test_a_plan_that_does_not_suffice_is_prolonged_and_only_then() -> None:
    problem = from_frame(
        cancer(), target="diagnosis", client="hospital", kind="logistic", l2=L2, standardize=True, intercept=True
    )
    settings = FitSettings()
    task = plan_fit(problem, settings)
    assert task.plan is not None
    optimist = replace(task, rounds=max(1, task.rounds * 3 // 4))
    found = run_fit(optimist, settings)
    tried = [math.ceil(optimist.rounds * (1 + k / 4)) for k in range(5)]
    longest = run_fit(replace(optimist, rounds=tried[-1]), FitSettings(rounds=tried[-1])).trace.mse[0]
    assert found.trace.rounds == next(t for t in tried if longest[t] <= task.target_mse)
    assert found.relative_distance <= task.aim
    assert optimist.rounds < found.trace.rounds <= 2 * optimist.rounds
    given = run_fit(optimist, FitSettings(rounds=optimist.rounds))
    assert given.trace.rounds == optimist.rounds
    np.testing.assert_array_equal(given.trace.mse[0], found.trace.mse[0, : optimist.rounds + 1])
    assert run_fit(task, settings).trace.rounds >= task.rounds


def test_a_prolonged_run_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    problem = from_frame(
        cancer(), target="diagnosis", client="hospital", kind="logistic", l2=L2, standardize=True, intercept=True
    )
    settings = FitSettings()
    task = plan_fit(problem, settings)
    optimist = replace(task, rounds=max(1, task.rounds * 3 // 4))
    whole = run_fit(optimist, settings, checkpoint=tmp_path / "a.npz")
    again = run_fit(optimist, settings, checkpoint=tmp_path / "a.npz")
    np.testing.assert_array_equal(whole.theta, again.theta)
    assert again.trace.rounds == whole.trace.rounds > optimist.rounds


def test_what_is_given_is_not_planned() -> None:
    problem = from_frame(diabetes(), target="target", client="hospital", l2=L2, standardize=True, intercept=True)
    task = plan_fit(problem, FitSettings(step_size=0.01, local_steps=7, rounds=3, batch_size=5))
    assert task.plan is None
    assert (task.method, task.rounds, task.batch_size) == (Scaffold(step_size=0.01, local_steps=7), 3, 5)
    planned = plan_fit(problem, FitSettings())
    slow = plan_fit(problem, FitSettings(step_size=planned.method.step_size / 3))
    assert slow.rounds == pytest.approx(3 * planned.rounds, abs=1.5)
    assert plan_fit(problem, FitSettings(local_steps=9)).method.local_steps == 9


def test_rows_per_step() -> None:
    frame = diabetes()
    problem = from_frame(frame, target="target", client="hospital", standardize=True, intercept=True)
    assert FitSettings().batch_for(problem) is None
    assert FitSettings(batch_size=3).batch_for(problem) == 3
    big = from_frame(frame.loc[np.arange(4000) % len(frame)], target="target", client="hospital", intercept=True)
    assert FitSettings().batch_for(big) == 64
    assert FitSettings(batch_size=None).batch_for(big) is None
    assert automatic_batch(np.array([512, 512])) is None  # 512 rows on average are still cheap
    assert automatic_batch(np.array([512, 513])) == 64


def test_the_batch_of_the_least_predicted_time_is_chosen() -> None:
    rng = np.random.default_rng(0)
    n = 8000
    frame = pd.DataFrame(rng.normal(size=(n, 3)), columns=list("abc")).assign(site=np.arange(n) % 4)
    frame["y"] = frame.a - frame.b + rng.normal(size=n)
    problem = from_frame(frame, target="y", client="site", standardize=True, intercept=True, l2="auto")
    assert candidate_batches(problem.sizes) == [None, 64, 512]
    prepared = prepare_problem(problem, FitSettings())
    goal: Any = {"optimum": prepared.optimum, "target_mse": prepared.target_mse}
    each = [fastest_plan(prepared.problem, [size], **goal) for size in (None, 64, 512)]
    best = each[int(np.argmin([one.plan.cost for one in each]))].batch_size
    assert fastest_plan(prepared.problem, [None, 64, 512], **goal).batch_size == best
    assert plan_fit(problem, FitSettings()).batch_size == best
    assert plan_fit(problem, FitSettings(batch_size=64)).batch_size == 64
    rare = plan_fit(problem, FitSettings(tolerance=1e-4))  # out of reach for small batches: the others are taken
    assert rare.batch_size is None
    for size, found in each:
        costs = costs_in_seconds(prepared.problem, size)
        for H in (2**k for k in range(11)):  # no other number of local steps is predicted to be faster
            try:
                other = plan(
                    prepared.problem, batch_size=size, mode="first_order", max_local_steps=H, round_cost=1.0,
                    gradient_cost=0.0, **goal,
                )  # fmt: skip
            except InvalidInput:
                continue  # not within 2,000 rounds
            steps = other.method.uniform_local_steps
            assert found.cost <= other.rounds * (costs["round_cost"] + steps * costs["gradient_cost"])


def test_costs_are_those_that_were_measured() -> None:
    file = Path(__file__).parents[2] / "docs" / "measured" / "table_steps.json"
    figures = json.loads(file.read_text())["figures"]
    for name, seconds in (
        ("row_in_order", ROW_SECONDS), ("row_drawn", DRAWN_ROW_SECONDS), ("number", NUMBER_SECONDS),
    ):  # fmt: skip
        assert 1e9 * seconds == pytest.approx(figures["nanoseconds"][name], rel=0.1)
    assert pytest.approx(10.0 * figures["simulated_round_seconds"], rel=0.1) == ROUND_SECONDS
    problem = problems.Ridge(np.ones((4, 30, 5)), np.ones((4, 30)), l2=1.0)
    row = ROW_SECONDS + 5 * NUMBER_SECONDS
    assert costs_in_seconds(problem, None) == {"round_cost": ROUND_SECONDS, "gradient_cost": 120 * row}


def test_the_intercept_does_not_hide_how_far_coefficients_are() -> None:
    rng = np.random.default_rng(0)
    n = 3000
    frame = pd.DataFrame({"a": rng.normal(size=n), "b": rng.normal(size=n), "site": np.arange(n) % 3})
    frame["late"] = rng.random(n) < 1 / (1 + np.exp(4.5 - 0.5 * frame.a))
    problem = from_frame(
        frame, target="late", client="site", kind="logistic", standardize=True, intercept=True, l2="auto"
    )
    prepared = prepare_problem(problem, FitSettings())
    off = prepared.optimum * [1.1, 1.1, 1.0]  # every coefficient 10 % too large
    assert prepared.relative_distance(off) == pytest.approx(0.1)
    assert np.linalg.norm(off - prepared.optimum) < 0.02 * np.linalg.norm(prepared.optimum)
    found = fit(problem)
    assert found.relative_distance <= 0.005
    own, wanted = found.trace.theta[0, :2], prepared.optimum[:2]  # before the Newton steps
    assert found.relative_distance == pytest.approx(np.linalg.norm(own - wanted) / np.linalg.norm(wanted))
    assert found.relative_distances.shape == (found.trace.rounds + 1,)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tolerance": 0.0}, "tolerance must be a positive"),
        ({"tolerance": 1.0}, "below 1"),
        ({"batch_size": 0}, "batch_size must be"),
        ({"step_size": -1.0}, "step_size must be"),
        ({"local_steps": 0}, "local_steps must be"),
        ({"rounds": 0}, "rounds must be"),
        ({"seed": -1}, "seed must be"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, float], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        FitSettings(**settings)  # type: ignore[arg-type]


def test_a_constant_target_is_refused() -> None:
    problem = from_frame(diabetes().assign(target=3.0), target="target", client="hospital", intercept=True)
    with pytest.raises(InvalidInput, match="same in all rows"):
        plan_fit(problem, FitSettings())


def test_a_fit_looks_for_the_optimum_once() -> None:
    """The target, the plan, every run of a prolonged fit and FedAvg's run share it."""
    problem = from_frame(
        cancer(), target="diagnosis", client="hospital", kind="logistic", l2=L2, standardize=True, intercept=True
    )
    settings = FitSettings(tolerance=0.05)
    with patch.object(Glm, "optimum", autospec=True, side_effect=Glm.optimum) as asked:
        task = plan_fit(problem, settings)
        found = run_fit(replace(task, rounds=2), settings)
        run_fedavg(task, settings, rounds=2)
    assert found.trace.rounds > 2  # two were not enough: it ran more than once
    assert asked.call_count == 1
    assert found.trace.mse[0, -1] == np.square(found.trace.theta[0] - task.optimum).sum()
