"""How far predictions are off, over random problems at the edges, and how well `reliability` says so.

`python -m benchmarks.predictions [--quick]`, slow. Ridge against the exact recursion of `ridge_moments`;
logistic regression against simulation, long enough for a standard error of about one percent.
"""

import json
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

import fedscaffold as fs
from benchmarks import measured
from benchmarks.random_problems import Case, random_case
from fedscaffold.core.errors import UnreliablePrediction
from fedscaffold.methods import Scaffold

ROUNDS = 30
WORK = 3e6  # local steps of clients in a simulation
FIRST = 10_000  # seeds from here on; failures among the first fifty led to repairs of the predictor


def ridge_case(case: Case) -> dict[str, float]:
    """Relative errors of plateau and curve."""
    found, exact = case.predict(rounds=ROUNDS), case.exact()
    curve, plateau = exact.curve(ROUNDS), exact.plateau()
    floor = 1e-15 * curve[0]
    assert found.curve is not None
    return {
        "plateau": abs(found.mse - plateau) / (plateau + floor),
        "curve": float((np.abs(found.curve - curve) / (curve + floor)).max()),
        "neglected": found.reliability.neglected,
    }


def logistic_case(case: Case) -> dict[str, float]:
    """Relative errors of plateau and curve, less what simulations leave open."""
    problem, method = case.problem, case.method
    found = case.predict(rounds=ROUNDS)
    assert found.curve is not None
    H, N, optimum = int(np.max(method.local_steps)), problem.n_clients, problem.optimum()
    slowest = float(np.linalg.eigvalsh(problem.hessian(optimum))[0])
    mixing = 1.0 / min(1.0, method.step_size * H * slowest)
    rounds = int(min(3000, 60 + 20 * mixing))
    options: dict[str, Any] = {
        "batch_size": case.batches.size,
        "sampling": case.batches.sampling,
        "progress": False,
    }
    ideal = -problem.client_gradients(optimum) if isinstance(method, Scaffold) else None
    settled = fs.run(
        problem,
        method,
        rounds=rounds,
        repetitions=int(np.clip(WORK / (rounds * N * H), 40, 4000)),
        theta0=optimum + found.bias,
        control_variates0=ideal,
        seed=1,
        **options,
    )
    level = settled.mse[:, int(min(rounds // 2, 10 + 5 * mixing)) :].mean(axis=1)
    way = fs.run(
        problem,
        method,
        rounds=ROUNDS,
        repetitions=int(np.clip(WORK / (ROUNDS * N * H), 100, 8000)),
        seed=2,
        **options,
    ).mse
    floor = 1e-15 * float(way[0, 0])
    return {
        "plateau": off(found.mse, level[:, None], floor)[0],
        "curve": float(off(found.curve, way, floor).max()),
        "neglected": found.reliability.neglected,
    }


def off(predicted: Any, values: Any, floor: float) -> Any:
    """Relative distance from a mean over repetitions, less three of its standard errors."""
    mean, error = values.mean(axis=0), values.std(axis=0) / np.sqrt(len(values))
    return np.maximum(np.abs(predicted - mean) - 3.0 * error, 0.0) / (mean + floor)


def measure(kind: str, count: int, of: Callable[[Case], dict[str, float]]) -> dict[str, Any]:
    """Shares of problems within given errors, flags against errors, and the slowest."""
    rows, refused, crashed, slowest = [], 0, 0, 0.0
    for seed in range(FIRST, FIRST + count):
        case = random_case(kind, seed)
        begin = time.process_time()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UnreliablePrediction)
                rows.append({"seed": seed, **of(case)})
        except fs.InvalidInput:
            refused += 1
        except Exception as error:  # what a benchmark counts
            crashed += 1
            print(seed, repr(error))
        slowest = max(slowest, time.process_time() - begin)
        print(json.dumps(rows[-1] if rows else {}), flush=True)
    limit = {"ridge": 0.005, "logistic": 0.05}[kind]
    plateau, curve, neglected = (np.array([row[key] for row in rows]) for key in ("plateau", "curve", "neglected"))
    bad = plateau > 0.05
    return {
        "problems": count,
        "refused": refused,
        "crashed": crashed,
        "plateaus_within": float((plateau <= limit).mean()),
        "curves_within": float((curve <= limit).mean()),
        "worst_plateau": float(plateau.max()),
        "bad_plateaus": int(bad.sum()),
        "bad_flagged": float((neglected[bad] > 5.0).mean()) if bad.any() else 1.0,
        "good_flagged": float((neglected[~bad] > 5.0).mean()),
        "slowest_seconds_with_reference": slowest,
    }


def main() -> None:
    """Measure, print and save."""
    made = measured.parser(__doc__)
    made.add_argument("--count", type=int, default=150, help="problems of each kind")
    options = made.parse_args()
    count = 4 if options.quick else options.count
    figures = {"ridge": measure("ridge", count, ridge_case), "logistic": measure("logistic", count, logistic_case)}
    print(json.dumps(figures, indent=2))
    note = (
        "Random problems; failures among some of them led to repairs of the predictor; fresh ones may do worse. "
        "Within: relative error at most "
        "0.5 % (ridge, against exact moments) or 5 % beyond three standard errors (logistic, against simulation)."
    )
    measured.save("predictions", figures, options, note=note)


if __name__ == "__main__":
    main()
