"""Nanoseconds per client and local step of whole rounds, for each method, relative to FedAvg.

`make bench` or `python -m benchmarks.methods [--quick]`. Methods take turns, one round each, after a warm-up round;
the median over turns of a method's time over FedAvg's in the same turn counts, so that a busy machine matters less.
"""

import argparse
import json
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import fedscaffold as fs
from benchmarks import contenders
from benchmarks.contenders import BATCH, LOCAL_STEPS
from benchmarks.local_steps import workload
from fedscaffold.core.batches import Batches
from fedscaffold.core.files import replacing
from fedscaffold.core.types import Method
from fedscaffold.problems import Logistic, Ridge
from fedscaffold.rounds import first_state, largest_sound, stepping
from fedscaffold.traces import provenance

OUT = Path("results/bench/methods.json")
BASE = "FedAvg"


def contestants(gamma: float, n_clients: int) -> dict[str, Method]:
    """Every method with the same mean number of local steps."""
    H = LOCAL_STEPS
    return {
        BASE: fs.FedAvg(step_size=gamma, local_steps=H),
        "Scaffold": fs.Scaffold(step_size=gamma, local_steps=H),
        "Scaffold, unequal steps": fs.Scaffold(
            step_size=gamma, local_steps=[H - 10 + c % 21 for c in range(n_clients)]
        ),
        "Scaffold, half take part": fs.Scaffold(step_size=gamma, local_steps=H, participation=0.5),
        "TwoSidedScaffold": fs.TwoSidedScaffold(step_size=gamma, local_steps=H, server_step_size=1.0),
        "ProxSkip": fs.ProxSkip(step_size=gamma, communication_probability=1.0 / H),
        "FedLin, minibatch": fs.FedLin(step_size=gamma, local_steps=H, correction_gradients="minibatch"),
        "FedLin, full": fs.FedLin(step_size=gamma, local_steps=H),
    }


def measure(
    problem: Ridge | Logistic, gamma: float, *, turns: int, threads: int
) -> dict[str, tuple[float, float]]:
    """Median nanoseconds per client that takes part and local step, and the median ratio to FedAvg's turn."""
    batches, engine = Batches(BATCH), fs.engines.Numba(threads=threads)
    spent: dict[str, list[float]] = {}
    with ExitStack() as stack:
        ready = {}
        for name, method in contestants(gamma, problem.n_clients).items():
            state = first_state(problem, method, np.zeros((1, problem.dim)))
            limit = largest_sound(state.theta)
            step = stack.enter_context(stepping(problem, method, engine, batches, seed=1, limit=limit))
            ready[name] = (method, step, step(state))  # compiled and warm
        for turn in range(turns):
            for name, (method, step, state) in ready.items():
                moved = state._replace(round=1 + turn)
                steps = _steps(method, problem.n_clients, moved.round)
                begin = time.perf_counter()
                step(moved)
                spent.setdefault(name, []).append((time.perf_counter() - begin) * 1e9 / steps)
    base = spent[BASE]
    return {
        name: (median(times), median(a / b for a, b in zip(times, base, strict=True)))
        for name, times in spent.items()
    }


def _steps(method: Method, n_clients: int, round: int) -> float:
    """Local steps of all clients in a round; the gradients that FedLin exchanges are not counted."""
    from fedscaffold.core.stream import chances

    chance = chances(1, 1, range(round, round + 1))[:, 0]
    return method.participants(n_clients) * float(method.lengths(n_clients, chance).mean())


def main() -> None:
    """Print and save the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small size only, to see that it works")
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    n_clients, turns = (50, 3) if arguments.quick else (1000, 40)
    rows: list[dict[str, Any]] = []
    for kind in (Ridge, Logistic):
        work = workload(kind, n_clients, 20)
        found = measure(work.problem, work.step_size, turns=turns, threads=1)
        rows.append({"kind": kind.kind, "clients": n_clients, "dim": 20, "times": found})
        show(rows[-1])
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    content = {"rows": rows, "versions": provenance.versions(), "machine": provenance.machine()}
    with replacing(arguments.out) as temporary:
        temporary.write_text(json.dumps(content, indent=2) + "\n")
    Console().print(f"saved to {arguments.out}")


def show(row: dict[str, Any]) -> None:
    """One problem's methods."""
    table = Table(title=f"{row['kind']}, N = {row['clients']:,}, d = 20, B = {BATCH}, H = {LOCAL_STEPS}, 1 thread")
    table.add_column("method")
    table.add_column("ns per client and step", justify="right")
    table.add_column("times FedAvg", justify="right")
    for name, (nanoseconds, ratio) in row["times"].items():
        table.add_row(name, f"{nanoseconds:,.1f}", f"{ratio:.3f}")
    Console().print(table)


if __name__ == "__main__":
    contenders.use_cores(1)
    main()
