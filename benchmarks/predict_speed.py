"""Processor time of predictions and plans against those of an older source tree, in one run.

`python -m benchmarks.predict_speed OLD_SOURCE [--large]`, where OLD_SOURCE is the `src` folder of the older
tree. Old and new take turns, each measurement in a process of its own, which predicts twice and takes the
better; θ* is found before the clock starts.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks import measured

SCRIPT = """
import json, sys, time, warnings
warnings.simplefilter("ignore")
import numpy as np
import fedscaffold as fs
kind, n_clients, dim, wanted = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
if wanted == "private":
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n_clients, 200 * n_clients, dim)) + 0.3 * rng.normal(size=(n_clients, 1, dim))
    models = 2.0 / np.sqrt(dim) * (1.0 + 0.5 * rng.normal(size=(n_clients, dim)))
    y = np.einsum("cij,cj->ci", X, models) + rng.normal(size=X.shape[:2])
    made = fs.problems.Ridge if kind == "regression" else fs.problems.Logistic
    problem = made(X, y if kind == "regression" else np.sign(y), l2=0.01)
elif dim == 20:
    problem = fs.problems.paper(kind, n_clients=n_clients)
else:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n_clients, 2 * dim, dim)) / np.sqrt(dim)
    y = X @ rng.normal(size=dim) + rng.normal(size=X.shape[:2])
    made = fs.problems.Ridge if kind == "regression" else fs.problems.Logistic
    problem = made(X, y if kind == "regression" else np.where(y > 0, 1.0, -1.0), l2=0.01)
optimum = problem.optimum()
target = 0.01 * float(optimum @ optimum)
rounds = 100 if wanted == "curve" else None
method = fs.Scaffold(step_size=0.05, local_steps=100)
seconds = []
for _ in range(2 if n_clients <= 1000 else 1):
    begin = time.process_time()
    try:
        if wanted == "private":
            found = fs.plan(problem, epsilon=[1.0, 3.0, 8.0], delta=1e-4)
        elif wanted == "plan":
            found = fs.plan(problem, target_mse=target, batch_size=10, optimum=optimum, progress=False)
        else:
            found = fs.theory.predict(problem, method, batch_size=10, rounds=rounds)
    except fs.InvalidInput:
        print(json.dumps(None))
        sys.exit()
    seconds.append(time.process_time() - begin)
if wanted == "private":
    value = float(np.prod([one.predicted_mse for one in found.plans]) ** (1 / 3))
elif wanted == "plan":
    value = found.cost
else:
    value = found.mse if found.curve is None else float(found.curve.sum())
print(json.dumps({"seconds": min(seconds), "value": value}))
"""
CASES = [
    ("regression", 1000, 20, "plateau"),
    ("classification", 1000, 20, "plateau"),
    ("regression", 1000, 20, "curve"),
    ("classification", 1000, 20, "curve"),
    ("regression", 200, 20, "plan"),
    ("classification", 200, 20, "plan"),
    ("regression", 5, 5, "private"),
    ("classification", 5, 5, "private"),
]
LARGE = [
    ("regression", 10_000, 20, "plateau"),
    ("classification", 10_000, 20, "plateau"),
    ("regression", 20, 200, "plateau"),
    ("classification", 20, 200, "plateau"),
    ("classification", 10, 20, "private"),
]
QUICK = [("classification", 8, 20, "plateau"), ("regression", 8, 20, "curve"), ("regression", 4, 20, "plan")]


def timed(source: Path, case: tuple[str, int, int, str]) -> dict[str, float] | None:
    """Processor seconds, and the value that was found, with the source in a folder; None where it is refused."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *map(str, case)],
        env={**os.environ, "PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, float] | None = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Measure, print and save."""
    made = measured.parser(__doc__)
    made.add_argument("old", type=Path, help="the src folder of the older tree")
    made.add_argument("--large", action="store_true", help="also 10,000 clients, and 200 features; takes minutes")
    options = made.parse_args()
    new = measured.ROOT / "src"
    figures: dict[str, Any] = {}
    for case in QUICK if options.quick else CASES + LARGE * options.large:
        before, now = timed(options.old, case), timed(new, case)
        name = "_".join(map(str, case))
        figures[name] = {} if now is None else {"seconds": now["seconds"]}
        if now is not None and before is not None:
            figures[name] |= {
                "seconds_before": before["seconds"],
                "times_faster": before["seconds"] / now["seconds"],
                "difference": now["value"] / before["value"] - 1.0,
            }
        print(name, figures[name], flush=True)
    note = (
        "Processor time, the better of two (10,000 clients: once), θ* known. 20 features: the paper's data, 200 "
        "records per client; 200 features: 20 clients of 400 records. Step size 0.05, 100 local steps, batches of "
        "10; curves of 100 rounds; plans for 1 % of the squared distance at the start. private: plans for ε = 1, "
        "3 and 8 on N clients of 200 N records. difference: new over old value less one, of curves their sums, of "
        "plans their costs, of private plans the geometric mean of predicted errors; not there where the older "
        "tree refused."
    )
    command = "python -m benchmarks.predict_speed OLD_SOURCE" + " --large" * options.large
    measured.save("predict_speed", figures, options, note=note, command=command)


if __name__ == "__main__":
    main()
