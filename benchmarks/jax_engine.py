"""The JAX engine against a hand-written `lax.map` over vmapped scans for the same work, taking turns.

`python -m benchmarks.jax_engine [--clients 1000] [--turns 15] [--at-once 10]`, on one core. Both compute in
float64; the hand-written one draws its records with JAX's own generator and knows the loss's derivative.
"""

import argparse
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
from rich.console import Console

from benchmarks import contenders
from benchmarks.contenders import BATCH, LOCAL_STEPS, SEED, Round, Workload
from benchmarks.local_steps import workload
from fedscaffold.core.batches import Batches
from fedscaffold.engines import Jax
from fedscaffold.problems import Logistic, Ridge


@contextmanager
def engine(work: Workload, at_once: int | None) -> Iterator[Round]:
    """Ours, as a run calls it: from NumPy to NumPy."""
    theta, xi = np.zeros((1, work.dim)), np.zeros((1, work.clients, work.dim))
    with Jax(clients_at_once=at_once, device="cpu").open(work.problem, Batches(BATCH), seed=SEED) as local_sgd:
        yield lambda: local_sgd(theta, xi, step_size=work.step_size, local_steps=LOCAL_STEPS, round=0)[0]


def measure(work: Workload, turns: int, at_once: int | None) -> dict[str, float]:
    """Best nanoseconds per client and step of both, after a warm-up."""
    best: dict[str, float] = {}
    with ExitStack() as stack:
        ready = {
            "the engine": stack.enter_context(engine(work, at_once)),
            "by hand": stack.enter_context(contenders.jax_map(work)),
        }
        norms = [float(np.linalg.norm(one_round()[:20])) for one_round in ready.values()]
        if not np.isclose(norms[0], norms[1], rtol=0.15):
            raise RuntimeError(f"the two do not compute the same thing: {norms}")
        for _ in range(turns):
            for name, one_round in ready.items():
                begin = time.perf_counter()
                one_round()
                nanoseconds = (time.perf_counter() - begin) * 1e9 / work.clients / LOCAL_STEPS
                best[name] = min(best.get(name, np.inf), nanoseconds)
    return best


def main() -> None:
    """Print the times and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--at-once", type=int, default=None, help="clients_at_once of the engine")
    arguments = parser.parse_args()
    for kind in (Ridge, Logistic):
        for dim in (20, 200):
            found = measure(workload(kind, arguments.clients, dim), arguments.turns, arguments.at_once)
            ratio = found["the engine"] / found["by hand"]
            times = ", ".join(f"{name} {nanoseconds:,.0f} ns" for name, nanoseconds in found.items())
            Console().print(f"{kind.kind}, d = {dim}: {times}, ratio {ratio:.2f}")


if __name__ == "__main__":
    contenders.use_cores(1)
    main()
