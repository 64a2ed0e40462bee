"""Choices that the paper leaves open in its Figure 1, and what the plateaus are with others.

`python -m benchmarks.figure1 [--quick]` measures the tables of docs/explanation/figure1.md: linear regression by
the exact law at 100 clients, in seconds; logistic regression by one run per choice with 100 to 10,000 clients,
which takes four minutes of processor time. `--draws results/figure1/draws.csv` draws the page's second picture.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks import measured
from fedscaffold.benchmarking.fits import reached_plateau
from fedscaffold.core.types import Array
from fedscaffold.paper.figure1 import BATCH_SIZE, METHODS, ROUNDS
from fedscaffold.problems import Logistic, Ridge, paper
from fedscaffold.reports.figures import COLOURS, INK, PLATEAU_LABEL, powers_of_ten, saved_panels
from fedscaffold.simulation.run_method import run
from fedscaffold.theory import predict

CLIENTS = (100, 1000, 10_000)
IMAGE = measured.ROOT / "docs" / "images" / "figure1-draws.png"


def with_intercept(x: Array) -> Array:
    """Return records (clients, records, d) with a last column of ones."""
    return np.concatenate([x, np.ones((*x.shape[:2], 1))], axis=2)


def records(problem: Ridge | Logistic) -> tuple[Array, Array]:
    """Return the records (clients, records, d) and targets (clients, records) of one of the paper's problems."""
    return problem.x.reshape(problem.n_clients, -1, problem.dim), problem.y.reshape(problem.n_clients, -1)


def regression(n_clients: int) -> dict[str, dict[str, float]]:
    """Return the exact plateaus of both methods, for the choices made and for one other at a time."""
    base = paper("regression", n_clients=n_clients)
    x, y = records(base)
    noise = np.random.default_rng(0).normal(size=y.shape)
    l2s = {f"l2_{value:g}".replace(".", "_"): Ridge(x, y, l2=value) for value in (0.0, 0.001, 0.1)}
    noisy = {f"noise_{scale}": Ridge(x, y + scale * noise, l2=base.l2) for scale in (1, 10)}
    choices = {"chosen": base, **l2s, **noisy, "intercept": Ridge(with_intercept(x), y, l2=base.l2)}
    found = {}
    for name, problem in choices.items():
        found[name] = {type(m).__name__: predict(problem, m, batch_size=BATCH_SIZE).mse for m in METHODS}
    # (xᵀθ − y)² without the ½ has twice the gradient: the same as twice the step size and half of the penalty
    halved = Ridge(x, y, l2=base.l2 / 2.0)
    whole = {
        "no_half": (halved, 2.0, "with_replacement"),
        "without_replacement": (base, 1.0, "without_replacement"),
    }
    for name, (problem, factor, sampling) in whole.items():
        methods = (replace(m, step_size=factor * m.step_size) for m in METHODS)
        settings: dict[str, Any] = {"batch_size": BATCH_SIZE, "sampling": sampling}
        found[name] = {type(m).__name__: predict(problem, m, **settings).mse for m in methods}
    return found


def choices_of_classification(n_clients: int) -> Iterator[tuple[str, Logistic, str]]:
    """Yield a name, a problem and the way of drawing batches, one problem in memory at a time."""
    base = paper("classification", n_clients=n_clients)
    assert isinstance(base, Logistic)
    yield "chosen", base, "with_replacement"
    yield "without_replacement", base, "without_replacement"
    x, y = records(base)
    for value in (0.0, 0.001, 0.1):
        yield f"l2_{value:g}".replace(".", "_"), Logistic(x, y, l2=value), "with_replacement"
    yield "intercept", Logistic(with_intercept(x), y, l2=base.l2), "with_replacement"
    for name, other in {"defaults": {"informative": (2, 2)}, "seed_1": {"seed": 1}, "seed_2": {"seed": 2}}.items():
        yield name, paper("classification", n_clients=n_clients, **other), "with_replacement"  # type: ignore[arg-type, misc]


