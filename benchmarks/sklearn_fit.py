"""Where the time of an estimator's fit goes: breast cancer, ten skewed clients, everything on "auto".

Processor seconds of the whole fit, the least of several, and the shares of finding the pooled optimum, planning,
the run's local steps and closing.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from sklearn.datasets import load_breast_cancer

from benchmarks.measured import parser, save
from fedscaffold.data import partition
from fedscaffold.problems import Logistic
from fedscaffold.sklearn import FederatedLogisticRegression, running

PARTS = {"plan": (running, "plan_run"), "run": (running, "run"), "close": (running, "close")}


@contextmanager
def timed(owner: Any, name: str, spent: list[float]) -> Iterator[None]:
    """Add the processor seconds of calls of a function to a list."""
    function: Callable[..., Any] = getattr(owner, name)

    def measured(*args: Any, **options: Any) -> Any:
        begin = time.process_time()
        found = function(*args, **options)
        spent.append(time.process_time() - begin)
        return found

    with patch.object(owner, name, measured):
        yield


def main() -> None:
    """Fit several times, print the parts and save them."""
    options = parser(__doc__).parse_args()
    X, y = load_breast_cancer(return_X_y=True)
    clients = partition.feature_shift(X, n_clients=10, strength=0.9, seed=0)

    def fit() -> float:
        begin = time.process_time()
        FederatedLogisticRegression(random_state=0).fit(X, y, clients=clients)
        return time.process_time() - begin

    fit()  # compiles
    repeats = 3 if options.quick else 20
    seconds = min(fit() for _ in range(repeats))
    share = {}
    for part, (owner, name) in {**PARTS, "optimum": (Logistic, "_solve_optimum")}.items():
        shares = []
        for _ in range(repeats):
            spent: list[float] = []
            with timed(owner, name, spent):
                whole = fit()
            shares.append(sum(spent) / whole)
        share[part] = sorted(shares)[repeats // 2]
    print(f"{seconds:.3f} s; " + ", ".join(f"{part} {value:.0%}" for part, value in share.items()))
    save("sklearn_fit", {"seconds": seconds, "share": share}, options, note="processor seconds, two cores")


if __name__ == "__main__":
    main()
