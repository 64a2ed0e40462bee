"""What a fit's local steps and rounds cost, by which `fedscaffold.models` chooses batches and local steps.

`python -m benchmarks.table_steps [--quick]`. Logistic regression on a table in memory, native engine on one core,
processor time. A step's time is taken to be rows · (time of a row + coordinates · time of a number); rows are read
in order by full gradients, and drawn and read from anywhere by batches. Runs of few and of many local steps take
turns, and the best of each counts: their difference is the time of steps alone. The constants at the top of
`fedscaffold/models/planning/batches.py` are these figures, rounded.
"""

import time

import numpy as np
from rich.console import Console

import fedscaffold as fs
from benchmarks import contenders, measured

CLIENTS, BATCH = 16, 512
DIMS = 7, 50


def table(rows: int, dim: int) -> fs.problems.Logistic:
    """Standard normal rows, and classes from a random model."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((CLIENTS, rows, dim))
    y = np.sign(x @ (rng.standard_normal(dim) / np.sqrt(dim)) + rng.standard_normal((CLIENTS, rows)))
    return fs.problems.Logistic(x, y, l2=0.01)


def seconds(problem: fs.problems.Logistic, *, local_steps: int, batch_size: int | None, rounds: int) -> float:
    """Processor time of one round."""
    method = fs.Scaffold(step_size=1e-3, local_steps=local_steps)
    begin = time.process_time()
    fs.run(problem, method, rounds=rounds, batch_size=batch_size, progress=False)
    return (time.process_time() - begin) / rounds


def nanoseconds_per_row(rows: int, dim: int, batch_size: int | None, turns: int) -> float:
    """Of one row in one gradient."""
    problem = table(rows, dim)
    each = rows if batch_size is None else batch_size
    many = max(10, 400_000 // each)
    best = {1: np.inf, many: np.inf}
    for _ in range(turns):
        for local_steps, before in best.items():
            found = seconds(problem, local_steps=local_steps, batch_size=batch_size, rounds=2)
            best[local_steps] = min(before, found)
    return float(1e9 * (best[many] - best[1]) / ((many - 1) * each * CLIENTS))


def main() -> None:
    """Print and save the figures."""
    options = measured.parser(__doc__).parse_args()
    rows, turns = (1000, 2) if options.quick else (20_000, 5)
    few, many = DIMS
    figures: dict[str, float] = {}
    numbers = []
    for name, batch_size in (("row_in_order", None), ("row_drawn", BATCH)):
        low, high = (nanoseconds_per_row(rows, dim, batch_size, turns) for dim in DIMS)
        numbers.append((high - low) / (many - few))
        figures[f"{name}_d{few}"], figures[f"{name}_d{many}"] = low, high
    figures["number"] = float(np.mean(numbers))
    for name in ("row_in_order", "row_drawn"):
        figures[name] = float(np.mean([figures[f"{name}_d{dim}"] - dim * figures["number"] for dim in DIMS]))
    small = table(10, few)
    each_round = min(seconds(small, local_steps=1, batch_size=None, rounds=200) for _ in range(turns))
    for name, value in figures.items():
        Console().print(f"{name}: {value:.3g} ns")
    Console().print(f"a simulated round of {CLIENTS} clients: {1e3 * each_round:.3g} ms")
    note = f"{CLIENTS} clients of {rows:,} rows, batches of {BATCH}; processor time on one core."
    content = {"nanoseconds": figures, "simulated_round_seconds": each_round}
    measured.save("table_steps", content, options, note=note)


if __name__ == "__main__":
    contenders.use_cores(1)
    main()
