"""Figures of the pages on Scaffold, TwoSidedScaffold, FedLin and FedAvg, and two problems for such figures."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from fedscaffold.benchmarking import compare
from fedscaffold.benchmarking.comparison import CostName
from fedscaffold.core.display import Advance
from fedscaffold.core.protocols import Method
from fedscaffold.core.types import Array
from fedscaffold.methods import FedAvg, FedLin, Scaffold, TwoSidedScaffold
from fedscaffold.problems import Logistic, Ridge
from fedscaffold.reports.figures import CurvePanel, draw_curves
from fedscaffold.simulation.run_method import run
from fedscaffold.simulation.trace import Trace

Lines = dict[str, tuple[Array, Array]]  # costs and squared errors by method
Methods = Mapping[str, Method]
Files = list[Path]
CLIENTS = 50  # of the figures on some of the clients, unequal steps and server step sizes


def scattered(
    n_clients: int = CLIENTS, records: int = 40, dim: int = 5, *, l2: float = 0.05, weights: bool = False
) -> Ridge:
    """Build a ridge problem of clients that differ in scale and true model; weights, if any, from 1 to 10."""
    generator = np.random.default_rng(0)
    x = generator.uniform(0.3, 1.5, size=(n_clients, 1, 1)) * generator.normal(size=(n_clients, records, dim))
    z = np.einsum("cnd,cd->cn", x, generator.normal(size=(n_clients, dim)))
    y = z + generator.normal(size=(n_clients, records))
    return Ridge(x, y, l2=l2, weights=generator.uniform(1.0, 10.0, size=n_clients) if weights else None)


def conditioned(condition: float, *, n_clients: int = 4, dim: int = 4, seed: int = 0) -> Ridge:
    """Build a problem with L = 1 and μ = 1/κ: diagonal Hessians, eigenvalues in [1/κ, 1], and different optima.

    A client has one record √(d λ_j) e_j for each coordinate j, so that its Hessian is diag(λ).
    """
    generator = np.random.default_rng(seed)
    eigenvalues = np.geomspace(1.0 / condition, 1.0, dim) * np.ones((n_clients, 1))
    eigenvalues[:, 1:-1] *= generator.uniform(0.5, 2.0, size=(n_clients, dim - 2))
    eigenvalues = np.clip(eigenvalues, 1.0 / condition, 1.0)
    x = np.zeros((n_clients, dim, dim))
    x[:, range(dim), range(dim)] = np.sqrt(dim * eigenvalues)
    targets = np.sqrt(dim * eigenvalues) * generator.normal(size=(n_clients, dim))
    return Ridge(x, targets)


def by_round(problem: Ridge | Logistic, methods: Methods, rounds: int, **options: object) -> Lines:
    """Run each method, and return its squared errors by round."""
    found = {}
    for name, method in methods.items():
        trace: Trace = run(problem, method, rounds=rounds, progress=False, **options)  # type: ignore[arg-type]
        found[name] = (np.arange(rounds + 1.0), trace.mse)
    return found


def participation(files: Files) -> None:
    """Draw cohorts, unequal steps and weights, without noise: Scaffold reaches the optimum, FedAvg does not."""
    unequal = tuple(1 + 19 * c // (CLIENTS - 1) for c in range(CLIENTS))  # 1 to 20
    cohorts: dict[str, Method] = {
        f"Scaffold, {n} of 50": Scaffold(step_size=0.1, local_steps=10, cohort=n) for n in (50, 20, 5)
    }
    cohorts["FedAvg, 5 of 50"] = FedAvg(step_size=0.1, local_steps=10, cohort=5)
    weighted: Methods = {
        "Scaffold, 1 to 20 steps": Scaffold(step_size=0.1, local_steps=unequal),
        "Scaffold, 1 to 20 steps, 5 of 50": Scaffold(step_size=0.1, local_steps=unequal, cohort=5),
        "FedAvg, 10 steps": FedAvg(step_size=0.1, local_steps=10),
    }
    left = CurvePanel(title="some of the clients", lines=by_round(scattered(), cohorts, 600))
    right = CurvePanel(title="unequal steps and weights", lines=by_round(scattered(weights=True), weighted, 600))
    draw_curves([[left, right]], files)


def two_sided(files: Files) -> None:
    """Draw server step sizes: a large one with small local steps is minibatch SGD; a small one helps cohorts."""
    everyone: Methods = {
        f"η = {eta}": TwoSidedScaffold(step_size=0.03 / eta, local_steps=10, server_step_size=eta)
        for eta in (1, 3, 30)
    }
    cohorts: Methods = {
        f"η = {eta}": TwoSidedScaffold(step_size=0.03, local_steps=10, server_step_size=eta, cohort=5)
        for eta in (0.3, 1, 2)
    }
    lines = by_round(scattered(), everyone, 40, batch_size=4, repetitions=40)
    minibatch: Methods = {"minibatch SGD, step γηH": FedAvg(step_size=0.3, local_steps=1)}
    lines |= by_round(scattered(), minibatch, 40, batch_size=40, repetitions=40)
    some = by_round(scattered(), cohorts, 150, batch_size=4, repetitions=40)
    left = CurvePanel(title="everyone, γη = 0.03", lines=lines, spread=False)
    draw_curves([[left, CurvePanel(title="5 of 50 clients, γ = 0.03", lines=some, spread=False)]], files)


def fedlin(files: Files) -> None:
    """Draw FedLin against Scaffold at the same γ and H, without noise, by rounds and by vectors."""
    each: Methods = {kind.__name__: kind(step_size=0.1, local_steps=10) for kind in (Scaffold, FedLin, FedAvg)}
    curves = compare(scattered(), each, vectors=200, repetitions=1, progress=False)
    axes: dict[CostName, str] = {"rounds": "round", "vectors": "vectors per client"}
    panels = [
        CurvePanel(title="no noise", x=label, lines={c.name: (c.cost(axis), c.values) for c in curves})
        for axis, label in axes.items()
    ]
    draw_curves([panels], files)


def fedavg(files: Files) -> None:
    """Draw FedAvg's fixed point, which moves away from the optimum with H; at H = 1 both are minibatch SGD."""
    methods: dict[str, Method] = {
        f"FedAvg, H = {steps}": FedAvg(step_size=0.1, local_steps=steps) for steps in (1, 4, 16)
    }
    methods |= {f"Scaffold, H = {steps}": Scaffold(step_size=0.1, local_steps=steps) for steps in (1, 16)}
    draw_curves([[CurvePanel(title="no noise", lines=by_round(scattered(), methods, 250))]], files)


FIGURES: dict[str, Callable[[Files], None]] = {
    "participation": participation,
    "two-sided": two_sided,
    "fedlin": fedlin,
    "fedavg": fedavg,
}


def draw(out: Path, *, advance: Advance = lambda done, total: None) -> None:
    """Draw all figures to PNG files in a folder."""
    for done, (name, figure) in enumerate(FIGURES.items()):
        advance(done, len(FIGURES))
        figure([out / f"{name}.png"])
    advance(len(FIGURES), len(FIGURES))
