"""Figures of further methods: pulls, compression, clients by turns, variance reduction, and √κ communications."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedscaffold.core.protocols import Method
from fedscaffold.core.types import Array
from fedscaffold.methods import (
    AmplifiedScaffold,
    Apda,
    FedAvg,
    FedProx,
    FedSplit,
    LocalSvrg,
    ProxSkip,
    RandProx,
    Scaffold,
    Scallion,
    Tamuna,
    TwoSidedScaffold,
    VRProxSkip,
)
from fedscaffold.paper.method_figures.conditioning import CLIENTS, Scaling, conditioned, rounds_needed
from fedscaffold.problems import Logistic, Ridge
from fedscaffold.reports import comparison, growth
from fedscaffold.reports.comparison import CostPanel
from fedscaffold.simulation.availability import Periodic
from fedscaffold.simulation.run_method import run
from fedscaffold.simulation.trace import Trace

CONDITIONS = (10.0, 31.6, 100.0, 316.0, 1000.0)
Cost = Callable[[Trace], Array]


def of_rounds(trace: Trace) -> Array:
    """The number of rounds, as a cost."""
    return np.arange(trace.rounds + 1.0)


def of_bits(trace: Trace) -> Array:
    """The bits that a client has sent, as a cost."""
    return trace.bits_sent_per_client


def different(*, n_clients: int, records: int, dim: int, seed: int = 0) -> tuple[Array, Array]:
    """Features and targets of clients, each with a scale and a model of its own."""
    generator = np.random.default_rng(seed)
    x = generator.uniform(0.3, 1.5, size=(n_clients, 1, 1)) * generator.normal(size=(n_clients, records, dim))
    z = np.einsum("cnd,cd->cn", x, generator.normal(size=(n_clients, dim)))
    return x, z + generator.normal(size=(n_clients, records))


def _lines(problem: Any, methods: Mapping[str, Method], cost: Cost, **options: Any) -> dict[str, Any]:
    found = {}
    for name, method in methods.items():
        trace = run(problem, method, progress=False, **options)
        found[name] = (cost(trace), trace.mse)
    return found


def fedprox(files: list[Path]) -> None:
    """The pull makes FedAvg's bias smaller and its progress slower; Scaffold has no bias."""
    methods: dict[str, Method] = {"FedAvg": FedAvg(step_size=0.05, local_steps=20)}
    for weight in (0.3, 3.0):
        methods[f"FedProx, λ = {weight:g}"] = FedProx(step_size=0.05, local_steps=20, proximal_weight=weight)
    methods["FedSplit, λ = 0.3"] = FedSplit(step_size=0.05, local_steps=20, proximal_weight=0.3)
    methods["Scaffold"] = Scaffold(step_size=0.05, local_steps=20)
    lines = _lines(Ridge(*different(n_clients=30, records=40, dim=5), l2=0.05), methods, of_rounds, rounds=150)
    comparison.draw([[CostPanel("no noise", "round", lines, log=False)]], files)


def compression(files: list[Path]) -> None:
    """Squared error against the bits that a client sends."""
    problem, gamma = conditioned(30.0, n_clients=10, dim=50), 0.1
    methods: dict[str, Method] = {"Scaffold": Scaffold(step_size=gamma, local_steps=5)}
    for compressor in ("natural", "random_k:0.1", "top_k:0.1", "quantised:8"):
        methods[f"Scallion, {compressor}"] = Scallion(step_size=gamma, local_steps=5, compression=compressor)
    p = 1.0 / np.sqrt(30.0)
    methods["ProxSkip"] = ProxSkip(step_size=1.0, communication_probability=p)
    methods["Tamuna, 2 owners"] = Tamuna(step_size=1.0, communication_probability=3.0 * p, owners=2)
    lines = _lines(problem, methods, of_bits, rounds=600)
    most = 0.25 * lines["Scaffold"][0][-1]
    shown = {name: (bits[bits <= most], mse[:, bits <= most]) for name, (bits, mse) in lines.items()}
    comparison.draw([[CostPanel("d = 50, κ = 30, no noise", "bits sent per client", shown, log=False)]], files)


