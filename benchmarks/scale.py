"""What a round costs per client, in processor time on one thread, and what that comes to for a billion clients.

`python -m benchmarks.scale [--quick]` measures the constants of docs/scale.md. `benchmarks.streams` measures the
drawing of records alone, `benchmarks.ray_shards` the cost of a round on Ray beyond its steps.
"""

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks import measured
from fedscaffold.core.random.stream import Batches
from fedscaffold.core.sums import partial_sums, total
from fedscaffold.core.types import ServerState
from fedscaffold.engines import Native
from fedscaffold.methods import Scaffold
from fedscaffold.problems import LogisticStream, RidgeStream

DIM, LOCAL_STEPS = 20, 10
SCAFFOLD = Scaffold(step_size=0.02, local_steps=LOCAL_STEPS)
CLIENTS = (10**6, 10**7, 10**8, 10**9)
ARRAYS = 3  # (N, d) that a round holds at a time: client state before, local models, client state after


def measure(n_clients: int, turns: int) -> dict[str, float]:
    """Nanoseconds of processor time per client (steps: per client and step), the best of some turns."""
    ridge, logistic = (kind(n_clients=n_clients, dim=DIM) for kind in (RidgeStream, LogisticStream))
    theta, xi = np.zeros((1, DIM)), np.zeros((1, n_clients, DIM))
    local = np.random.default_rng(0).normal(size=xi.shape)
    client_state = SCAFFOLD.init_clients(1, ridge.weights, DIM, None)
    with ExitStack() as stack:

        def steps(problem: Any, batch_size: int) -> Callable[[int], Any]:
            engine = Native(threads=1)
            opened = stack.enter_context(engine.open(problem, Batches(batch_size), seed=1))
            return lambda t: opened(theta, xi, step_size=0.02, local_steps=LOCAL_STEPS, round=t)

        parts_of: dict[str, tuple[Callable[[int], Any], int]] = {
            "step_ridge_stream_b1": (steps(ridge, 1), LOCAL_STEPS),
            "step_ridge_stream_b10": (steps(ridge, 10), LOCAL_STEPS),
            "step_logistic_stream_b1": (steps(logistic, 1), LOCAL_STEPS),
            "step_logistic_stream_b10": (steps(logistic, 10), LOCAL_STEPS),
            "sum_over_clients": (lambda t: total(partial_sums(local, ridge.weights)), 1),
            "client_state_update": (
                lambda t: SCAFFOLD.update_clients(client_state, local, ServerState(theta), ServerState(theta)),
                1,
            ),
            "make_ridge_stream": (lambda t: RidgeStream(n_clients=n_clients, dim=DIM), 1),
            "make_logistic_stream": (lambda t: LogisticStream(n_clients=n_clients, dim=DIM), 1),
        }
        best: dict[str, float] = {}
        for turn in range(turns + 1):
            for name, (work, times) in parts_of.items():
                begin = time.process_time()
                work(turn)
                if turn:  # the first one compiles
                    spent = 1e9 * (time.process_time() - begin) / n_clients / times
                    best[name] = min(best.get(name, np.inf), spent)
    return best


def model(found: dict[str, float], n_clients: int, step: str) -> tuple[float, float]:
    """Processor seconds and bytes of a round in which all clients take part."""
    each = LOCAL_STEPS * found[step] + found["sum_over_clients"] + found["client_state_update"]
    return 1e-9 * each * n_clients, 8.0 * (ARRAYS * DIM + 2) * n_clients  # weights and numbers of clients


def main() -> None:
    """Print and save the tables."""
    options = measured.parser(__doc__).parse_args()
    found = measure(1000, 1) if options.quick else measure(100_000, 4)
    shown = Table("", "ns per client", title=f"d = {DIM}, one thread, processor time; steps: per client and step")
    for name, value in found.items():
        shown.add_row(name, f"{value:,.1f}")
    Console().print(shown)
    for step in (name for name in found if name.startswith("step")):
        table = Table("N", "processor seconds a round", "gigabytes", title=f"{step}, H = {LOCAL_STEPS}")
        for n_clients in CLIENTS:
            seconds, size = model(found, n_clients, step)
            table.add_row(f"{n_clients:,}", f"{seconds:,.1f}", f"{size / 1e9:,.1f}")
        Console().print(table)
    rounds = {f"n1e{round(np.log10(n))}": model(found, n, "step_ridge_stream_b1") for n in CLIENTS}
    figures = {
        "ns_per_client": found,
        "bytes_per_client": {"vectors": 8 * ARRAYS * DIM, "weight_and_number": 16, "snapshot": 8 * DIM},
        "processor_seconds_per_round": {name: seconds for name, (seconds, _) in rounds.items()},
        "gigabytes": {name: size / 1e9 for name, (_, size) in rounds.items()},
    }
    note = (
        f"Processor time of one thread, d = {DIM}, float64; a round has H = {LOCAL_STEPS} steps with B = 1. "
        "Seconds and gigabytes are the formula with these constants."
    )
    measured.save("scale", figures, options, note=note)


if __name__ == "__main__":
    main()
