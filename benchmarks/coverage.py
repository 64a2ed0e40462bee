"""How often 95 % intervals hold the truth, in simulated federations whose clients are skewed.

`python -m benchmarks.coverage [--quick]`. Logistic regression without a penalty on about 800 rows, over clients of
very different sizes whose columns have means of their own. θ is the pooled optimum, or 20 % of a standard error
off in every coefficient, which intervals then take into account. A share is that of one coefficient over all
federations; its own standard error is 0.5 percentage points over 2,000.
"""

from typing import Any

import numpy as np
from rich.console import Console

import fedscaffold as fs
from benchmarks import measured
from fedscaffold.core.types import Array
from fedscaffold.inference import Coordinates, closing_sums, newton_step, summarise_sums

TRUTH = np.array([0.5, -0.5, 0.2])
ERRORS = (0.0, 0.2)
COVARIANCES = ("nonrobust", "HC0")
CLIENTS = (5, 100)


def federation(rng: np.random.Generator, clients: int) -> fs.problems.Logistic:
    """Clients of very different sizes whose columns have means of their own."""
    sizes = np.maximum(8, (800 * rng.dirichlet(np.full(clients, 0.5))).astype(int))
    tables = [np.column_stack([rng.normal(size=(n, 2)) + rng.normal(size=2), np.ones(n)]) for n in sizes]
    y = [(rng.random(len(t)) < 1 / (1 + np.exp(-t @ TRUTH))) * 1.0 for t in tables]
    return fs.problems.Logistic(tables, y, weights=[len(t) for t in y])


def coverage(clients: int, samples: int, *, seed: int = 7) -> dict[tuple[float, str], Array]:
    """Share of intervals that hold the truth, by error of optimisation and covariance, (coefficients,)."""
    rng, none = np.random.default_rng(seed), np.zeros(TRUTH.size)
    coordinates = Coordinates.of_features(("a", "b", "intercept"), n_intercepts=1)
    hits: dict[tuple[float, str], Array] = {(e, c): np.zeros(TRUTH.size) for e in ERRORS for c in COVARIANCES}
    for _ in range(samples):
        problem = federation(rng, clients)
        optimum = problem.optimum()
        sums = closing_sums(problem, optimum)
        spread = newton_step(sums, none).standard_errors
        assert spread is not None
        signs = rng.choice([-1.0, 1.0], size=TRUTH.size)
        for error in ERRORS:
            at = sums if error == 0.0 else closing_sums(problem, optimum + error * spread * signs)
            cov: Any
            for cov in COVARIANCES:
                found = summarise_sums(at, none, coordinates, cov=cov)
                hits[error, cov] += (found.low <= TRUTH) & (found.high >= TRUTH)
    return {key: count / samples for key, count in hits.items()}


def main() -> None:
    """Print and save the figures."""
    options = measured.parser(__doc__).parse_args()
    samples = 100 if options.quick else 2000
    figures: dict[str, Any] = {"federations": samples}
    for clients in CLIENTS:
        for (error, cov), shares in coverage(clients, samples).items():
            name = f"n{clients}_{cov}_error{round(100 * error)}"
            figures[name] = {"smallest": float(shares.min()), "largest": float(shares.max())}
            Console().print(f"{name}: {shares.min():.4f} to {shares.max():.4f}")
    measured.save(
        "coverage", figures, options, note="Shares of 95 % intervals that hold the truth, of 3 coefficients."
    )


if __name__ == "__main__":
    main()
