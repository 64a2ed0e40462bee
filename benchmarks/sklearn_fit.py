"""Duration of estimators' fits on tables of three sizes, and their distance to scikit-learn's on the pooled rows.

Seconds of the fastest of several fits, numbers of exchanges, and the difference of the coefficients relative to
their norm.
"""

import time
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.preprocessing import StandardScaler

from benchmarks.measured import parser, save
from fedscaffold.sklearn import FederatedLogisticRegression, FederatedRidge

SIZES = {"small": (200, 10, 5), "medium": (20_000, 50, 100), "wide": (5_000, 2_000, 10)}  # rows, columns, clients


def table(n: int, d: int, n_clients: int) -> tuple[Any, Any, Any, Any]:
    """Return rows, amounts, labels and clients."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d))
    X[:, 1] += 0.5 * X[:, 0]
    margins = X @ rng.normal(size=d) / np.sqrt(d)
    clients = rng.integers(0, n_clients, size=n)
    return X, margins + rng.normal(size=n), margins + rng.logistic(size=n) > 0, clients


def measure(ours: Any, theirs: Any, X: Any, y: Any, clients: Any, repeats: int) -> dict[str, float]:
    """Return the figures of one estimator on one table."""
    seconds = []
    for _ in range(repeats):
        begin = time.perf_counter()
        ours.fit(X, y, clients=clients)
        seconds.append(time.perf_counter() - begin)
    scale = StandardScaler().fit(X)
    wanted = theirs.fit(scale.transform(X), y).coef_ / scale.scale_
    gap = float(np.linalg.norm(ours.coef_ - wanted) / np.linalg.norm(wanted))
    return {"seconds": min(seconds), "exchanges": int(np.ravel(ours.n_iter_)[0]), "gap": gap}


def main() -> None:
    """Fit every table with both estimators, print the figures and save them."""
    options = parser(__doc__).parse_args()
    figures: dict[str, dict[str, dict[str, float]]] = {"ridge": {}, "logistic": {}}
    for name, size in SIZES.items():
        if options.quick and name != "small":
            continue
        X, amounts, labels, clients = table(*size)
        repeats = 2 if options.quick or name == "wide" else 10
        figures["ridge"][name] = measure(FederatedRidge(), Ridge(), X, amounts, clients, repeats)
        pooled = LogisticRegression(tol=1e-10, max_iter=10_000)
        figures["logistic"][name] = measure(FederatedLogisticRegression(), pooled, X, labels, clients, repeats)
        print(name, figures["ridge"][name], figures["logistic"][name])
    save("sklearn_fit", figures, options)


if __name__ == "__main__":
    main()
