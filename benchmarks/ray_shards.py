"""Clients on Ray: two shards against one, the cost of a round beyond its steps, the same bits as in one process.

`python -m benchmarks.ray_shards [--quick]`. Contenders take turns of ten rounds each, among them one snapshot of
the client state, in one program after a warm-up (start of actors, compilation); the best turn counts. Every
round's θ is compared with that of the native engine in one process. Read ratios: what two threads of one process
gain in the same turns is what the machine had to give. Processor time is that of this process and of the busiest
shard together, the mean of all turns: what a round would take if nothing else ran and messages took no time.
"""

import logging
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

import fedscaffold as fs
from benchmarks import measured
from benchmarks.contenders import workload
from fedscaffold.core.protocols import Engine
from fedscaffold.core.random.stream import Batches
from fedscaffold.core.types import Array
from fedscaffold.engines import Native, Ray
from fedscaffold.engines.ray_ import RayWorkers
from fedscaffold.problems import Ridge, RidgeStream
from fedscaffold.simulation.clients import Clients, StoredClients
from fedscaffold.simulation.rounds import open_rounds
from fedscaffold.simulation.setup import RunSetup, divergence_limit

ROUNDS = 10  # of a turn; a snapshot each
DIM, BATCH, GAMMA = 20, 10, 0.02
ALONE, PAIR, ONE, TWO = "one_thread", "two_threads", "one_shard", "two_shards"
ENGINES: dict[str, Engine] = {
    ALONE: Native(threads=1),
    PAIR: Native(threads=2),
    ONE: Ray(shards=1, snapshot_every=ROUNDS),
    TWO: Ray(shards=2, snapshot_every=ROUNDS),
}


class Spent(NamedTuple):
    """Seconds by the clock and of processor time that one round took."""

    seconds: float
    processor: float


class Run:
    """A run of Scaffold that is continued by `ROUNDS` rounds per turn."""

    def __init__(self, stack: ExitStack, problem: Any, engine: Engine, local_steps: int) -> None:
        method = fs.Scaffold(step_size=GAMMA, local_steps=local_steps)
        theta = np.zeros((1, problem.dim))
        setup = RunSetup(
            problem=problem, method=method, engine=engine, theta=theta, batches=Batches(BATCH), seed=1,
            limit=divergence_limit(theta),
        )  # fmt: skip
        self.step = stack.enter_context(open_rounds(setup))
        self.state = self.step.initial_state()
        self.workers = worker_processes(self.step.clients)

    def turn(self) -> tuple[float, float, Array]:
        """Seconds and processor seconds per round, and θ of each."""
        used = [on_processor(pid) for pid in self.workers]
        begin, here, models = time.perf_counter(), time.process_time(), []
        for _ in range(ROUNDS):
            self.state = self.step(self.state)
            models.append(self.state.theta)
        seconds, serial = time.perf_counter() - begin, time.process_time() - here
        serial += max((on_processor(pid) - old for pid, old in zip(self.workers, used, strict=True)), default=0.0)
        return seconds / ROUNDS, serial / ROUNDS, np.stack(models)


def worker_processes(clients: Clients) -> list[int]:
    """Process numbers of the shards' workers; an empty list where the clients are in this process."""
    if not isinstance(clients, StoredClients) or not isinstance(clients.workers, RayWorkers):
        return []
    workers = clients.workers
    asked = [actor.__ray_call__.remote(lambda shard: os.getpid()) for actor in workers.actors]
    return list(workers.ray.get(asked))


def on_processor(pid: int) -> float:
    """Seconds that the threads of a process have run."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(1e-9 * int((thread / "schedstat").read_text().split()[0]) for thread in threads)


def measure(problem: Any, local_steps: int, turns: int) -> dict[str, Spent]:
    """Seconds per round of each engine, the best of some turns; refuses different bits."""
    found: dict[str, Spent] = {}
    with ExitStack() as stack:
        runs = {name: Run(stack, problem, engine, local_steps) for name, engine in ENGINES.items()}
        for turn in range(turns + 1):
            wanted: Array | None = None
            for name, each in runs.items():
                seconds, serial, models = each.turn()
                if turn:  # the first is for warming up
                    before = found.get(name, Spent(np.inf, 0.0))
                    found[name] = Spent(min(before.seconds, seconds), before.processor + serial / turns)
                wanted = models if wanted is None else wanted
                if not np.array_equal(models, wanted):
                    raise RuntimeError(f"{name} does not give the bits of {ALONE}")
    return found


@contextmanager
def running() -> Iterator[None]:
    """Ray with room for the actors of all contenders, of which one works at a time."""
    import ray

    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    try:
        yield
    finally:
        ray.shutdown()


def main() -> None:
    """Print and save the tables."""
    parser = measured.parser(__doc__)
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    small = options.quick
    sizes = {
        "stream": (RidgeStream(n_clients=1280 if small else 50_000, dim=DIM), 10),
        "in_memory": (workload(Ridge, 256 if small else 10_000, DIM).problem, 100),
        "hardly_any_steps": (workload(Ridge, 128, DIM).problem, 1),
    }
    figures: dict[str, dict[str, Any]] = {}
    with running():
        for name, (problem, local_steps) in sizes.items():
            spent = measure(problem, local_steps, 2 if small else options.turns)
            show(name, spent, problem.n_clients, local_steps)
            figures[name] = {
                "n_clients": problem.n_clients,
                "local_steps": local_steps,
                "ms_per_round": {who: 1e3 * each.seconds for who, each in spent.items()},
                "processor_ms_per_round": {who: 1e3 * each.processor for who, each in spent.items()},
                "two_over_one": spent[ONE].seconds / spent[TWO].seconds,
                "two_over_one_processor": spent[ONE].processor / spent[TWO].processor,
                "two_threads_over_one": spent[ALONE].seconds / spent[PAIR].seconds,
                "one_shard_beyond_native_ms": 1e3 * (spent[ONE].seconds - spent[ALONE].seconds),
                "two_shards_beyond_native_ms": 1e3 * (spent[TWO].seconds - spent[PAIR].seconds),
            }
    note = (
        f"Scaffold, ridge regression, B = {BATCH}, d = {DIM}. Processor time is that of the program and of the "
        "busiest shard together; two_over_one is the speed of two shards over that of one, by the clock."
    )
    measured.save("ray_shards", figures, options, note=note)


def show(name: str, spent: dict[str, Spent], n_clients: int, local_steps: int) -> None:
    """Print the table of one problem."""
    title = f"{name}, N = {n_clients:,}, H = {local_steps}, B = {BATCH}, d = {DIM}"
    table = Table(title=title, caption="every round's θ has the same bits", padding=(0, 0))
    for column in ("", "ms a round", "ns a step", "times one", "beyond native, ms", "processor ms", "times one"):
        table.add_column(column, justify="left" if column == "" else "right")
    for who, base in ((ALONE, ALONE), (PAIR, ALONE), (ONE, ONE), (TWO, ONE)):
        own, one, alone = spent[who], spent[base], spent[{ONE: ALONE, TWO: PAIR}.get(who, who)]
        table.add_row(
            who, f"{1e3 * own.seconds:.1f}", f"{1e9 * own.seconds / n_clients / local_steps:.0f}",
            f"{one.seconds / own.seconds:.2f}", f"{1e3 * (own.seconds - alone.seconds):.1f}",
            f"{1e3 * own.processor:.1f}", f"{one.processor / own.processor:.2f}",
        )  # fmt: skip
    Console().print(table)


if __name__ == "__main__":
    main()
