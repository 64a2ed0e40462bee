"""Nanoseconds per client and local step of whole rounds, for each method, relative to FedAvg.

`make bench` or `python -m benchmarks.methods [--quick]`. Methods take turns, one round each, after a warm-up, on
one thread; all turns count, in processor time, which other programs on the machine disturb less than the clock's.
"""

import argparse
import json
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import fedscaffold as fs
from benchmarks import contenders
from benchmarks.contenders import BATCH, LOCAL_STEPS
from benchmarks.local_steps import workload
from fedscaffold.core.files import replacing
from fedscaffold.core.protocols import Method
from fedscaffold.core.random.batches import Batches
from fedscaffold.problems import Logistic, Ridge
from fedscaffold.simulation import provenance
from fedscaffold.simulation.divergence import divergence_limit
from fedscaffold.simulation.rounds import initial_state, open_rounds

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


def measure(problem: Ridge | Logistic, gamma: float, *, turns: int) -> dict[str, float]:
    """Nanoseconds per client that takes part and local step, by method."""
    batches, engine = Batches(BATCH), fs.engines.Numba(threads=1)
    spent: dict[str, float] = {}
    steps: dict[str, float] = {}
    with ExitStack() as stack:
        ready = {}
        for name, method in contestants(gamma, problem.n_clients).items():
            state = initial_state(problem, method, np.zeros((1, problem.dim)))
            limit = divergence_limit(state.theta)
            step = stack.enter_context(open_rounds(problem, method, engine, batches, seed=1, limit=limit))
            ready[name] = (method, step, step(state))  # compiled and warm
        for turn in range(turns):
            for name, (method, step, state) in ready.items():
                moved = state._replace(round=1 + turn)
                begin = time.process_time()
                step(moved)
                spent[name] = spent.get(name, 0.0) + time.process_time() - begin
                steps[name] = steps.get(name, 0.0) + _steps(method, problem.n_clients, moved.round)
    return {name: spent[name] * 1e9 / steps[name] for name in spent}


def _steps(method: Method, n_clients: int, round: int) -> float:
    """Local steps of all clients in a round; the gradients that FedLin exchanges are not counted."""
    from fedscaffold.core.random.stream import round_uniforms

    round_uniform = round_uniforms(1, 1, range(round, round + 1))[:, 0]
    return method.participants(n_clients) * float(method.local_step_counts(n_clients, round_uniform).mean())


def main() -> None:
    """Print and save the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small size only, to see that it works")
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    n_clients, turns = (50, 3) if arguments.quick else (1000, 100)
    rows: list[dict[str, Any]] = []
    for kind in (Ridge, Logistic):
        work = workload(kind, n_clients, 20)
        found = measure(work.problem, work.step_size, turns=turns)
        rows.append({"kind": kind.kind, "clients": n_clients, "dim": 20, "ns": found})
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
    for name, nanoseconds in row["ns"].items():
        table.add_row(name, f"{nanoseconds:,.1f}", f"{nanoseconds / row['ns'][BASE]:.3f}")
    Console().print(table)


if __name__ == "__main__":
    contenders.use_cores(1)
    main()
