"""Nanoseconds per client and local step: the Numba engine, other implementations, and hand-written C.

`make bench` or `python -m benchmarks.local_steps [--quick]`. Read ratios: all contenders of a line take
turns in the same process, on one core unless they say otherwise, after a warm-up; the best turn counts.
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks import contenders, measured
from benchmarks.contenders import BATCH, LOCAL_STEPS, RECORDS, Round, Workload
from fedscaffold.problems import Logistic, Ridge
from fedscaffold.problems.client_arrays import aligned_empty

OURS = "one_thread"


@dataclass(frozen=True)
class Contender:
    """One way to run the local steps: how to open it, and on how many clients at most to time it."""

    name: str
    open: Callable[[Workload], AbstractContextManager[Round]]
    at_most: int | None = None


def contenders_here() -> list[Contender]:
    """The contenders that can run on this machine."""
    all_ = [
        Contender(OURS, lambda work: contenders.ours(work, 1)),
        Contender("two_threads", lambda work: contenders.ours(work, 2)),
        Contender("numpy_across", contenders.numpy_across, at_most=1000),
        Contender("numpy_loop", contenders.numpy_loop, at_most=20),
    ]
    if contenders.c_limit_runs_here():
        all_.insert(0, Contender("c_limit", contenders.c_limit))
    try:
        import jax  # noqa: F401
    except ImportError:
        Console(stderr=True).print("JAX is not installed: left out")
    else:
        all_.insert(3, Contender("jax", contenders.jax_map))
    return all_


def workload(kind: type[Ridge] | type[Logistic], n_clients: int, dim: int) -> Workload:
    """Standard normal records, targets from a random model."""
    generator = np.random.default_rng(0)
    x = aligned_empty((n_clients, RECORDS, dim))
    generator.standard_normal(out=x)
    y = x @ (generator.standard_normal(dim) / np.sqrt(dim)) + generator.standard_normal((n_clients, RECORDS))
    problem = kind(x, y if kind is Ridge else np.sign(y), l2=contenders.L2)
    return Workload(problem, step_size=1.0 / dim)


def measure(work: Workload, turns: int) -> dict[str, float]:
    """Best nanoseconds per client and step of each contender, taking turns."""
    best: dict[str, float] = {}
    models: dict[str, float] = {}
    with ExitStack() as stack:
        ready = []
        for contender in contenders_here():
            part = work
            if contender.at_most is not None and contender.at_most < work.clients:
                part = work.first_clients(contender.at_most)
            one_round = stack.enter_context(contender.open(part))
            models[contender.name] = float(np.linalg.norm(one_round()[:20]))
            ready.append((contender.name, one_round, part.clients))
        for _ in range(turns):
            for name, one_round, clients in ready:
                begin = time.perf_counter()
                one_round()
                nanoseconds = (time.perf_counter() - begin) * 1e9 / clients / LOCAL_STEPS
                best[name] = min(best.get(name, np.inf), nanoseconds)
    norms = np.array(list(models.values()))
    if not np.allclose(norms, norms[0], rtol=0.15):
        raise RuntimeError(f"contenders do not compute the same thing: {models}")
    return best


def main() -> None:
    """Print and save the tables."""
    options = measured.parser(__doc__).parse_args()
    sizes = [(100, 20)] if options.quick else [(n, d) for d in (20, 200) for n in (100, 1000, 10000)]
    figures: dict[str, dict[str, float]] = {}
    for kind in (Ridge, Logistic):
        for n_clients, dim in sizes:
            turns = 3 if options.quick else 15 if n_clients < 10000 else 5
            found = measure(workload(kind, n_clients, dim), turns)
            title = f"{kind.kind}, N = {n_clients:,}, d = {dim}, B = {BATCH}, H = {LOCAL_STEPS}"
            table = Table("contender", "ns per client and step", "times ours", title=title)
            for name, nanoseconds in found.items():
                size = f"{kind.kind}_{n_clients}" + f"_d{dim}" * (dim != 20)
                figures.setdefault(name, {})[size] = nanoseconds
                table.add_row(name, f"{nanoseconds:,.1f}", f"{nanoseconds / found[OURS]:,.2f}")
            Console().print(table)
    note = (
        f"One core unless a name says otherwise, {RECORDS} records × 20 features (or as many as follow the d of a "
        f"name), batches of {BATCH}, {LOCAL_STEPS} local steps, float64; the number after the problem is N."
    )
    measured.save("local_steps", {"ns_per_client_and_step": figures}, options, note=note)


if __name__ == "__main__":
    contenders.use_cores(1)
    main()
