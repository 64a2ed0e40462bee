"""How far predictions are off, over random problems at the edges, and how well `reliability` says so.

`python -m benchmarks.predictions [--quick]`, slow. Ridge against the exact recursion of `ridge_moments`;
logistic regression against the simulations of `simulated_errors`.
"""

import json
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import fedscaffold as fs
from benchmarks import measured
from benchmarks.random_problems import Case, random_case
from benchmarks.simulated_errors import ROUNDS, simulated
from fedscaffold.core.errors import UnreliablePrediction

FIRST = 70_200  # seeds from here on, used neither to build the predictor nor to fit its reliability
ROUNDING = 1e-12  # of the squared distance at the start: what the exact recursion leaves where there is no noise


def ridge_case(case: Case) -> dict[str, Any]:
    """Relative errors of plateau and curve."""
    found, exact = case.predict(rounds=ROUNDS), case.exact()
    curve, plateau = exact.curve(ROUNDS), exact.plateau()
    floor = ROUNDING * curve[0]
    assert found.curve is not None
    return {
        "plateau": abs(found.mse - plateau) / (plateau + floor),
        "curve": float((np.abs(found.curve - curve) / (curve + floor)).max()),
        "neglected": found.reliability.neglected,
    }


def logistic_case(case: Case, folder: Path | None = None) -> dict[str, Any]:
    """Relative errors of plateau and curve, less what simulations leave open."""
    found, run = case.predict(rounds=ROUNDS), simulated(case, folder)
    assert found.curve is not None
    curve, errors = np.array(run.curve), np.array(run.curve_errors)
    floor = 1e-15 * run.curve[0]
    return {
        "settled": run.settled,
        "plateau": max(abs(found.mse - run.plateau) - 3.0 * run.plateau_error, 0.0) / (run.plateau + floor),
        "curve": float((np.maximum(np.abs(found.curve - curve) - 3.0 * errors, 0.0) / (curve + floor)).max()),
        "neglected": found.reliability.neglected,
    }


def outcome(kind: str, seed: int, of: Callable[[Case], dict[str, Any]]) -> dict[str, Any]:
    """What came of the problem of a seed: errors, or that it was refused or crashed; and the processor time."""
    case, begin = random_case(kind, seed), time.process_time()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UnreliablePrediction)
            found: dict[str, Any] = dict(of(case))
    except fs.InvalidInput:
        found = {"refused": True}
    except Exception as error:  # what a benchmark counts
        found = {"crashed": repr(error)}
    return {"kind": kind, "seed": seed, "seconds": time.process_time() - begin, **found}


def outcomes(
    kind: str, first: int, count: int, of: Callable[[Case], dict[str, Any]], kept: Path | None
) -> list[dict[str, Any]]:
    """The outcomes of all seeds; those in the file are not found again, and new ones are added to it."""
    rows = measured.KeptRows(kept, ("kind", "seed"))
    return [rows.row((kind, seed), partial(outcome, kind, seed, of)) for seed in range(first, first + count)]


def measure(
    kind: str, first: int, count: int, of: Callable[[Case], dict[str, Any]], kept: Path | None = None
) -> dict[str, Any]:
    """Shares of problems within given errors, flags against errors, and the slowest."""
    every = outcomes(kind, first, count, of, kept)
    rows = [row for row in every if "plateau" in row]
    limit = {"ridge": 0.005, "logistic": 0.05}[kind]
    settled = [row for row in rows if row.get("settled", True)]
    plateau, neglected = (np.array([row[key] for row in settled]) for key in ("plateau", "neglected"))
    curve = np.array([row["curve"] for row in rows])
    bad = plateau > 0.05
    return {
        "problems": count,
        "refused": sum("refused" in row for row in every),
        "crashed": sum("crashed" in row for row in every),
        "plateaus_not_simulated": len(rows) - len(settled),
        "plateaus_within": float((plateau <= limit).mean()),
        "curves_within": float((curve <= limit).mean()),
        "worst_plateau": float(plateau.max()),
        "bad_plateaus": int(bad.sum()),
        "bad_flagged": float((neglected[bad] > 5.0).mean()) if bad.any() else 1.0,
        "good_flagged": float((neglected[~bad] > 5.0).mean()),
        "slowest_seconds_with_reference": max(row["seconds"] for row in every),
    }


def main() -> None:
    """Measure, print and save."""
    made = measured.parser(__doc__)
    made.add_argument("--first", type=int, default=FIRST, help="the first seed")
    made.add_argument("--count", type=int, default=150, help="ridge problems, and half of the logistic ones")
    made.add_argument("--simulations", type=Path, help="folder in which simulations are kept, and found")
    made.add_argument(
        "--rows", type=Path, help="file of problems done, from which a stopped run of the same code goes on"
    )
    options = made.parse_args()
    count = 4 if options.quick else options.count
    logistic = partial(logistic_case, folder=options.simulations)
    figures = {
        "ridge": measure("ridge", options.first, count, ridge_case, options.rows),
        "logistic": measure("logistic", options.first, 2 * count, logistic, options.rows),
    }
    print(json.dumps(figures, indent=2))
    note = (
        "Random problems of fresh seeds, used neither to build the predictor nor to fit its reliability. "
        "Within: relative error at most "
        "0.5 % (ridge, against exact moments) or 5 % beyond three standard errors (logistic, against simulation). "
        "Plateaus that simulations do not reach at an affordable cost are not compared."
    )
    measured.save("predictions", figures, options, note=note)


if __name__ == "__main__":
    main()
