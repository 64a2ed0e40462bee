"""How far predictions are off, over random problems at the edges, and whether their standard errors are honest.

`python -m benchmarks.predictions [--quick] [--first SEED] [--count N] [--minutes M]`, slow.
Ridge against the exact recursion of `ridge_moments`; logistic regression against the simulations of
`simulated_errors`.
"""

import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import fedscaffold as fs
from benchmarks import measured
from benchmarks.random_problems import Case, random_case
from benchmarks.simulated_errors import ROUNDS, simulated

FIRST = 70_200  # seeds from here on, which were not used to build the predictor
ROUNDING = 1e-12  # of the squared distance at the start: what the exact recursion leaves where there is no noise


def ridge_case(case: Case) -> dict[str, Any]:
    """Return the relative errors of plateau and curve."""
    found, exact = case.predict(rounds=ROUNDS), case.exact()
    curve, plateau = exact.curve(ROUNDS), exact.plateau()
    floor = ROUNDING * curve[0]
    assert found.curve is not None
    return {
        "plateau": abs(found.mse - plateau) / (plateau + floor),
        "curve": float((np.abs(found.curve - curve) / (curve + floor)).max()),
    }


def logistic_case(case: Case, folder: Path | None = None) -> dict[str, Any]:
    """Return how far plateau and curve are from simulations, in standard errors of both and relative to them."""
    begin = time.process_time()
    found = case.predict(rounds=ROUNDS)
    seconds, run = time.process_time() - begin, simulated(case, folder)
    assert found.curve is not None
    assert found.curve_error is not None
    error = np.hypot(found.standard_error, run.plateau_error) + 1e-15 * run.curve[0]
    curve, errors = np.array(run.curve), np.hypot(run.curve_errors, found.curve_error)
    return {
        "settled": run.settled,
        "plateau_errors": float(abs(found.mse - run.plateau) / error),
        "plateau": abs(found.mse - run.plateau) / (run.plateau + 1e-15 * run.curve[0]),
        "standard_error": found.standard_error / (found.mse or 1.0),
        "curve": float((np.abs(found.curve - curve) / (errors + 1e-12 * curve[0])).max()),
        "predicting": seconds,
    }


def outcome(kind: str, seed: int, of: Callable[[Case], dict[str, Any]]) -> dict[str, Any]:
    """Return what came of the problem of a seed: errors, or that it was rejected or crashed; and the time."""
    case, begin = random_case(kind, seed), time.process_time()
    try:
        found: dict[str, Any] = dict(of(case))
    except fs.InvalidInput as error:
        found = {"refused": str(error)}
    except Exception as error:  # what a benchmark counts
        found = {"crashed": repr(error)}
    return {"kind": kind, "seed": seed, "seconds": time.process_time() - begin, **found}


def outcomes(
    kind: str, first: int, count: int, of: Callable[[Case], dict[str, Any]], kept: Path | None, until: float
) -> list[dict[str, Any]]:
    """The outcomes of seeds until a time; those in the file are not found again, and new ones are added to it."""
    rows, found = measured.KeptRows(kept, ("kind", "seed")), list[dict[str, Any]]()
    for seed in range(first, first + count):
        if found and time.monotonic() > until:
            break
        found.append(rows.row((kind, seed), partial(outcome, kind, seed, of)))
    return found


def measure(
    kind: str,
    first: int,
    count: int,
    of: Callable[[Case], dict[str, Any]],
    kept: Path | None = None,
    until: float = np.inf,
) -> dict[str, Any]:
    """Return the shares of problems within given errors, and the slowest."""
    every = outcomes(kind, first, count, of, kept, until)
    rows = [row for row in every if "plateau" in row]
    settled = [row for row in rows if row.get("settled", True)]
    figures: dict[str, Any] = {
        "problems": len(every),
        "refused": sum("refused" in row for row in every),
        "crashed": sum("crashed" in row for row in every),
        "plateaus_not_simulated": len(rows) - len(settled),
        "worst_plateau": max(row["plateau"] for row in settled),
    }
    if kind == "ridge":
        within = {"plateaus_within": "plateau", "curves_within": "curve"}
        return figures | {
            name: float(np.mean([row[key] <= 0.005 for row in rows])) for name, key in within.items()
        }
    return figures | {
        "plateaus_within": float(np.mean([row["plateau_errors"] <= 3.0 for row in settled])),
        "curves_within": float(np.mean([row["curve"] <= 4.0 for row in rows])),  # the furthest of 30 rounds
        "median_standard_error": float(np.median([row["standard_error"] for row in rows])),
        "median_seconds": float(np.median([row["predicting"] for row in rows])),
        "slowest_seconds": max(row["predicting"] for row in rows),
    }


def main() -> None:
    """Measure, print and save."""
    made = measured.parser(__doc__)
    made.add_argument("--first", type=int, default=FIRST, help="the first seed")
    made.add_argument("--count", type=int, default=150, help="ridge problems, and half of the logistic ones")
    made.add_argument("--minutes", type=float, default=np.inf, help="begin no further problem after so long")
    made.add_argument("--simulations", type=Path, help="folder in which simulations are kept, and found")
    made.add_argument(
        "--rows", type=Path, help="file of problems done, from which a stopped run of the same code goes on"
    )
    options = made.parse_args()
    count, until = 4 if options.quick else options.count, time.monotonic() + 60.0 * options.minutes
    logistic = partial(logistic_case, folder=options.simulations)
    figures = {
        "ridge": measure("ridge", options.first, count, ridge_case, options.rows, until),
        "logistic": measure("logistic", options.first, 2 * count, logistic, options.rows, until),
    }
    print(json.dumps(figures, indent=2))
    note = (
        "Random problems of seeds that were not used to build the predictor. Within: relative error at most 0.5 % "
        "(ridge, against exact moments), or three standard errors of prediction and simulation (logistic, "
        "four for the furthest of 30 rounds of a curve). Plateaus that simulations do not reach at an affordable "
        "cost are not compared."
    )
    command = f"python -m benchmarks.predictions --first {options.first} --count {options.count}"
    measured.save("predictions", figures, options, note=note, command=command)


if __name__ == "__main__":
    main()
