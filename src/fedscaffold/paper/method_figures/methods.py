"""Figures of the methods' documentation, each showing one method's point."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from fedscaffold.benchmarking import compare
from fedscaffold.core.display.progress import Advance
from fedscaffold.core.protocols import Method
from fedscaffold.core.types import Array
from fedscaffold.methods import FedAvg, FedLin, Scaffold, TwoSidedScaffold
from fedscaffold.paper.method_figures import family
from fedscaffold.paper.method_figures.conditioning import scaling
from fedscaffold.problems import Ridge
from fedscaffold.reports import comparison, growth
from fedscaffold.reports.comparison import CostPanel
from fedscaffold.simulation.run_method import run

CLIENTS, RECORDS, DIM = 50, 40, 5
GAMMA, H = 0.1, 10
UNEQUAL = tuple(1 + 19 * c // (CLIENTS - 1) for c in range(CLIENTS))  # 1 to 20


def scattered(*, weights: bool = False) -> Ridge:
    """Fifty clients, each with a scale and a model of its own; weights, if any, from 1 to 10."""
    generator = np.random.default_rng(0)
    scale = generator.uniform(0.3, 1.5, size=(CLIENTS, 1, 1))
    x = scale * generator.normal(size=(CLIENTS, RECORDS, DIM))
    truth = generator.normal(size=(CLIENTS, DIM))
    y = np.einsum("cnd,cd->cn", x, truth) + generator.normal(size=(CLIENTS, RECORDS))
    return Ridge(x, y, l2=0.05, weights=generator.uniform(1.0, 10.0, size=CLIENTS) if weights else None)


def _lines(
    problem: Ridge, methods: Mapping[str, Method], rounds: int, *, batch: int | None = None, runs: int = 1
) -> dict[str, tuple[Array, Array]]:
    found = {}
    for name, method in methods.items():
        trace = run(problem, method, rounds=rounds, batch_size=batch, repetitions=runs, progress=False)
        found[name] = (np.arange(rounds + 1.0), trace.mse)
    return found


def participation(files: list[Path]) -> None:
    """Cohorts, unequal steps, unequal weights, without noise: Scaffold reaches the optimum, FedAvg does not."""
    cohorts: dict[str, Method] = {
        f"Scaffold, {n} of 50": Scaffold(step_size=GAMMA, local_steps=H, cohort=n) for n in (50, 20, 5)
    }
    cohorts["FedAvg, 5 of 50"] = FedAvg(step_size=GAMMA, local_steps=H, cohort=5)
    unequal: dict[str, Method] = {
        "Scaffold, 1 to 20 steps": Scaffold(step_size=GAMMA, local_steps=UNEQUAL),
        "Scaffold, 1 to 20 steps, 5 of 50": Scaffold(step_size=GAMMA, local_steps=UNEQUAL, cohort=5),
        "FedAvg, 10 steps": FedAvg(step_size=GAMMA, local_steps=H),
    }
    equal, weighted = _lines(scattered(), cohorts, 600), _lines(scattered(weights=True), unequal, 600)
    panels = {"some of the clients": equal, "unequal steps and weights": weighted}
    comparison.draw([[CostPanel(title, "round", lines, log=False) for title, lines in panels.items()]], files)


def two_sided(files: list[Path]) -> None:
    """A large server step size with small local steps is minibatch SGD; with cohorts a small one helps."""
    effective, batch = 0.03, 4
    methods: dict[str, Method] = {
        f"η = {eta}": TwoSidedScaffold(step_size=effective / eta, local_steps=H, server_step_size=eta)
        for eta in (1, 3, 30)
    }
    lines = _lines(scattered(), methods, 40, batch=batch, runs=40)
    one = FedAvg(step_size=effective * H, local_steps=1)
    lines |= _lines(scattered(), {"minibatch SGD, step γηH": one}, 40, batch=batch * H, runs=40)
    cohorts: dict[str, Method] = {
        f"η = {eta}": TwoSidedScaffold(step_size=0.03, local_steps=H, server_step_size=eta, cohort=5)
        for eta in (0.3, 1, 2)
    }
    some = _lines(scattered(), cohorts, 150, batch=batch, runs=40)
    left = CostPanel(f"everyone, γη = {effective}", "round", lines, log=False, spread=False)
    right = CostPanel("5 of 50 clients, γ = 0.03", "round", some, log=False, spread=False)
    comparison.draw([[left, right]], files)


def proxskip(files: list[Path]) -> None:
    """Draw the rounds that methods need against the condition number."""
    series = {
        f"{each.name}, slope {each.fit.slope:.2f}": (np.array(each.conditions), np.array(each.rounds))
        for each in scaling()
    }
    growth.draw([growth.GrowthPanel("", "condition number κ", "communications", series)], files)


def fedlin(files: list[Path]) -> None:
    """FedLin against Scaffold at the same step size and local steps, without noise, by rounds and by vectors."""
    methods: dict[str, Method] = {
        "Scaffold": Scaffold(step_size=GAMMA, local_steps=H),
        "FedLin": FedLin(step_size=GAMMA, local_steps=H),
        "FedAvg": FedAvg(step_size=GAMMA, local_steps=H),
    }
    curves = compare(scattered(), methods, vectors=200, repetitions=1, progress=False)
    axes = {"rounds": "round", "vectors": "vectors per client"}
    panels = [
        CostPanel("no noise", label, {c.name: (c.cost(axis), c.mse) for c in curves}, log=False)
        for axis, label in axes.items()
    ]
    comparison.draw([panels], files)


def fedavg(files: list[Path]) -> None:
    """FedAvg's own fixed point moves away from the optimum with H; at H = 1 it is minibatch SGD, like Scaffold."""
    methods: dict[str, Method] = {
        f"FedAvg, H = {steps}": FedAvg(step_size=GAMMA, local_steps=steps) for steps in (1, 4, 16)
    }
    scaffold: dict[str, Method] = {
        f"Scaffold, H = {steps}": Scaffold(step_size=GAMMA, local_steps=steps) for steps in (1, 16)
    }
    panel = CostPanel("no noise", "round", _lines(scattered(), methods | scaffold, 250), log=False)
    comparison.draw([[panel]], files)


FIGURES: dict[str, Callable[[list[Path]], None]] = {
    "participation": participation,
    "two-sided": two_sided,
    "fedlin": fedlin,
    "fedavg": fedavg,
    "proxskip": proxskip,
    **family.FIGURES,
}


def draw(out: Path, *, advance: Advance = lambda done, total: None) -> None:
    """All figures, as PNG files in a folder."""
    for done, (name, figure) in enumerate(FIGURES.items()):
        advance(done, len(FIGURES))
        figure([out / f"{name}.png"])
    advance(len(FIGURES), len(FIGURES))
