"""Nanoseconds per client and local step: our engine, its peers and the limit, in one run.

`make bench` or `python -m benchmarks.local_steps [--quick]`. Read ratios: all contenders of a line take
turns in the same process, on one core unless they say otherwise, after a warm-up; the best turn counts.
"""

import argparse
import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks import contenders
from benchmarks.contenders import BATCH, LOCAL_STEPS, RECORDS, Round, Workload
from fedscaffold.core.files import replacing
from fedscaffold.problems import Logistic, Ridge
from fedscaffold.problems.client_arrays import aligned_empty
from fedscaffold.simulation import provenance

OUT = Path("results/bench/local_steps.json")
OURS = "ours, 1 thread"


@dataclass(frozen=True)
class Contender:
    """How to make it ready, and on how many clients to time it (its cost per client does not grow)."""

    name: str
    open: Callable[[Workload], AbstractContextManager[Round]]
    at_most: int | None = None


def field() -> list[Contender]:
    """Everyone who can run on this machine."""
    all_ = [
        Contender(OURS, lambda work: contenders.ours(work, 1)),
        Contender("ours, 2 threads", lambda work: contenders.ours(work, 2)),
        Contender("NumPy across clients", contenders.numpy_across, at_most=1000),
        Contender("NumPy loop", contenders.numpy_loop, at_most=20),
    ]
    if contenders.c_limit_runs_here():
        all_.insert(0, Contender("C limit, 1 thread", contenders.c_limit))
    try:
        import jax  # noqa: F401
    except ImportError:
        Console(stderr=True).print("JAX is not installed: left out")
    else:
        all_.insert(3, Contender("JAX", contenders.jax_map))
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
        for contender in field():
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
    """Print and save the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes only, to see that it works")
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    sizes = [(100, 20)] if arguments.quick else [(n, d) for d in (20, 200) for n in (100, 1000, 10000)]
    rows: list[dict[str, Any]] = []
    for kind in (Ridge, Logistic):
        for n_clients, dim in sizes:
            work = workload(kind, n_clients, dim)
            turns = 3 if arguments.quick else 15 if n_clients < 10000 else 5
            rows.append({"kind": kind.kind, "clients": n_clients, "dim": dim, "ns": measure(work, turns)})
            show(rows)
            del work
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    content = {"rows": rows, "versions": provenance.versions(), "machine": provenance.machine()}
    with replacing(arguments.out) as temporary:
        temporary.write_text(json.dumps(content, indent=2) + "\n")
    Console().print(f"saved to {arguments.out}")


def show(rows: list[dict[str, Any]]) -> None:
    """The newest line, with ratios to ours."""
    row = rows[-1]
    own = row["ns"][OURS]
    table = Table(title=f"{row['kind']}, N = {row['clients']:,}, d = {row['dim']}, B = {BATCH}, H = {LOCAL_STEPS}")
    table.add_column("who")
    table.add_column("ns per client and step", justify="right")
    table.add_column("times ours", justify="right")
    for name, nanoseconds in row["ns"].items():
        table.add_row(name, f"{nanoseconds:,.1f}", f"{nanoseconds / own:,.2f}")
    Console().print(table)


if __name__ == "__main__":
    contenders.use_cores(1)
    main()
