"""Time at the prompt: `import fedscaffold`, `fedscaffold --help`, `fedscaffold run`, and the fixed cost of a run.

`python -m benchmarks.startup [--turns 7]`. All but the last are new processes, the best of some turns, less the
time of a Python process that does nothing. The last is the function `fedscaffold.run` with one round on two
clients, after a first call that loads the library. Clock and processor time, as other programs disturb the
latter less.
"""

import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import fedscaffold as fs
from benchmarks import measured

RUN = ["-c", "from fedscaffold.cli.start import main; main()", "run"]
PROCESSES = {
    "python_alone": ["-c", "pass"],
    "import_fedscaffold": ["-c", "import fedscaffold"],
    "import_and_name_run": ["-c", "import fedscaffold; fedscaffold.run"],
    "help": ["-c", "from fedscaffold.cli.start import main; main()", "--help"],
    "run": RUN,
}


def process(arguments: list[str]) -> tuple[float, float]:
    """Seconds and processor seconds of a new Python process."""
    began, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
    seconds, now = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime


def call(function: Callable[[], Any]) -> tuple[float, float]:
    """Seconds and processor seconds of a call in this process."""
    began, used = time.perf_counter(), time.process_time()
    function()
    return time.perf_counter() - began, time.process_time() - used


def measure(turns: int) -> dict[str, dict[str, float]]:
    """Milliseconds by the clock and of processor time, the best of some turns of each."""
    rng = np.random.default_rng(0)
    problem = fs.problems.Ridge(rng.normal(size=(2, 10, 3)), rng.normal(size=(2, 10)), l2=0.1)
    method = fs.Scaffold(step_size=0.01, local_steps=1)

    def one_round() -> Any:
        return fs.run(problem, method, rounds=1, batch_size=1, progress=False)

    one_round()
    best: dict[str, tuple[float, float]] = {}
    for _ in range(turns):
        spent = {name: process(arguments) for name, arguments in PROCESSES.items()}
        spent["run_of_one_round"] = min(call(one_round) for _ in range(20))
        for name, new in spent.items():
            old = best.get(name, (np.inf, np.inf))
            best[name] = min(old[0], new[0]), min(old[1], new[1])
    idle = best["python_alone"]
    return {
        name: {
            "ms": 1e3 * (clock - idle[0] * (name in PROCESSES and name != "python_alone")),
            "processor_ms": 1e3 * (processor - idle[1] * (name in PROCESSES and name != "python_alone")),
        }
        for name, (clock, processor) in best.items()
    }


def main() -> None:
    """Print and save the table."""
    parser = measured.parser(__doc__)
    parser.add_argument("--turns", type=int, default=7)
    options = parser.parse_args()
    found = measure(1 if options.quick else options.turns)
    table = Table("", "ms", "processor ms", title="a Python process alone is taken off the others")
    for name, spent in found.items():
        table.add_row(name, f"{spent['ms']:.2f}", f"{spent['processor_ms']:.2f}")
    Console().print(table)
    measured.save("startup", found, options, note="The time of a Python process alone is taken off the others.")


if __name__ == "__main__":
    main()