def classification(clients: tuple[int, ...]) -> dict[str, dict[str, Any]]:
    """Return plateaus of one run per method and choice, and Scaffold's ratio between the two largest N."""
    found: dict[str, dict[str, Any]] = {}
    for n_clients in clients:
        for name, problem, sampling in choices_of_classification(n_clients):
            for method in METHODS:
                settings: dict[str, Any] = {"batch_size": BATCH_SIZE, "sampling": sampling, "progress": False}
                level, stationary = reached_plateau(run(problem, method, rounds=ROUNDS, **settings))
                cell = {"plateau": level.mean, "error": level.standard_error, "stationary": stationary}
                label = f"{type(method).__name__}_{n_clients}"
                found.setdefault(name, {})[label] = cell
                print(
                    name,
                    label,
                    f"{level.mean:.3g} ± {level.standard_error:.1g}, stationary: {stationary}",
                    flush=True,
                )
    for cells in found.values():
        before, after = (cells[f"Scaffold_{n_clients}"] for n_clients in clients[-2:])
        ratio = before["plateau"] / after["plateau"]
        relative = np.hypot(before["error"] / before["plateau"], after["error"] / after["plateau"])
        cells["improves"] = {"ratio": ratio, "error": float(ratio * relative)}
    return found


def draw_draws(found: pd.DataFrame, file: Path) -> None:
    """Draw the parts of the plateaus by N, one point per draw, and FedAvg's plateau over Scaffold's."""
    clients = found["n_clients"].to_numpy(dtype=np.float64)
    numbers = np.unique(clients)
    parts = {
        "Scaffold: variance (it has no bias)": ("Scaffold", "o", 0.8, found["scaffold_variance"]),
        "FedAvg: squared bias": ("FedAvg", "s", 1.0, found["fedavg_squared_bias"]),
        "FedAvg: variance": ("FedAvg", "x", 1.25, found["fedavg_variance"]),
    }
    scaffold, fedavg = (
        found[f"{name}_variance"] + found[f"{name}_squared_bias"] for name in ("scaffold", "fedavg")
    )
    ratios = (fedavg / scaffold).to_numpy()
    with saved_panels([file], 1, 2, width=10.0, height=4.0) as (_, ((left, right),)):
        for name, (method, marker, aside, values) in parts.items():
            style = {"color": COLOURS[method], "marker": marker, "ms": 4, "ls": "none", "alpha": 0.5}
            left.plot(aside * clients, values, label=name, **style)
            middle = np.median(numbers[0] * values.to_numpy()[clients == numbers[0]])
            left.plot(aside * numbers, middle / numbers, color=COLOURS[method], lw=0.8, ls="--")
        left.plot([], [], color="0.5", lw=0.8, ls="--", label="1/N through the median at the smallest N")
        left.set(xscale="log", yscale="log", ylabel=f"part of the {PLATEAU_LABEL}")
        left.legend(frameon=False, fontsize=8, loc="lower left")
        left.set_ylim(bottom=left.get_ylim()[0] / 30)  # room for the legend
        right.plot(clients, ratios, "o", color=INK, ms=4, alpha=0.4)
        right.axhline(1.0, color=INK, lw=0.8, ls=":")
        right.set(xscale="log", ylabel="FedAvg's plateau over Scaffold's")
        for n_clients in numbers:
            here = ratios[clients == n_clients]
            words, place = f"above 1:\n{(here > 1.0).sum()} of {len(here)}", (n_clients, ratios.max())
            right.annotate(words, place, (0, 8), textcoords="offset points", ha="center", fontsize=8)
        right.set_ylim(0.0, 1.2 * ratios.max())
        for axis in (left, right):
            axis.set_xlim(numbers[0] / 2.5, numbers[-1] * 2.5)
            axis.set_xlabel("number of clients N")
            powers_of_ten(axis)


def main() -> None:
    """Measure, print and save."""
    parser = measured.parser(__doc__)
    parser.add_argument("--draws", type=Path, help="draw draws.csv of `reproduce figure1 --seeds 40`, and no more")
    options = parser.parse_args()
    if options.draws is not None:
        draw_draws(pd.read_csv(options.draws), IMAGE)
        return
    few = options.quick
    numbers = {"regression": regression(4 if few else 100)}
    for name, row in numbers["regression"].items():
        print(name, ", ".join(f"{method} {value:.3g}" for method, value in row.items()), flush=True)
    found = {**numbers, "classification": classification((4, 8) if few else CLIENTS)}
    measured.save("figure1", found, options, note="Plateaus of Figure 1 with other choices, one at a time.")


if __name__ == "__main__":
    main()
