"""What a round of Scaffold costs beside the compiled local steps: draws, sums over clients, updates of ξ, Python.

`python -m benchmarks.rounds [--quick]`. One thread, its processor time. The kernel is timed within the rounds, as
sums and updates find the caches as the local steps left them; of many rounds the best of each part counts.
"""

import time
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks import measured
from benchmarks.contenders import BATCH, RECORDS, SEED, workload
from fedscaffold.core.random.stream import Batches
from fedscaffold.engines import Native
from fedscaffold.engines.native import library
from fedscaffold.methods import Scaffold
from fedscaffold.problems import Ridge, RidgeStream
from fedscaffold.simulation.rounds import open_rounds
from fedscaffold.simulation.setup import RunSetup

DIM, WARM_UP = 20, 5


def parts(problem: Any, local_steps: int, rounds: int) -> dict[str, float]:
    """Microseconds of a round at best, in the kernel and outside it, and the share of the latter."""
    spent = [0.0]
    run_clients = library.run_clients

    def timed(*arguments: Any, **options: Any) -> None:
        began = time.thread_time()
        run_clients(*arguments, **options)
        spent[0] += time.thread_time() - began

    method = Scaffold(step_size=0.2 / problem.dim, local_steps=local_steps)
    with ExitStack() as stack:
        stack.enter_context(patch.object(library, "run_clients", timed))
        engine = Native(threads=1)
        setup = RunSetup(
            problem=problem, method=method, engine=engine, theta=np.zeros((1, problem.dim)),
            batches=Batches(BATCH), seed=SEED,
        )  # fmt: skip
        step = stack.enter_context(open_rounds(setup))
        state = step.initial_state()
        found = []
        for _ in range(WARM_UP + rounds):
            spent[0], began = 0.0, time.thread_time()
            state = step(state)
            found.append((spent[0], time.thread_time() - began - spent[0]))
    kernel, outside = (float(x) for x in 1e6 * np.min(found[WARM_UP:], axis=0))
    return {"kernel": kernel, "outside": outside, "share": outside / (kernel + outside)}


def main() -> None:
    """Print and save the tables."""
    options = measured.parser(__doc__).parse_args()
    figures: dict[str, dict[str, dict[str, float]]] = {}
    for n_clients in (100,) if options.quick else (1000, 10_000):
        problems = {
            "table": workload(Ridge, n_clients, DIM).problem,
            "stream": RidgeStream(n_clients=n_clients, dim=DIM),
        }
        for name, problem in problems.items():
            table = Table("H", "kernel", "outside", "share", title=f"ridge, {name}, N = {n_clients:,}, d = {DIM}")
            for local_steps in (1, 10, 100):
                rounds = 2 if options.quick else max(10, 200_000 // (n_clients * local_steps))
                row = parts(problem, local_steps, rounds)
                figures.setdefault(f"{name}_{n_clients}", {})[f"h{local_steps}"] = row
                times = (f"{row[part]:,.0f} μs" for part in ("kernel", "outside"))
                table.add_row(str(local_steps), *times, f"{row['share']:.1%}")
            Console().print(table)
    note = (
        f"Microseconds of processor time per round of Scaffold with ridge regression, one thread, {DIM} features, "
        f"batches of {BATCH} ({RECORDS} records per client in tables); the names say N and local steps h."
    )
    measured.save("rounds", figures, options, note=note)


if __name__ == "__main__":
    main()
