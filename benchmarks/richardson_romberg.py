"""Richardson–Romberg, measured: how much bias is left, at which order in γ, at what price in noise.

`python -m benchmarks.richardson_romberg [--quick]` prints the tables and draws the figure of
docs/explanation/methods/richardson-romberg.md in some minutes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import measured
from fedscaffold.core.display import plain_grid
from fedscaffold.core.types import Array
from fedscaffold.methods import FedAvg, Scaffold
from fedscaffold.problems import Logistic, Ridge, paper
from fedscaffold.reports.figures import MARKERS, legend_above, saved_panels
from fedscaffold.simulation import TailAverage
from fedscaffold.simulation.observers import squared_distance
from fedscaffold.simulation.run_method import run
from fedscaffold.simulation.stages.richardson_romberg import richardson_romberg

BATCH_SIZE = 1


class Estimate(NamedTuple):
    """A number and its standard error."""

    value: float
    error: float

    def __str__(self) -> str:
        """The value and its standard error, as in 1.23e-04 ± 5e-06."""
        return f"{self.value:.2e} ± {self.error:.0e}"


class ThreeAverages(NamedTuple):
    """Squared bias of the average, of its extrapolation, and of the extrapolation from the other pair."""

    plain: Any
    extrapolated: Any
    other: Any


@dataclass(frozen=True)
class BiasPoint:
    """Measured squared biases and variances of the averages for one γ."""

    method: Any
    measured: ThreeAverages
    variances: ThreeAverages


@dataclass(frozen=True)
class BiasSeries:
    """A panel: the methods along it, and how many rounds each runs."""

    title: str
    methods: Sequence[Any]
    rounds: Sequence[int]
    n_clients: int = 100
    repetitions: int = 32


def at_fixed_product(product: float, steps: Sequence[int]) -> list[Scaffold]:
    """Scaffold with γH = product for each H."""
    return [Scaffold(step_size=product / H, local_steps=H) for H in steps]


SERIES = {
    "short": BiasSeries(
        "Scaffold, γH = 0.8", at_fixed_product(0.8, (6, 8, 12, 16, 24)), (1200, 1200, 1200, 1600, 2400)
    ),
    "long": BiasSeries("Scaffold, γH = 3.2", at_fixed_product(3.2, (16, 22, 32, 46, 64)), (400,) * 5),
    "fedavg": BiasSeries(
        "FedAvg, H = 10",
        [FedAvg(step_size=g, local_steps=10) for g in (0.1, 0.05, 0.025, 0.0125)],
        (600, 1200, 2400, 4800),
        n_clients=400,  # at 100 clients two parts of FedAvg's bias happen to cancel near γ = 0.1
        repetitions=16,
    ),
}
COMPARED = (*at_fixed_product(3.2, (32,)), *at_fixed_product(0.8, (24,)))


def squared_bias(averages: Array, optimum: Array) -> Estimate:
    """Mean over r ≠ s of ⟨θ̄_r − θ*, θ̄_s − θ*⟩: unbiased for ‖b‖², b = E θ̄ − θ*.

    Its variance is 4 bᵀΣb/R + 2 tr Σ²/(R(R − 1)), with Σ = Cov θ̄; both are estimated without bias for
    Gaussian θ̄, except that the first is not taken below 0, so that the error is a little large when b is near 0.
    """
    errors = averages - optimum
    R, mean = len(errors), errors.mean(axis=0)
    S = np.atleast_2d(np.cov(errors.T))
    value = mean @ mean - np.trace(S) / R
    n = R - 1
    square = n**2 / ((n - 1) * (n + 2)) * (np.sum(S * S) - np.trace(S) ** 2 / n)
    along = max(float(mean @ S @ mean - np.sum(S * S) / R), 0.0)
    return Estimate(float(value), float(np.sqrt(4.0 * along / R + 2.0 * square / (R * n))))


def coarse_pairs(method: Any) -> tuple[Any, Any]:
    """Coarse methods: of the pairing that fits, (2γ, H/2) for Scaffold and (2γ, H) for FedAvg, and the other."""
    doubled = replace(method, step_size=2.0 * method.step_size)
    halved = replace(doubled, local_steps=method.local_steps // 2)
    return (halved, doubled) if method.kind == "scaffold" else (doubled, halved)


def settings_of(problem: Ridge | Logistic, **given: Any) -> dict[str, Any]:
    """Settings of `run` that all chains of this page share: they start at θ*."""
    return {"batch_size": BATCH_SIZE, "progress": False, "theta0": problem.optimum(), **given}


def measure(problem: Ridge | Logistic, method: Any, *, rounds: int, repetitions: int, seed: int = 0) -> BiasPoint:
    """Chains that start at θ* and leave out the first quarter of their rounds."""
    common = settings_of(problem, rounds=rounds, repetitions=repetitions, seed=seed)
    found = richardson_romberg(problem, method, discard=rounds // 4, **common)
    wrong = run(problem, coarse_pairs(method)[1], record=(TailAverage(after=rounds // 4),), **common).average
    averages = ThreeAverages(found.fine, found.theta, 2.0 * found.fine - wrong)
    return BiasPoint(
        method=method,
        measured=ThreeAverages(*(squared_bias(each, problem.optimum()) for each in averages)),
        variances=ThreeAverages(*map(total_variance, averages)),
    )


def total_variance(averages: Array) -> float:
    """Trace of Cov θ̄, estimated from the repetitions."""
    return float(averages.var(axis=0, ddof=1).sum())


def slope(gammas: Sequence[float], estimates: Sequence[Estimate]) -> Estimate:
    """Order in γ: weighted least squares of log estimate on log γ; estimates must be well above their errors."""
    values = np.array([estimate.value for estimate in estimates])
    weights = np.square(values / np.array([estimate.error for estimate in estimates]))
    x, y = np.log(gammas), np.log(values)
    x = x - weights @ x / weights.sum()
    spread = weights @ np.square(x)
    return Estimate(float(weights @ (x * y) / spread), float(1.0 / np.sqrt(spread)))


def noise_factors(
    problem: Ridge | Logistic, method: Scaffold, *, rounds: int, repetitions: int, seed: int = 0
) -> dict[str, float]:
    """Variance of 2 θ̄(γ, H) − θ̄(2γ, H/2) over that of θ̄(γ, H), by which records the coarse chains draw."""
    common = settings_of(problem, rounds=rounds, repetitions=repetitions)
    found = richardson_romberg(problem, method, discard=rounds // 4, seed=seed, **common)
    coarse, tail = coarse_pairs(method)[0], (TailAverage(after=rounds // 4),)
    one, independent = (
        run(problem, coarse, record=tail, seed=which, **common).average for which in (seed, seed + 1)
    )
    ways = {
        "two coarse chains that share all records": found.theta,
        "one coarse chain, half of the records": 2.0 * found.fine - one,
        "one coarse chain, records of its own": 2.0 * found.fine - independent,
    }
    return {name: total_variance(each) / total_variance(found.fine) for name, each in ways.items()}


def equal_gradients(
    problem: Ridge | Logistic, method: Scaffold, *, rounds: int, repetitions: int, seed: int = 0
) -> dict[str, Estimate]:
    """Squared errors of averages that cost the same gradients: Richardson–Romberg, twice the rounds, half of γ."""
    common = settings_of(problem, repetitions=repetitions, seed=seed)
    found = richardson_romberg(problem, method, rounds=rounds, discard=rounds // 4, **common)
    longer = {
        "twice the rounds": method,
        "twice the rounds, γ/2": replace(method, step_size=0.5 * method.step_size),
    }
    tail = (TailAverage(after=2 * rounds // 4),)
    averages = {"Richardson–Romberg": found.theta}
    for name, each in longer.items():
        averages[name] = run(problem, each, rounds=2 * rounds, record=tail, **common).average
    errors = {name: squared_distance(each, problem.optimum()) for name, each in averages.items()}
    return {
        name: Estimate(float(each.mean()), float(each.std(ddof=1) / np.sqrt(each.size)))
        for name, each in errors.items()
    }


def draw(panels: Sequence[tuple[str, Sequence[BiasPoint]]], file: Path) -> None:
    """Draw measured squared biases by γ, with bars of two standard errors.

    A measurement below two of its standard errors is drawn as an upper limit: an arrow down from there.
    """
    width = 1.0 + 3.4 * len(panels)
    names = ("plain average", "Richardson–Romberg", "the other pairing")
    with saved_panels([file], 1, len(panels), width=width, height=4.0, sharey=True) as (figure, grid):
        for axis, (title, points) in zip(grid[0], panels, strict=True):
            x = np.array([point.method.step_size for point in points])
            for k, (name, colour, marker) in enumerate(
                zip(names, ("#0072B2", "#009E73", "#999999"), MARKERS, strict=False)
            ):
                value, error = np.array([point.measured[k] for point in points]).T
                clear, highest = value > 2.0 * error, np.maximum(value, 0.0) + 2.0 * error
                axis.errorbar(
                    x[clear], value[clear], yerr=2.0 * error[clear], color=colour, fmt=f"{marker}-", lw=1.0, ms=5,
                    capsize=2, label=name,
                )  # fmt: skip
                axis.errorbar(
                    x[~clear], highest[~clear], yerr=0.6 * highest[~clear], uplims=True, color=colour, fmt="_"
                )
            axis.set(xscale="log", yscale="log", xlabel="step size γ")
            axis.set_title(title, fontsize=10)
            axis.set_xticks(x, [f"{each:.3g}" for each in x])
            axis.set_xticks([], minor=True)
            plain_grid(axis)
        grid[0, 0].set_ylabel("squared bias of the average")
        legend_above(figure, grid[0, 0])


def main() -> None:
    """Measure, print, draw and save."""
    options = measured.parser(__doc__).parse_args()
    less = 20 if options.quick else 1  # times fewer rounds
    panels: list[tuple[str, list[BiasPoint]]] = []
    numbers: dict[str, Any] = {}
    for name, series in SERIES.items():
        problem = paper("classification", n_clients=series.n_clients, informative=(2, 2))
        print(f"\n{series.title}: squared bias, plain, extrapolated, other pairing; noise")
        panels.append((series.title, []))
        for method, rounds in zip(series.methods, series.rounds, strict=True):
            point = measure(problem, method, rounds=rounds // less, repetitions=series.repetitions)
            panels[-1][1].append(point)
            shown = "  ".join(map(str, point.measured))
            factor = point.variances.extrapolated / point.variances.plain
            print(f"γ={method.step_size:.4f} H={method.local_steps:2d}  {shown}  ×{factor:.2f}", flush=True)
            estimates = zip(ThreeAverages._fields, point.measured, strict=True)
            cell = {each: {"value": found.value, "error": found.error} for each, found in estimates}
            numbers.setdefault(name, {})[f"steps_{method.local_steps}_{len(panels[-1][1])}"] = cell
        for which in ("plain", "extrapolated"):
            found = [(point.method.step_size, getattr(point.measured, which)) for point in panels[-1][1]]
            clear = [(gamma, estimate) for gamma, estimate in found if estimate.value > 4.0 * estimate.error]
            if len(clear) > 1:
                order = slope([gamma for gamma, _ in clear], [estimate for _, estimate in clear])
                print(
                    f"order of {which}: {order.value:.2f} ± {1.96 * order.error:.2f} (95 %, {len(clear)} points)"
                )
    problem = paper("classification", n_clients=100, informative=(2, 2))
    print("\nvariance over that of the plain average")
    for way, ratio in noise_factors(problem, COMPARED[0], rounds=400 // less, repetitions=64).items():
        print(f"{way}: {ratio:.2f}")
    for method in COMPARED:
        print(f"\nsquared error of averages at equal gradients, γ={method.step_size:.4f} H={method.local_steps}")
        for rounds in (25,) if options.quick else (25, 100, 400, 1600):
            rows = equal_gradients(problem, method, rounds=rounds, repetitions=16)
            print(f"{rounds} rounds:", "; ".join(f"{name} {each}" for name, each in rows.items()), flush=True)
    if not options.quick:
        draw(panels, measured.ROOT / "docs" / "images" / "methods" / "richardson-romberg.png")
    measured.save("richardson_romberg", numbers, options, note="Squared bias of averages and its standard error.")


if __name__ == "__main__":
    main()
