"""Processor time of predictions and plans against those of an older source tree, in one run.

`python -m benchmarks.predict_speed OLD_SOURCE [--quick]`, where OLD_SOURCE is the `src` folder of the older
tree. Each measurement is a process of its own; θ* is found before the clock starts.
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
import fedscaffold as fs
import scipy.linalg
kind, n_clients, what = sys.argv[1], int(sys.argv[2]), sys.argv[3]
problem = fs.problems.paper(kind, n_clients=n_clients)
start = float(problem.optimum() @ problem.optimum())
method = fs.Scaffold(step_size=0.05, local_steps=100)
begin, clock = time.process_time(), time.perf_counter()
if what == "plan":
    value = fs.plan(problem, target_mse=0.01 * start, batch_size=10).cost
else:
    value = fs.theory.predict(problem, method, batch_size=10, rounds=100 if what == "curve" else None).mse
print(json.dumps({"processor": time.process_time() - begin, "clock": time.perf_counter() - clock, "value": value}))
"""
CASES = [
    ("regression", 1000, "plateau"),
    ("classification", 1000, "plateau"),
    ("regression", 1000, "curve"),
    ("classification", 1000, "curve"),
    ("classification", 200, "plan"),
]
QUICK = [("classification", 8, "plateau"), ("regression", 8, "curve")]


def timed(source: Path, kind: str, n_clients: int, what: str) -> dict[str, float]:
    """Processor and wall-clock seconds, and the value that was found, with the source in a folder."""
    environment = {**os.environ, "PYTHONPATH": str(source)}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, kind, str(n_clients), what],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Measure, print and save."""
    made = measured.parser(__doc__)
    made.add_argument("old", type=Path, help="the src folder of the older tree")
    options = made.parse_args()
    new = measured.ROOT / "src"
    figures: dict[str, Any] = {}
    for kind, n_clients, what in QUICK if options.quick else CASES:
        before, now = timed(options.old, kind, n_clients, what), timed(new, kind, n_clients, what)
        name = f"{kind}_{n_clients}_{what}"
        figures[name] = {
            "seconds": now["processor"],
            "seconds_before": before["processor"],
            "times_faster": before["processor"] / now["processor"],
            "value": now["value"],
            "value_before": before["value"],
        }
        print(name, figures[name], flush=True)
    measured.save(
        "predict_speed", figures, options, note="Processor time; d = 20, 200 records per client, B = 10."
    )


if __name__ == "__main__":
    main()
