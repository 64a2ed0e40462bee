"""Step sizes in stages against fixed ones: squared error by round, and by fixed step size at the end.

`python -m benchmarks.staged [--quick]` measures the table and draws the figure of
docs/explanation/methods/staged.md in less than a minute.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import measured
from fedscaffold.core.display import plain_grid
from fedscaffold.core.types import Array
from fedscaffold.methods import FedAvg, Scaffold
from fedscaffold.problems import Logistic, Ridge, paper
from fedscaffold.reports.figures import ERROR_LABEL, INK, legend_above, saved_panels
from fedscaffold.simulation.run_method import run
from fedscaffold.simulation.stages.staged import Stage, staged

METHODS = (Scaffold(step_size=0.1, local_steps=20), FedAvg(step_size=0.1, local_steps=20))


@dataclass(frozen=True)
class Comparison:
    """Squared errors (runs, rounds + 1): of staged runs, each with its own stages, and of fixed step sizes."""

    stages: list[tuple[Stage, ...]]
    staged: Array
    fixed: dict[float, Array]

    @property
    def best(self) -> float:
        """The fixed step size with the smallest final error, by hindsight."""
        return min(self.fixed, key=lambda gamma: final(self.fixed[gamma]))

    def figures(self) -> dict[str, float]:
        """Return final errors: of the first step size, of the best fixed one, and in stages."""
        best, in_stages = final(self.fixed[self.best]), final(self.staged)
        return {
            "first": final(self.fixed[max(self.fixed)]),
            "best_step_size": self.best,
            "best": best,
            "staged": in_stages,
            "ratio": in_stages / best,
        }


def final(errors: Array) -> float:
    """Return the mean over runs and the last ten rounds."""
    return float(errors[:, -10:].mean())


def compare(problem: Ridge | Logistic, method: Any, *, rounds: int, seeds: int) -> Comparison:
    """Run staged from the method's γ, against γ, γ/2, γ/4, ..., γ/1024 with as many repetitions."""
    common: dict[str, Any] = {"rounds": rounds, "batch_size": 10, "progress": False}
    runs = [staged(problem, method, seed=seed, **common) for seed in range(seeds)]
    gammas = [method.step_size / 2**k for k in range(11)]
    return Comparison(
        stages=[each.stages for each in runs],
        staged=np.concatenate([each.trace.mse for each in runs]),
        fixed={g: run(problem, replace(method, step_size=g), repetitions=seeds, **common).mse for g in gammas},
    )


def comparisons(rounds: int, seeds: int) -> dict[str, Comparison]:
    """Compare on both of the paper's problems with both methods, by names such as "Scaffold, ridge"."""
    found = {}
    for kind, title, second in (("regression", "ridge", 10), ("classification", "logistic", 2)):
        problem = paper(kind, n_clients=20, l2=0.1, informative=(2, second))  # type: ignore[arg-type]
        for method in METHODS:
            found[f"{type(method).__name__}, {title}"] = compare(problem, method, rounds=rounds, seeds=seeds)
    return found


def draw(found: Mapping[str, Comparison], file: Path) -> None:
    """Draw squared errors by round, a panel for each comparison; dotted lines where the step size was halved."""
    with saved_panels([file], 2, 2, width=9.0, height=6.4) as (figure, grid):
        for axis, (title, each) in zip(grid.ravel(), found.items(), strict=True):
            for after, _ in each.stages[0][1:]:
                axis.axvline(after, color=INK, lw=0.6, ls=":")
            means = {gamma: errors.mean(axis=0)[1:] for gamma, errors in each.fixed.items()}
            best, rounds = means.pop(each.best), np.arange(1, each.staged.shape[1])
            for errors in means.values():
                axis.loglog(rounds, errors, color="#BBBBBB", lw=0.9, label="other fixed step sizes")
            axis.loglog(rounds, best, color="#0072B2", lw=1.5, label="best fixed step size, by hindsight")
            axis.loglog(rounds, each.staged.mean(axis=0)[1:], color="#D55E00", lw=1.8, label="in stages")
            axis.set_title(f"{title}; best fixed γ = {each.best:.2g}", fontsize=10)
            axis.set(xlabel="round", ylabel=ERROR_LABEL)
            plain_grid(axis)
            axis.margins(x=0)
        legend_above(figure, grid[0, 0])


def main() -> None:
    """Measure, print, draw and save."""
    options = measured.parser(__doc__).parse_args()
    found = comparisons(rounds=50, seeds=2) if options.quick else comparisons(rounds=1000, seeds=8)
    numbers = {name.lower().replace(", ", "_"): each.figures() for name, each in found.items()}
    for name, row in numbers.items():
        print(name, ", ".join(f"{key} {value:.2g}" for key, value in row.items()))
    if not options.quick:
        draw(found, measured.ROOT / "docs" / "images" / "methods" / "staged.png")
    note = "Squared error, mean over the last ten rounds of eight single runs."
    measured.save("staged", numbers, options, note=note)


if __name__ == "__main__":
    main()
