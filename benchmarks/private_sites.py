"""Studies that protect whole sites: the error that their plans predict, and that of simulated sites."""

from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import fedscaffold as fs
from benchmarks import measured
from fedscaffold.data.public import LIMIT, PublicTarget
from fedscaffold.privacy.grid import clipped, discrete_gaussian
from fedscaffold.privacy.plan import PrivacySettings, PrivatePlan, plan_budget

SITES = (30, 100, 300, 1000)
DIFFERENCES = (0.1, 0.3, 1.0)
BUDGET, DELTA, L2, FEATURES, RUNS = 4.0, 1e-4, 0.01, 5, 5


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


def trained(problem: Any, plan: PrivatePlan) -> Any:
    """Return θ of a study with secure sums, whose sites add clipped mean gradients with parts of the noise."""
    theta = velocity = np.zeros(problem.dim)
    rows, starts = np.arange(problem.n_records), problem.offsets[:-1]
    for _ in range(plan.rounds):
        sums = np.add.reduceat(problem.gradients_of_rows(theta, rows), starts, axis=0)
        noise = discrete_gaussian(plan.noise, sums.size).reshape(sums.shape)
        total = (clipped(sums / problem.sizes[:, None], plan.clip) + noise).sum(axis=0)
        theta, velocity = plan.step(theta, velocity, total, problem.penalty)
    return theta


def errors(n_sites: int, difference: float, populations: int) -> dict[str, float]:
    """Predicted and measured error, in units of the coefficients' length; the median over populations."""
    plan = plan_budget(
        PublicTarget(kind="logistic", n_classes=2), (0,) * FEATURES, PrivacySettings(epsilon=BUDGET, delta=DELTA),
        units=n_sites, sites=n_sites, l2=L2, protect="sites", honest=n_sites - -(-n_sites // 3) + 1,
    )  # fmt: skip
    found = []
    for seed in range(populations):
        problem = population(n_sites, difference, seed)
        best = problem.optimum()
        squares = [np.square(trained(problem, plan) - best).sum() for _ in range(RUNS)]
        found.append(np.sqrt(np.mean(squares) / np.square(best).sum()))
    assert plan.predicted_error is not None
    return {
        "predicted": plan.predicted_error,
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
