"""Newton's method against Scaffold in a fit of one process: which is faster, by number of coefficients.

`python -m benchmarks.trainers [--quick]`. Logistic regression on 20,000 rows of 20 clients that differ, with 5 to
500 standard normal columns, penalty 1/rows. Both trainers stop at the same certified tolerance, 5 % of standard
errors, and end with the same closing sums. Seconds are the least of a few turns, in which the two take turns.
"""

import time
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks import measured
from fedscaffold.data.encoded import EncodedProblem
from fedscaffold.inference.training import Trained, train
from fedscaffold.models.fit import LocalSums
from fedscaffold.problems import Logistic

ROWS, CLIENTS = 20_000, 20
COLUMNS = (5, 20, 50, 100, 200, 500)


def problem_of(columns: int, rows: int) -> Any:
    """Return a logistic problem; the columns' means and the intercept differ between clients."""
    rng = np.random.default_rng(columns)
    x = rng.normal(size=(CLIENTS, rows // CLIENTS, columns)) + 0.3 * rng.normal(size=(CLIENTS, 1, columns))
    x = np.concatenate([x, np.ones((*x.shape[:2], 1))], axis=2)
    theta = np.append(rng.normal(size=columns) / np.sqrt(columns), -0.5)
    y = rng.random(x.shape[:2]) < 1.0 / (1.0 + np.exp(-x @ theta))
    return Logistic(x, y, l2=1.0 / rows, n_unpenalised=1)


def timed(problem: EncodedProblem | Any, trainer: Any) -> tuple[float, Trained]:
    """Return the seconds of one training, and its result."""
    sums = LocalSums(problem, names=(), n_intercepts=1)
    begin = time.perf_counter()
    found = train(sums, trainer=trainer)
    return time.perf_counter() - begin, found


def steps_and_sums(sums: LocalSums) -> tuple[float, float]:
    """Return the seconds of closing sums and of one local step of all clients."""
    theta, steps = np.zeros(sums.dim), 16
    for _ in range(2):  # the first turn prepares what both need once
        begin = time.perf_counter()
        sums.closing(theta, scores=False)
        middle = time.perf_counter()
        sums.scaffold_round(theta, 0.01, steps)
        end = time.perf_counter()
    return middle - begin, (end - middle) / steps


def main() -> None:
    """Print and save the figures."""
    parser = measured.parser(__doc__)
    parser.add_argument("--turns", type=int, default=2, help="trainings of each kind, of which the fastest counts")
    options = parser.parse_args()
    rows, columns = (2_000, COLUMNS[:3]) if options.quick else (ROWS, COLUMNS)
    cases = []
    for width in columns:
        problem = problem_of(width, rows)
        least: dict[str, tuple[float, Trained]] = {}
        for _ in range(options.turns):
            for trainer in ("newton", "scaffold"):
                seconds, found = timed(problem, trainer)
                if trainer not in least or seconds < least[trainer][0]:
                    least[trainer] = (seconds, found)
        (fast, newton), (slow, scaffold) = least["newton"], least["scaffold"]
        assert newton.reached
        assert scaffold.reached
        problem_sums = LocalSums(problem, names=(), n_intercepts=1)
        hessian, step = steps_and_sums(problem_sums)
        cases.append(
            {
                "coefficients": width + 1, "newton_seconds": fast, "scaffold_seconds": slow,
                "newton_exchanges": newton.rounds, "scaffold_exchanges": scaffold.rounds,
                "steps_per_hessian": hessian / step,
            }
        )  # fmt: skip
        Console().print(cases[-1])
    figures = {
        "rows": rows, "clients": CLIENTS,         **{f"d{case['coefficients']}": case for case in cases},
    }  # fmt: skip
    note = f"Seconds of the fastest of {options.turns} trainings, in turns."
    measured.save("trainers", figures, options, note=note)


if __name__ == "__main__":
    main()