def amplified(files: list[Path]) -> None:
    """Clients of which a quarter is available in each round, by turns."""
    problem = Ridge(*different(n_clients=40, records=30, dim=5), l2=0.05)
    methods: dict[str, Method] = {
        "Scaffold": Scaffold(step_size=0.02, local_steps=10),
        "FedAvg": FedAvg(step_size=0.02, local_steps=10),
        "TwoSidedScaffold": TwoSidedScaffold(step_size=0.02, local_steps=10, server_step_size=1.0),
        "Amplified, P = 4": AmplifiedScaffold(step_size=0.02, local_steps=10, window=4),
        "Amplified, P = 4, a = 1.5": AmplifiedScaffold(
            step_size=0.02, local_steps=10, window=4, amplification=1.5
        ),
    }
    lines = _lines(problem, methods, of_rounds, rounds=400, availability=Periodic(4))
    comparison.draw([[CostPanel("a quarter by turns", "round", lines, log=False)]], files)


def svrg(files: list[Path]) -> None:
    """Small batches end on a plateau, unless variance is reduced."""
    x, z = different(n_clients=20, records=100, dim=5)
    problem = Logistic(x, np.sign(z), l2=0.05)
    methods: dict[str, Method] = {
        "Scaffold": Scaffold(step_size=0.1, local_steps=20),
        "ProxSkip": ProxSkip(step_size=0.1, communication_probability=0.05),
        "LocalSvrg": LocalSvrg(step_size=0.1, local_steps=20),
        "VRProxSkip": VRProxSkip(step_size=0.1, communication_probability=0.05),
    }
    lines = _lines(problem, methods, of_rounds, rounds=150, batch_size=5, repetitions=4)
    comparison.draw([[CostPanel("batches of 5", "round", lines, log=False, spread=False)]], files)


def accelerated(condition: float) -> dict[str, Method]:
    """Methods that need of the order of √κ communications, for L = 1 and μ = 1/κ."""
    root = float(np.sqrt(condition))
    steps, pulled = int(np.ceil(3.0 * root)), 1.0 / (1.0 + 1.0 / root)
    owners = min(1.0, np.sqrt(CLIENTS - 1.0) / root)  # one over n − 1 of the dual step is left with two owners
    return {
        "Tamuna": Tamuna(step_size=1.0, communication_probability=owners, owners=2),
        "RandProx": RandProx(step_size=1.0, communication_probability=min(1.0, 2.0 / root), share=0.5),
        "FedSplit": FedSplit(step_size=pulled, local_steps=steps, proximal_weight=1.0 / root),
        "Apda": Apda(step_size=pulled, local_steps=steps, smoothness=1.0, strong_convexity=1.0 / condition),
    }


def scaling(conditions: tuple[float, ...] = CONDITIONS) -> list[Scaling]:
    """Rounds until the squared error has fallen 10⁸ times, for each κ and method."""
    found: dict[str, list[float]] = {}
    for condition in conditions:
        rounds = int(60.0 * np.sqrt(condition)) + 50
        for name, method in accelerated(condition).items():
            needed = rounds_needed(conditioned(condition), method, rounds=rounds, repetitions=3)
            found.setdefault(name, []).append(needed)
    return [Scaling(name, conditions, rounds) for name, rounds in found.items()]


def acceleration(files: list[Path]) -> None:
    """Draw the rounds that accelerated methods need against the condition number."""
    series = {
        f"{each.name}, slope {each.fit.slope:.2f}": (np.array(each.conditions), np.array(each.rounds))
        for each in scaling()
    }
    growth.draw([growth.GrowthPanel("", "condition number κ", "communications", series)], files)


FIGURES: dict[str, Callable[[list[Path]], None]] = {
    "fedprox": fedprox,
    "compression": compression,
    "amplified-scaffold": amplified,
    "local-svrg": svrg,
    "acceleration": acceleration,
}
