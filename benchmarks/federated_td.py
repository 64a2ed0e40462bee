"""ScaffLSA's error falls as 1/N with heterogeneous environments, FedAvg's does not: TD(0) on Garnet chains.

`python -m benchmarks.federated_td [--quick]` measures the table and draws the figure of
docs/explanation/methods/scafflsa.md in about a minute. After Mangold, Samsonov, Labbi, Levin, Alami, Naumov and
Moulines, "SCAFFLSA: Taming Heterogeneity in Federated Linear Stochastic Approximation and TD Learning", 2024.

Ten environments, each with a tenth of the clients, so that θ* and FedAvg's bias are the same for every N: with new
environments for new clients the bias would change with N too, as it depends on which environments are drawn.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import measured
from fedscaffold.benchmarking.fits import LineFit, fit_line, reached_plateau
from fedscaffold.core.display import plain_grid
from fedscaffold.engines import Native
from fedscaffold.methods import FedAvg, ScaffLSA
from fedscaffold.paper.claims import Claim
from fedscaffold.problems import GarnetTD
from fedscaffold.problems.linear import Observing
from fedscaffold.reports.figures import COLOURS, INK, PLATEAU_LABEL, legend_above, saved_panels
from fedscaffold.simulation.run_method import run
from fedscaffold.simulation.stages.stationarity import Plateau

METHODS: dict[str, ScaffLSA | FedAvg] = {
    "ScaffLSA": ScaffLSA(step_size=0.1, local_steps=100),
    "FedAvg": FedAvg(step_size=0.1, local_steps=100),
}
TITLES: dict[Observing, str] = {"iid": "independent transitions", "markov": "along the chain"}


class PlateauPoint(NamedTuple):
    """Plateau of one method's squared error, from `benchmarking.fits.reached_plateau`."""

    sampling: Observing
    n_clients: int
    method: str
    plateau: Plateau
    stationary: bool


def simulate(
    clients: Sequence[int] = (10, 30, 100, 300, 1000), *, rounds: int = 150, runs: int = 4, seed: int = 0
) -> list[PlateauPoint]:
    """Run both methods for every number of clients and way of sampling transitions."""
    points = []
    for sampling in TITLES:
        for n_clients in clients:
            problem = GarnetTD(
                n_clients=n_clients, discount=0.8, heterogeneity=1.0, environments=10, sampling=sampling, seed=seed
            )
            for name, method in METHODS.items():
                trace = run(
                    problem, method, rounds=rounds, batch_size=10, seed=seed, repetitions=runs,
                    engine=Native(), progress=False,
                )  # fmt: skip
                points.append(PlateauPoint(sampling, n_clients, name, *reached_plateau(trace)))
    return points


def slope(points: Sequence[PlateauPoint], sampling: Observing, method: str) -> LineFit:
    """Fit log plateau of one method against log N: slope −1 means that the plateau falls as 1/N."""
    plateaus = _plateaus(points, sampling, method)
    return fit_line(np.log(list(plateaus)), np.log(list(plateaus.values())))


def claims(points: Sequence[PlateauPoint]) -> list[Claim]:
    """Return three claims for each way of sampling transitions."""
    return [
        claim
        for sampling in dict.fromkeys(point.sampling for point in points)
        for claim in (_falls(points, sampling), _stays(points, sampling), _below(points, sampling))
    ]


def _plateaus(points: Sequence[PlateauPoint], sampling: Observing, method: str) -> dict[int, float]:
    chosen = (point for point in points if (point.sampling, point.method) == (sampling, method))
    return {point.n_clients: point.plateau.mean for point in chosen}


def _falls(points: Sequence[PlateauPoint], sampling: Observing) -> Claim:
    found = slope(points, sampling, "ScaffLSA")
    text = f"slope {found.slope:.3f}, 95 % interval [{found.low:.3f}, {found.high:.3f}]"
    return Claim(f"{sampling}: ScaffLSA's plateau falls as 1/N", text, abs(found.slope + 1.0) <= 0.15)


