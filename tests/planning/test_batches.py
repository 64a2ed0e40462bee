"""Batch sizes for tables, by predicted time, and the measured costs that predictions rest on."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedscaffold import InvalidInput, plan, problems
from fedscaffold.cli.prepare import prepare_problem
from fedscaffold.data import from_frame
from fedscaffold.models import FitSettings
from fedscaffold.planning.batches import (
    DRAWN_ROW_SECONDS,
    NUMBER_SECONDS,
    ROUND_SECONDS,
    ROW_SECONDS,
    automatic_batch,
    candidate_batches,
    costs_in_seconds,
    fastest_plan,
)


def test_small_clients_take_all_rows() -> None:
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
    rare = {**goal, "target_mse": prepare_problem(problem, FitSettings(tolerance=1e-4)).target_mse}
    assert fastest_plan(prepared.problem, [None, 64, 512], **rare).batch_size is None  # out of reach for batches
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
    assert prepared.aim == pytest.approx(0.005)
