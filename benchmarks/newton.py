"""Scaffold against federated Newton by the number of coefficients: rounds and bits to a relative error of 1e-3.

`python -m benchmarks.newton [--quick]`. Logistic regression with full local gradients on ten clients of 400
records whose features have standard deviations from 1 to 1/√10; each method with the best settings of a grid.
"""

import numpy as np
from rich.console import Console
from rich.table import Table

import fedscaffold as fs
from benchmarks import measured
from fedscaffold.benchmarking import FedNewton, compare
from fedscaffold.core.random.stream import Batches

CLIENTS, RECORDS, RELATIVE = 10, 400, 1e-3


def measure(dim: int) -> dict[str, dict[str, float]]:
    """Rounds, and thousands of bits per client, of the cheapest candidate in rounds."""
    rng = np.random.default_rng(dim)
    scales = np.linspace(1.0, 0.1**0.5, dim)
    centres = 0.3 * rng.normal(size=(CLIENTS, 1, dim))
    X = scales * (rng.normal(size=(CLIENTS, RECORDS, dim)) + centres)
    margins = X @ rng.normal(size=dim) / np.sqrt(dim) + 0.3 * rng.normal(size=(CLIENTS, 1))
    y = (rng.random((CLIENTS, RECORDS)) < 1.0 / (1.0 + np.exp(-2.0 * margins))).astype(float)
    problem = fs.problems.Logistic(X, y, l2=0.01)
    largest = 1.0 / problem.smoothness(Batches())
    candidates = [
        fs.Scaffold(step_size=factor * largest, local_steps=steps)
        for steps in (4, 16, 64, 256)
        for factor in (1.0, 0.5, 0.25)
    ]
    target = RELATIVE**2 * float(np.square(problem.optimum()).sum())
    comparison = compare(
        problem, {"scaffold": candidates, "newton": FedNewton()}, rounds=300, targets=[target], repetitions=1,
        progress=False,
    )  # fmt: skip
    found = {}
    for cost in comparison.costs:
        if cost.cheapest_in == "rounds":
            assert cost.rounds is not None
            assert cost.bits is not None
            found[cost.name] = {"rounds": cost.rounds, "kilobits": cost.bits / 1000.0}
    return found


def main() -> None:
    """Measure, print and keep the figures."""
    options = measured.parser(__doc__).parse_args()
    figures = {f"d{dim}": measure(dim) for dim in ((2, 5) if options.quick else (2, 5, 10, 20, 50, 100, 200))}
    table = Table("coefficients", "Scaffold: rounds", "kbit", "Newton: rounds", "kbit")
    for name, row in figures.items():
        cells = [f"{row[each][what]:,.0f}" for each in ("scaffold", "newton") for what in ("rounds", "kilobits")]
        table.add_row(name[1:], *cells)
    Console().print(table)
    measured.save("newton", figures, options)


if __name__ == "__main__":
    main()
