"""Studies that protect whole sites: the error that plans predict from simulated sites, and that of other sites."""

from typing import Any

import numpy as np
from fedscaffold.models.private.sites import site_plan
from rich.console import Console
from rich.table import Table

import fedscaffold as fs
from benchmarks import measured
from fedscaffold.data.public import LIMIT, Bounds
from fedscaffold.privacy.settings import PrivacySettings

SITES = (30, 100, 300, 1000)
DIFFERENCES = (0.1, 0.3, 1.0)
BUDGET, DELTA, L2, FEATURES, RUNS = 4.0, 1e-4, 0.01, 5, 20


def population(n_sites: int, difference: float, seed: int) -> Any:
    """Sites of 30 to 300 rows whose columns have means, and whose coefficients have values, of their own."""
    rng = np.random.default_rng(seed)
    common = rng.normal(size=FEATURES)
    X, y = [], []
    for _ in range(n_sites):
        rows = int(np.exp(rng.uniform(np.log(30), np.log(300))))
        own = common + difference * np.linalg.norm(common) / np.sqrt(FEATURES) * rng.normal(size=FEATURES)
        x = np.clip(rng.normal(size=(rows, FEATURES)) + 0.3 * rng.normal(size=FEATURES), -LIMIT, LIMIT)
        X.append(np.column_stack([x, np.ones(rows)]))
        margin = x @ own + difference * rng.normal()
        y.append(np.where(rng.random(rows) < 1.0 / (1.0 + np.exp(-margin)), 1.0, -1.0))
    return fs.problems.Logistic(X, y, l2=L2, n_unpenalised=1, weights=np.ones(n_sites))


def errors(n_sites: int, difference: float, populations: int) -> dict[str, float]:
    """Predicted and measured error, in units of the coefficients' length; the median over populations."""
    columns: Any = {f"x{j}": (-LIMIT, LIMIT) for j in range(FEATURES)} | {"y": ("no", "yes")}
    bounds = Bounds.parse(columns, target="y", kind="logistic", categorical=())
    budget, threshold = PrivacySettings(epsilon=BUDGET, delta=DELTA), -(-2 * n_sites // 3)
    plan = site_plan(bounds, n_sites, budget, l2=L2, threshold=threshold)
    found = []
    for seed in range(populations):
        problem = population(n_sites, difference, seed)
        trace = fs.run(
            problem, plan.method, rounds=plan.rounds, privacy=plan.privacy, repetitions=RUNS, progress=False
        )
        found.append(np.sqrt(trace.mse[:, -1].mean() / np.square(problem.optimum()).sum()))
    assert plan.predicted_error is not None
    return {
        "predicted": float(np.sqrt(plan.predicted_error)),
        "measured": float(np.median(found)),
        "largest": float(np.max(found)),
    }


def main() -> None:
    """Measure, print and keep the figures."""
    options = measured.parser(__doc__).parse_args()
    sizes = SITES[:1] if options.quick else SITES
    table = Table("sites", "difference", "predicted", "measured", "largest of the populations")
    figures: dict[str, Any] = {}
    for n in sizes:
        for difference in DIFFERENCES:
            one = errors(n, difference, 2 if options.quick else 8)
            figures[f"sites_{n}_difference_{10 * difference:.0f}"] = one
            table.add_row(str(n), f"{difference:g}", *(f"{value:.3f}" for value in one.values()))
    Console().print(table)
    measured.save("private_sites", figures, options)


if __name__ == "__main__":
    main()