def _stays(points: Sequence[PlateauPoint], sampling: Observing) -> Claim:
    """From the second smallest N on: at the smallest, noise may still be a part of it."""
    (_, _), (few, before), *_, (many, after) = sorted(_plateaus(points, sampling, "FedAvg").items())
    text = f"from N = {few:,} to {many:,} it changes {after / before:.2f} times; 1/N would be {few / many:.2g}"
    return Claim(f"{sampling}: FedAvg's plateau does not fall", text, 1.0 / 1.5 <= after / before <= 1.5)


def _below(points: Sequence[PlateauPoint], sampling: Observing) -> Claim:
    fedavg, corrected = (_plateaus(points, sampling, name) for name in ("FedAvg", "ScaffLSA"))
    ratios = [fedavg[n] / corrected[n] for n in fedavg]
    text = f"{min(ratios):.1f} to {max(ratios):.0f} times"
    return Claim(f"{sampling}: ScaffLSA's plateau is below FedAvg's for every N", text, min(ratios) > 1.0)


def draw(points: Sequence[PlateauPoint], file: Path) -> None:
    """Draw plateaus ± two standard errors against N, a panel for each way of sampling, and 1/N."""
    with saved_panels([file], 1, 2, width=7.8, height=3.5, sharex=True, sharey=True) as (figure, grid):
        for axis, (sampling, title) in zip(grid[0], TITLES.items(), strict=True):
            for name in METHODS:
                chosen = [each for each in points if (each.sampling, each.method) == (sampling, name)]
                clients = np.array([each.n_clients for each in chosen])
                mean = np.array([each.plateau.mean for each in chosen])
                bars = 2.0 * np.array([each.plateau.standard_error for each in chosen])
                colour = COLOURS["Scaffold" if name == "ScaffLSA" else name]
                axis.errorbar(
                    clients, mean, yerr=bars, color=colour, marker="o", ms=4, lw=1.6, capsize=2, label=name
                )
                if name == "ScaffLSA":
                    falling = mean[0] * clients[0] / clients
                    axis.plot(clients, falling, color=INK, lw=0.9, ls="--", label="1/N", zorder=0)
            axis.set(xscale="log", yscale="log", xlabel="number of clients N")
            axis.set_title(title, fontsize=10, color=INK)
            plain_grid(axis)
        grid[0, 0].set_ylabel(PLATEAU_LABEL)
        legend_above(figure, grid[0, 0])


def figures(points: Sequence[PlateauPoint]) -> dict[str, Any]:
    """Return slopes with their intervals and plateaus with their standard errors, by method and sampling."""
    found: dict[str, Any] = {}
    for name in METHODS:
        for sampling in TITLES:
            fit = slope(points, sampling, name)
            chosen = [each for each in points if (each.sampling, each.method) == (sampling, name)]
            found[f"{name.lower()}_{sampling}"] = {
                "slope": fit.slope,
                "low": fit.low,
                "high": fit.high,
                **{
                    f"n_{each.n_clients}": {"plateau": each.plateau.mean, "error": each.plateau.standard_error}
                    for each in chosen
                },
            }
    return found


def main() -> None:
    """Measure, print, draw and save."""
    options = measured.parser(__doc__).parse_args()
    points = simulate((10, 30, 90), rounds=60, runs=2) if options.quick else simulate()
    for claim in claims(points):
        print(f"{claim.verdict:10} {claim.claim}: {claim.measured}")
    if not options.quick:
        draw(points, measured.ROOT / "docs" / "images" / "methods" / "federated_td.png")
    note = "Ten environments, 30 states, 8 features, discount 0.8, γ = 0.1, H = 100, B = 10, 150 rounds, 4 runs."
    measured.save("federated_td", figures(points), options, note=note)


if __name__ == "__main__":
    main()
