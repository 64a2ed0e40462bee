"""Figures of the methods' pages, into docs/images/methods.

`python -m benchmarks.method_figures [NAME ...]` draws all, or some, in a minute or two.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks import measured
from fedscaffold import methods as of
from fedscaffold.benchmarking import compare
from fedscaffold.benchmarking.comparison import CostName
from fedscaffold.benchmarking.fits import LineFit, fit_line
from fedscaffold.core.protocols import Method
from fedscaffold.core.types import Array
from fedscaffold.engines import Native
from fedscaffold.methods import FedAvg, FedLin, FedSplit, ProxSkip, Scaffold, Tamuna, TwoSidedScaffold
from fedscaffold.problems import Logistic, Ridge
from fedscaffold.problems.paper import conditioned
from fedscaffold.reports.figures import CurvePanel, draw_curves
from fedscaffold.simulation.availability import Periodic
from fedscaffold.simulation.run_method import run
from fedscaffold.simulation.trace import Trace

Lines = dict[str, tuple[Array, Array]]  # costs and squared errors by method
Methods = Mapping[str, Method]
Files = list[Path]
CLIENTS = 50  # of the figures on some of the clients, unequal steps and server step sizes
REDUCTION = 1e-8  # of the squared error: the rounds until then are counted against the condition number


def scattered(
    n_clients: int = CLIENTS, records: int = 40, dim: int = 5, *, l2: float = 0.05, weights: bool = False
) -> Ridge:
    """Build a ridge problem of clients that differ in scale and true model; weights, if any, from 1 to 10."""
    generator = np.random.default_rng(0)
    x = generator.uniform(0.3, 1.5, size=(n_clients, 1, 1)) * generator.normal(size=(n_clients, records, dim))
    z = np.einsum("cnd,cd->cn", x, generator.normal(size=(n_clients, dim)))
    y = z + generator.normal(size=(n_clients, records))
    return Ridge(x, y, l2=l2, weights=generator.uniform(1.0, 10.0, size=n_clients) if weights else None)


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


def fedprox(files: Files) -> None:
    """Draw the pull, which makes FedAvg's bias smaller and its progress slower; Scaffold has no bias."""
    methods: dict[str, Method] = {"FedAvg": FedAvg(step_size=0.05, local_steps=20)}
    for weight in (0.3, 3.0):
        methods[f"FedProx, λ = {weight:g}"] = of.FedProx(step_size=0.05, local_steps=20, proximal_weight=weight)
    methods["FedSplit, λ = 0.3"] = FedSplit(step_size=0.05, local_steps=20, proximal_weight=0.3)
    methods["Scaffold"] = Scaffold(step_size=0.05, local_steps=20)
    draw_curves([[CurvePanel(title="no noise", lines=by_round(scattered(30), methods, 150))]], files)


def compression(files: Files) -> None:
    """Draw squared error against the bits that a client sends."""
    problem, p = conditioned(30.0, n_clients=10, dim=50), 1.0 / np.sqrt(30.0)
    methods: dict[str, Method] = {"Scaffold": Scaffold(step_size=0.1, local_steps=5)}
    for compressor in ("natural", "random_k:0.1", "top_k:0.1", "quantised:8"):
        methods[f"Scallion, {compressor}"] = of.Scallion(step_size=0.1, local_steps=5, compression=compressor)
    methods["ProxSkip"] = ProxSkip(step_size=1.0, communication_probability=p)
    methods["Tamuna, 2 owners"] = Tamuna(step_size=1.0, communication_probability=3.0 * p, owners=2)
    traces = {name: run(problem, method, rounds=600, progress=False) for name, method in methods.items()}
    most = 0.25 * traces["Scaffold"].bits_sent_per_client[-1]
    shown = {}
    for name, trace in traces.items():
        kept = trace.bits_sent_per_client <= most
        shown[name] = (trace.bits_sent_per_client[kept], trace.mse[:, kept])
    draw_curves([[CurvePanel(title="d = 50, κ = 30, no noise", x="bits sent per client", lines=shown)]], files)


def amplified(files: Files) -> None:
    """Draw clients of which a quarter is available in each round, by turns."""
    methods: dict[str, Method] = {
        "Scaffold": Scaffold(step_size=0.02, local_steps=10),
        "FedAvg": FedAvg(step_size=0.02, local_steps=10),
        "TwoSidedScaffold": TwoSidedScaffold(step_size=0.02, local_steps=10, server_step_size=1.0),
    }
    for name, factor in (("Amplified, P = 4", 1.0), ("Amplified, P = 4, a = 1.5", 1.5)):
        methods[name] = of.AmplifiedScaffold(step_size=0.02, local_steps=10, window=4, amplification=factor)
    lines = by_round(scattered(40, 30), methods, 400, availability=Periodic(4))
    draw_curves([[CurvePanel(title="a quarter by turns", lines=lines)]], files)


