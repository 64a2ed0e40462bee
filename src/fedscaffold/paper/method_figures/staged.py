"""Stages against fixed step sizes: squared error by round, and by fixed step size at the end.

``python -m benchmarks.staged`` in the source tree measures the table and draws the figure of the docs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedscaffold.core.types import Array
from fedscaffold.methods import FedAvg, Scaffold
from fedscaffold.problems import Logistic, Ridge, paper
from fedscaffold.reports.stages import StagesPanel, draw
from fedscaffold.simulation.run_method import run
from fedscaffold.simulation.stages.staged import Stage, staged

HALVINGS = range(11)
LAST = 10  # rounds over which final errors are averaged
N_CLIENTS, L2, BATCH_SIZE, SEEDS = 20, 0.1, 10, 8
METHODS = (Scaffold(step_size=0.1, local_steps=20), FedAvg(step_size=0.1, local_steps=20))
ROUNDS = 1000


@dataclass(frozen=True)
class Comparison:
    """Squared errors (runs, rounds + 1): of staged runs, each with its own stages, and of fixed step sizes."""

    stages: list[tuple[Stage, ...]]
    staged: Array
    fixed: dict[float, Array]

    @property
    def best(self) -> float:
        """The fixed step size with the smallest final error: hindsight."""
        return min(self.fixed, key=lambda gamma: final(self.fixed[gamma]))

    @property
    def ratio(self) -> float:
        """Final error of the staged runs over that of the best fixed step size."""
        return final(self.staged) / final(self.fixed[self.best])


def final(errors: Array) -> float:
    """Mean over runs and the last rounds."""
    return float(errors[:, -LAST:].mean())


def compare(problem: Ridge | Logistic, method: Any, *, rounds: int, batch_size: int, seeds: int) -> Comparison:
    """Single staged runs from the method's γ, against γ, γ/2, γ/4, ... with as many repetitions."""
    common: dict[str, Any] = {"rounds": rounds, "batch_size": batch_size, "progress": False}
    runs = [staged(problem, method, seed=seed, **common) for seed in range(seeds)]
    gammas = [method.step_size / 2**k for k in HALVINGS]
    return Comparison(
        stages=[each.stages for each in runs],
        staged=np.concatenate([each.trace.mse for each in runs]),
        fixed={g: run(problem, replace(method, step_size=g), repetitions=seeds, **common).mse for g in gammas},
    )


def comparisons(rounds: int = ROUNDS, seeds: int = SEEDS) -> dict[str, Comparison]:
    """Both of the paper's problems with both methods, by names such as "Scaffold, ridge"."""
    found = {}
    for kind, title in (("regression", "ridge"), ("classification", "logistic")):
        problem = paper(kind, n_clients=N_CLIENTS, l2=L2)  # type: ignore[arg-type]
        for method in METHODS:
            name = f"{type(method).__name__}, {title}"
            found[name] = compare(problem, method, rounds=rounds, batch_size=BATCH_SIZE, seeds=seeds)
    return found


def figures(found: Mapping[str, Comparison]) -> dict[str, dict[str, float]]:
    """Final errors: of the first step size, of the best fixed one, and in stages."""
    return {
        name.lower().replace(", ", "_"): {
            "first": final(each.fixed[max(each.fixed)]),
            "best_step_size": each.best,
            "best": final(each.fixed[each.best]),
            "staged": final(each.staged),
            "ratio": each.ratio,
        }
        for name, each in found.items()
    }


def draw_all(found: Mapping[str, Comparison], file: Path) -> None:
    """The figure of the docs: squared error by round, a panel for each comparison."""
    panels = []
    for name, each in found.items():
        means = {gamma: errors.mean(axis=0) for gamma, errors in each.fixed.items()}
        panels.append(StagesPanel(name, each.staged.mean(axis=0), each.stages[0], each.best, means))
    draw(panels, file)
