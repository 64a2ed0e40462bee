"""Problems that tests of plans share."""

from typing import Any

import numpy as np

import fedscaffold as fs
from fedscaffold.core.types import Array

Problem = fs.problems.Ridge | fs.problems.Logistic


def mixed(
    kind: type[Problem], seed: int, *, n_clients: int, dim: int, equal: bool = True, l2: float = 0.05
) -> Problem:
    """Build clients that differ in scale, model and, unless equal, in size and weight."""
    rng = np.random.default_rng(seed)
    sizes = np.full(n_clients, 60) if equal else rng.integers(20, 120, size=n_clients)
    X: list[Array] = [rng.normal(size=(n, dim)) * rng.uniform(0.5, 1.5, size=dim) for n in sizes]
    scores: list[Array] = [x @ rng.normal(size=dim) + rng.normal(size=len(x)) for x in X]
    y = scores if kind is fs.problems.Ridge else [np.where(score > 0, 1.0, -1.0) for score in scores]
    return kind(X, y, l2=l2, weights=None if equal else sizes)


def simulated_share(problem: Any, plan: fs.Plan, repetitions: int) -> tuple[float, float]:
    """Return the mean squared error of runs over the target, or else the prediction, and its standard error."""
    record: Any = ("mse",) if plan.after is None else (fs.simulation.TailAverage(after=plan.after),)
    trace = fs.run(
        problem, plan.method, rounds=plan.rounds, batch_size=plan.batch_size, sampling=plan.sampling,
        repetitions=repetitions, record=record, privacy=plan.privacy, seed=7,
    )  # fmt: skip
    last = plan.after is None
    errors = trace.mse[:, -1] if last else np.square(trace.average - problem.optimum()).sum(axis=1)
    errors = errors / (plan.target_mse or plan.predicted_mse)
    return float(errors.mean()), float(errors.std() / np.sqrt(repetitions))
