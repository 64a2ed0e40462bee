"""Streamed clients: what a local step costs, against the kernel on tables; and memory.

`python -m benchmarks.streams [--quick]`. Nanoseconds of processor time per client and local step, on one thread,
the contenders taking turns in one process; the best turn counts. Then a whole run in a process of its own: its
time on all cores, and its peak memory.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import fedscaffold as fs
from benchmarks import measured
from fedscaffold.core.random.stream import Batches
from fedscaffold.core.types import Array
from fedscaffold.problems.base import aligned_empty

DIM, LOCAL_STEPS, ROUNDS, RECORDS = 20, 10, 20, 200
STREAM_CLIENTS, TABLE_CLIENTS = 1_000_000, 10_000


def table(clients: int) -> fs.problems.Ridge:
    """Standard normal records, targets from a random model."""
    generator = np.random.default_rng(0)
    x = aligned_empty((clients, RECORDS, DIM))
    generator.standard_normal(out=x)
    y = x @ generator.standard_normal(DIM) + generator.standard_normal((clients, RECORDS))
    return fs.problems.Ridge(x, y)


def measure(batch_size: int, stream_clients: int, table_clients: int, turns: int) -> dict[str, float]:
    """Nanoseconds of processor time per client and step, the best of some turns."""
    stream, rows = fs.problems.RidgeStream(n_clients=stream_clients, dim=DIM), table(table_clients)
    best: dict[str, float] = {}
    with ExitStack() as stack:

        def steps(problem: Any) -> Callable[[int], Array]:
            engine = fs.engines.Native(threads=1)
            local_sgd = stack.enter_context(engine.open(problem, Batches(batch_size), seed=1))
            xi, theta = np.zeros((1, problem.n_clients, DIM)), np.zeros((1, DIM))
            return lambda t: local_sgd(theta, xi, step_size=0.01, local_steps=LOCAL_STEPS, round=t)

        contenders: list[tuple[str, Any, int]] = [
            ("stream_ns", steps(stream), stream_clients),
            ("tables_ns", steps(rows), table_clients),
        ]
        for turn in range(turns + 1):
            for name, one_round, clients in contenders:
                begin = time.process_time()
                one_round(turn)
                if turn:  # the first one warms up
                    nanoseconds = (time.process_time() - begin) * 1e9 / clients / LOCAL_STEPS
                    best[name] = min(best.get(name, np.inf), nanoseconds)
    return best


def whole_run(batch_size: int, clients: int) -> dict[str, float]:
    """Seconds and peak_megabytes of a run, from a process of its own."""
    called = [sys.executable, "-m", "benchmarks.streams", "--run", str(batch_size), "--clients", str(clients)]
    found: dict[str, float] = json.loads(subprocess.run(called, check=True, capture_output=True).stdout)
    return found


def run_here(batch_size: int, clients: int) -> dict[str, float]:
    """The run itself."""
    method = fs.Scaffold(step_size=0.05, local_steps=LOCAL_STEPS)
    begin = time.perf_counter()
    problem = fs.problems.RidgeStream(n_clients=clients, dim=DIM)
    made, used = time.perf_counter(), time.process_time()
    trace = fs.run(problem, method, rounds=ROUNDS, batch_size=batch_size, progress=False)
    end, nanoseconds = time.perf_counter(), (time.process_time() - used) * 1e9
    return {
        "make_seconds": made - begin,
        "run_seconds": end - made,
        "run_ns_per_client_and_step": nanoseconds / clients / LOCAL_STEPS / ROUNDS,
        "peak_megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "first_mse": float(trace.mse[0, 0]),
        "last_mse": float(trace.mse[0, -1]),
    }


def main() -> None:
    """Print and save the tables."""
    parser = measured.parser(__doc__)
    parser.add_argument("--run", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--clients", type=int, default=STREAM_CLIENTS)
    options = parser.parse_args()
    if options.run is not None:
        sys.stdout.write(json.dumps(run_here(options.run, options.clients)))
        return
    clients = 2000 if options.quick else options.clients
    figures: dict[str, dict[str, float]] = {}
    for batch_size in (10, 1):
        found = measure(batch_size, min(clients, 100_000), min(clients, TABLE_CLIENTS), 5)
        found |= whole_run(batch_size, clients)
        figures[f"b{batch_size}"] = found
        title = f"N = {clients:,}, d = {DIM}, H = {LOCAL_STEPS}, B = {batch_size}, T = {ROUNDS}"
        shown = Table("", "", title=title)
        for name, value in found.items():
            shown.add_row(name, f"{value:,.4g}")
        Console().print(shown)
    note = f"Ridge regression, d = {DIM}, H = {LOCAL_STEPS}, nanoseconds of processor time per client and step."
    measured.save("streams", figures, options, note=note)


if __name__ == "__main__":
    main()
