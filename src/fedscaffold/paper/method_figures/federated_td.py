"""ScaffLSA's error falls as 1/N with heterogeneous environments, FedAvg's does not: TD(0) on Garnet chains.

After Mangold, Samsonov, Labbi, Levin, Alami, Naumov and Moulines, "SCAFFLSA: Taming Heterogeneity in Federated
Linear Stochastic Approximation and TD Learning", NeurIPS 2024. Ten environments, each with a tenth of the clients,
so that θ* and FedAvg's bias are the same for every N: with new environments for new clients the bias would change
with N too, as it depends on which environments are drawn.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, get_args

import numpy as np

from fedscaffold.benchmarking.client_numbers import check_client_numbers
from fedscaffold.benchmarking.costs import LineFit, fit_line
from fedscaffold.benchmarking.plateaus import reached_plateau
from fedscaffold.core.checks import whole_number
from fedscaffold.core.display.progress import Advance
from fedscaffold.engines import Numba
from fedscaffold.methods import FedAvg, ScaffLSA
from fedscaffold.paper.claims import Claim
from fedscaffold.problems import GarnetTD
from fedscaffold.problems.linear.td import Observing
from fedscaffold.reports.speed_up import draw as draw_panels
from fedscaffold.simulation.run_method import run
from fedscaffold.simulation.stages.stationarity import Plateau

STEP_SIZE, LOCAL_STEPS, BATCH_SIZE = 0.1, 100, 10
DISCOUNT, HETEROGENEITY, ENVIRONMENTS = 0.8, 1.0, 10
METHODS: dict[str, ScaffLSA | FedAvg] = {
    "ScaffLSA": ScaffLSA(step_size=STEP_SIZE, local_steps=LOCAL_STEPS),
    "FedAvg": FedAvg(step_size=STEP_SIZE, local_steps=LOCAL_STEPS),
}
SLOPE_TOLERANCE = 0.15
FLAT_FACTOR = 1.5


@dataclass(frozen=True, kw_only=True)
class FederatedTDSettings:
    """Numbers of clients, ways of sampling transitions, rounds, runs side by side, seed and threads."""

    clients: Sequence[int] = (10, 30, 100, 300, 1000)
    samplings: Sequence[Observing] = get_args(Observing)
    rounds: int = 150
    runs: int = 4
    seed: int = 0
    threads: int | None = None

    def __post_init__(self) -> None:
        for name, least in (("rounds", 1), ("runs", 1), ("seed", 0)):
            whole_number(name, getattr(self, name), least=least)
        check_client_numbers(self.clients, multiple_of=ENVIRONMENTS, fewest=3)


class PlateauPoint(NamedTuple):
    """Plateau of one method's squared error, from `benchmarking.plateaus.reached_plateau`."""

    sampling: Observing
    n_clients: int
    method: str
    plateau: Plateau
    stationary: bool


def simulate(settings: FederatedTDSettings, *, advance: Advance = lambda done, total: None) -> list[PlateauPoint]:
    """Both methods for every number of clients and way of sampling."""
    total = len(settings.samplings) * len(METHODS) * sum(settings.clients)
    done, points = 0, []
    for sampling in settings.samplings:
        for n_clients in sorted(settings.clients):
            problem = GarnetTD(
                n_clients=n_clients, discount=DISCOUNT, heterogeneity=HETEROGENEITY, environments=ENVIRONMENTS,
                sampling=sampling, seed=settings.seed,
            )  # fmt: skip
            for name, method in METHODS.items():
                trace = run(
                    problem, method, rounds=settings.rounds, batch_size=BATCH_SIZE, seed=settings.seed,
                    repetitions=settings.runs, engine=Numba(threads=settings.threads), progress=False,
                )  # fmt: skip
                points.append(PlateauPoint(sampling, n_clients, name, *reached_plateau(trace)))
                done += n_clients
                advance(done, total)
    return points


def slope(points: Sequence[PlateauPoint], sampling: Observing, method: str) -> LineFit:
    """Log plateau of one method against log N, fitted by a line: slope −1 means that the plateau falls as 1/N."""
    plateaus = _plateaus(points, sampling, method)
    return fit_line(np.log(list(plateaus)), np.log(list(plateaus.values())))


def claims(points: Sequence[PlateauPoint]) -> list[Claim]:
    """Three claims for each way of sampling transitions."""
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
    measured = f"slope {found.slope:.3f}, 95 % interval [{found.low:.3f}, {found.high:.3f}]"
    return Claim(
        f"{sampling}: ScaffLSA's plateau falls as 1/N", measured, abs(found.slope + 1.0) <= SLOPE_TOLERANCE
    )


def _stays(points: Sequence[PlateauPoint], sampling: Observing) -> Claim:
    """From the second smallest N on: at the smallest, noise may still be a part of it."""
    (_, _), (few, before), *_, (many, after) = sorted(_plateaus(points, sampling, "FedAvg").items())
    measured = f"from N = {few:,} to {many:,} it changes {after / before:.2f} times; 1/N would be {few / many:.2g}"
    holds = 1.0 / FLAT_FACTOR <= after / before <= FLAT_FACTOR
    return Claim(f"{sampling}: FedAvg's plateau does not fall", measured, holds)


def _below(points: Sequence[PlateauPoint], sampling: Observing) -> Claim:
    fedavg, corrected = (_plateaus(points, sampling, name) for name in ("FedAvg", "ScaffLSA"))
    ratios = [fedavg[n] / corrected[n] for n in fedavg]
    measured = f"{min(ratios):.1f} to {max(ratios):.0f} times"
    return Claim(f"{sampling}: ScaffLSA's plateau is below FedAvg's for every N", measured, min(ratios) > 1.0)


def draw(points: Sequence[PlateauPoint], files: Sequence[Path]) -> None:
    """Plateau against N, a panel for each way of sampling; to PNG, SVG or PDF."""
    titles = {"iid": "independent transitions", "markov": "along the chain"}
    panels: dict[str, dict[str, list[tuple[int, float, float]]]] = {}
    for point in points:
        lines = panels.setdefault(titles[point.sampling], {name: [] for name in METHODS})
        lines[point.method].append((point.n_clients, point.plateau.mean, point.plateau.standard_error))
    arrays = {title: {name: np.array(rows).T for name, rows in lines.items()} for title, lines in panels.items()}
    draw_panels(arrays, files, falling="ScaffLSA")
