"""Clients on Ray: two shards against one, the cost of a round beyond its steps, the same bits as in one process.

`python -m benchmarks.ray_shards [--quick]`. Contenders take turns of ten rounds each, among them one snapshot of
the clients' memory, in one program after a warm-up (start of actors, compilation); the best turn counts. Every
round's θ is compared with that of the numba engine in one process. Read ratios: what two threads of one process
gain in the same turns is what the machine had to give. Processor time is that of this process and of the busiest
shard together, the mean of all turns: what a round would take if nothing else ran and messages took no time.
"""

import argparse
import json
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
from benchmarks.local_steps import workload
from fedscaffold.core.files import replacing
from fedscaffold.core.protocols import Engine
from fedscaffold.core.random.batches import Batches
from fedscaffold.core.types import Array
from fedscaffold.engines import Numba, Ray
from fedscaffold.engines.ray_.workers import RayWorkers
from fedscaffold.problems import Ridge, RidgeStream
from fedscaffold.simulation import provenance
from fedscaffold.simulation.divergence import divergence_limit
from fedscaffold.simulation.rounds import open_rounds

OUT = Path("results/bench/ray_shards.json")
ROUNDS = 10  # of a turn; a snapshot each
DIM, BATCH, GAMMA = 20, 10, 0.02
ALONE, PAIR, ONE, TWO = "numba, 1 thread", "numba, 2 threads", "ray, 1 shard", "ray, 2 shards"
ENGINES: dict[str, Engine] = {
    ALONE: Numba(threads=1),
    PAIR: Numba(threads=2),
    ONE: Ray(shards=1, snapshot_every=ROUNDS),
    TWO: Ray(shards=2, snapshot_every=ROUNDS),
}


class Spent(NamedTuple):
    """On a round."""

    seconds: float
    processor: float


class Run:
    """A run that goes on by some rounds at a time."""

    def __init__(self, stack: ExitStack, problem: Any, engine: Engine, local_steps: int) -> None:
        method = fs.Scaffold(step_size=GAMMA, local_steps=local_steps)
        theta = np.zeros((1, problem.dim))
        opened = open_rounds(problem, method, engine, Batches(BATCH), seed=1, limit=divergence_limit(theta))
        self.step = stack.enter_context(opened)
        self.state = self.step.initial_state(theta)
        self.workers = workers(self.step.clients)

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


def workers(clients: Any) -> list[int]:
    """Processes of the shards; none in one process."""
    if not isinstance(clients, RayWorkers):
        return []
    asked = [actor.__ray_call__.remote(lambda shard: os.getpid()) for actor in clients.actors]
    return list(clients.ray.get(asked))


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
    """Print and save the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes only, to see that it works")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    small = arguments.quick
    sizes = {
        "ridge stream": (RidgeStream(n_clients=1280 if small else 50_000, dim=DIM), 10),
        "ridge in memory": (workload(Ridge, 256 if small else 10_000, DIM).problem, 100),
        "ridge in memory, hardly any steps": (workload(Ridge, 128, DIM).problem, 1),
    }
    rows = []
    with running():
        for name, (problem, local_steps) in sizes.items():
            found = measure(problem, local_steps, 2 if small else arguments.turns)
            spent = {engine: each._asdict() for engine, each in found.items()}
            rows.append({"name": name, "clients": problem.n_clients, "local_steps": local_steps, "spent": spent})
            show(rows[-1])
    load = os.getloadavg()[0]
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    content = {"rows": rows, "load": load, "versions": provenance.versions(), "machine": provenance.machine()}
    with replacing(arguments.out) as temporary:
        temporary.write_text(json.dumps(content, indent=2) + "\n")
    Console().print(f"load of the machine {load:.1f}; saved to {arguments.out}")


def show(row: dict[str, Any]) -> None:
    """One problem's contenders."""
    spent, steps = row["spent"], row["clients"] * row["local_steps"]
    title = f"{row['name']}, N = {row['clients']:,}, H = {row['local_steps']}, B = {BATCH}, d = {DIM}"
    table = Table(title=title, caption="every round's θ has the same bits", padding=(0, 0))
    for column in ("", "ms a round", "ns a step", "times one", "beyond numba, ms", "processor ms", "times one"):
        table.add_column(column, justify="left" if column == "" else "right")
    for name, base in ((ALONE, ALONE), (PAIR, ALONE), (ONE, ONE), (TWO, ONE)):
        own, one, numba = spent[name], spent[base], spent[{ONE: ALONE, TWO: PAIR}.get(name, name)]
        seconds, used = own["seconds"], own["processor"]
        table.add_row(
            name, f"{1e3 * seconds:.1f}", f"{1e9 * seconds / steps:.0f}", f"{one['seconds'] / seconds:.2f}",
            f"{1e3 * (seconds - numba['seconds']):.1f}", f"{1e3 * used:.1f}", f"{one['processor'] / used:.2f}",
        )  # fmt: skip
    Console().print(table)


if __name__ == "__main__":
    main()
