"""Bits until the squared error has fallen a million times, with and without compression.

`python -m benchmarks.compression [--quick]`. Ten clients that differ, d = 300, κ = 10,000, full gradients.
Scaffold takes H = 2 and the largest step size that Lemma 4.1 allows, the others γ = 1/L; with Tamuna two send each
coordinate, and its p is larger by √((n − 1)/(s − 1)), as its theorem asks.
"""

import numpy as np
from rich.console import Console
from rich.table import Table

import fedscaffold as fs
from benchmarks import measured
from fedscaffold.core.protocols import Method
from fedscaffold.engines import Numba
from fedscaffold.paper.method_figures.conditioning import conditioned

CLIENTS, DIM, CONDITION, REDUCTION = 10, 300, 1e4, 1e-6


def contestants(condition: float) -> dict[str, Method]:
    """The methods, for L = 1 and μ = 1/κ."""
    p = 1.0 / np.sqrt(condition)
    return {
        "scaffold": fs.Scaffold(step_size=0.5 / (1.0 + 1.0 / condition), local_steps=2),
        "proxskip": fs.ProxSkip(step_size=1.0, communication_probability=p),
        "tamuna": fs.Tamuna(
            step_size=1.0, communication_probability=min(1.0, p * np.sqrt(CLIENTS - 1.0)), owners=2
        ),
    }


def measure(name: str, method: Method, condition: float, dim: int) -> dict[str, float]:
    """Rounds, and bits sent and received by each client, until the error has fallen a million times."""
    problem = conditioned(condition, n_clients=CLIENTS, dim=dim)
    root = np.sqrt(condition)
    rounds = int({"scaffold": 5.5 * condition, "proxskip": 7.0 * root, "tamuna": 36.0 * root}[name])
    trace = fs.run(problem, method, rounds=rounds, engine=Numba(threads=1), progress=False)
    below = trace.mse[0] <= REDUCTION * trace.mse[0, 0]
    if not below.any():
        raise SystemExit(f"{name} does not get there in {rounds} rounds")
    needed = int(below.argmax())
    sent, received = trace.bits_sent_per_client[needed], trace.bits_received_per_client[needed]
    return {"rounds": needed, "bits_sent": float(sent), "bits": float(sent + received)}


def main() -> None:
    """Print and save the table."""
    options = measured.parser(__doc__).parse_args()
    condition, dim = (100.0, 20) if options.quick else (CONDITION, DIM)
    figures: dict[str, dict[str, float]] = {}
    table = Table("method", "rounds", "bits sent", "bits in all", "of Scaffold's")
    for name, method in contestants(condition).items():
        found = figures[name] = measure(name, method, condition, dim)
        found["times_fewer"] = figures["scaffold"]["bits"] / found["bits"]
        found["times_fewer_sent"] = figures["scaffold"]["bits_sent"] / found["bits_sent"]
        row = (found["rounds"], found["bits_sent"], found["bits"], 1.0 / found["times_fewer"])
        table.add_row(name, *(f"{value:,.3g}" for value in row))
    Console().print(table)
    note = f"N = {CLIENTS}, d = {dim}, κ = {condition:g}, full gradients; to a squared error of 1e-6 of the first."
    measured.save("compression", figures, options, note=note)


if __name__ == "__main__":
    main()