def svrg(files: Files) -> None:
    """Draw small batches, which end on a plateau unless variance is reduced."""
    ridge = scattered(20, 100)
    problem = Logistic(ridge.x.reshape(20, 100, 5), np.sign(ridge.y.reshape(20, 100)), l2=0.05)
    methods: Methods = {
        "Scaffold": Scaffold(step_size=0.1, local_steps=20),
        "ProxSkip": ProxSkip(step_size=0.1, communication_probability=0.05),
        "LocalSvrg": of.LocalSvrg(step_size=0.1, local_steps=20),
        "VRProxSkip": of.VRProxSkip(step_size=0.1, communication_probability=0.05),
    }
    lines = by_round(problem, methods, 150, batch_size=5, repetitions=4)
    draw_curves([[CurvePanel(title="batches of 5", lines=lines, spread=False)]], files)


@dataclass(frozen=True)
class Scaling:
    """Rounds by condition number, and the slope of their logarithms."""

    name: str
    conditions: Sequence[float]
    rounds: Sequence[float]

    @property
    def fit(self) -> LineFit:
        """The line through log rounds over log κ; its slope is the exponent of κ."""
        return fit_line(np.log(self.conditions), np.log(self.rounds))


def rounds_needed(condition: float, method: Method, *, rounds: int, repetitions: int) -> float:
    """Return the round in which the error has fallen 10⁸ times, in the mean over repetitions."""
    errors = run(
        conditioned(condition), method, rounds=rounds, repetitions=repetitions, engine=Native(threads=1),
        progress=False,
    ).mse  # fmt: skip
    below = errors <= REDUCTION * errors[:, :1]
    if not below.any(axis=1).all():
        raise RuntimeError(f"{type(method).__name__} does not get there in {rounds} rounds")
    return float(below.argmax(axis=1).mean())


def proxskip_scaling(
    conditions: Sequence[float] = (10.0, 31.6, 100.0, 316.0, 1000.0, 3160.0, 10000.0),
) -> list[Scaling]:
    """Return rounds of ProxSkip, about √κ, and of Scaffold, about κ, until the squared error has fallen 10⁸ times.

    ProxSkip with γ = 1/L and p = 1/√κ; Scaffold with H = 10 and the largest step size that Lemma 4.1 allows,
    γ = 1/(H(L + μ)).
    """
    skipping, scaffold = [], []
    slow = np.log(1.0 / REDUCTION) / 2.0
    for condition in conditions:
        proxskip = ProxSkip(step_size=1.0, communication_probability=1.0 / np.sqrt(condition))
        most = int(6 * slow * np.sqrt(condition)) + 50
        skipping.append(rounds_needed(condition, proxskip, rounds=most, repetitions=5))
        method = Scaffold(step_size=1.0 / (10 * (1.0 + 1.0 / condition)), local_steps=10)
        scaffold.append(rounds_needed(condition, method, rounds=int(1.3 * slow * condition) + 50, repetitions=1))
    return [Scaling("ProxSkip", conditions, skipping), Scaling("Scaffold", conditions, scaffold)]


def accelerated_scaling(conditions: Sequence[float] = (10.0, 31.6, 100.0, 316.0, 1000.0)) -> list[Scaling]:
    """Return rounds of further methods that need about √κ communications, as `proxskip_scaling` counts them."""
    found: dict[str, list[float]] = {}
    for condition in conditions:
        root = float(np.sqrt(condition))
        steps, pulled = int(np.ceil(3.0 * root)), 1.0 / (1.0 + 1.0 / root)
        owned = min(1.0, np.sqrt(3.0) / root)  # of four clients' dual step a third is left with two owners
        methods: Methods = {
            "Tamuna": Tamuna(step_size=1.0, communication_probability=owned, owners=2),
            "RandProx": of.RandProx(step_size=1.0, communication_probability=min(1.0, 2.0 / root), share=0.5),
            "FedSplit": FedSplit(step_size=pulled, local_steps=steps, proximal_weight=1.0 / root),
            "Apda": of.Apda(step_size=pulled, local_steps=steps, smoothness=1.0, strong_convexity=1.0 / condition),
        }
        for name, method in methods.items():
            needed = rounds_needed(condition, method, rounds=int(60.0 * root) + 50, repetitions=3)
            found.setdefault(name, []).append(needed)
    return [Scaling(name, conditions, rounds) for name, rounds in found.items()]


def draw_scaling(found: Sequence[Scaling], files: Files) -> None:
    series = {
        f"{each.name}, slope {each.fit.slope:.2f}": (
            np.array(each.conditions),
            np.array([each.rounds], dtype=np.float64),
        )
        for each in found
    }
    drawn = CurvePanel(title="", x="condition number κ", y="communications", lines=series, log_x=True)
    draw_curves([[drawn]], files)


FIGURES: dict[str, Callable[[Files], None]] = {
    "participation": participation,
    "two-sided": two_sided,
    "fedlin": fedlin,
    "fedavg": fedavg,
    "fedprox": fedprox,
    "compression": compression,
    "amplified-scaffold": amplified,
    "local-svrg": svrg,
    "proxskip": lambda files: draw_scaling(proxskip_scaling(), files),
    "acceleration": lambda files: draw_scaling(accelerated_scaling(), files),
}


def main() -> None:
    """Draw the figures that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*FIGURES, []], help="figures to draw; all if none is given")
    for name in parser.parse_args().names or FIGURES:
        FIGURES[name]([measured.ROOT / "docs" / "images" / "methods" / f"{name}.png"])
        print(f"drew {name}", flush=True)


if __name__ == "__main__":
    main()
