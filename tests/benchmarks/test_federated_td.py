"""Federated TD: verdicts on plateaus whose answer is known, a small run, and the whole experiment."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from benchmarks.federated_td import PlateauPoint, claims, draw, figures, simulate, slope
from fedscaffold.simulation.stages.stationarity import Plateau

CLIENTS = (10, 30, 100, 300, 1000)
Curve = Callable[[int], float]


def made(scafflsa: Curve, fedavg: Curve) -> list[PlateauPoint]:
    return [
        PlateauPoint("iid", n, name, Plateau(curve(n), 0.01 * curve(n), 10, 100.0), True)
        for n in CLIENTS
        for name, curve in (("ScaffLSA", scafflsa), ("FedAvg", fedavg))
    ]


def test_the_claims_hold_where_they_should() -> None:
    found = claims(made(lambda n: 2 / n, lambda n: 1 + 3 / n))
    assert [claim.holds for claim in found] == [True, True, True]
    assert found[0].measured == "slope -1.000, 95 % interval [-1.000, -1.000]"
    assert found[1].measured == "from N = 30 to 1,000 it changes 0.91 times; 1/N would be 0.03"


@pytest.mark.parametrize(
    ("scafflsa", "fedavg", "broken"),
    [
        (lambda n: 0.1 / n**0.8, lambda n: 1.0, 0),  # slower than 1/N
        (lambda n: 0.1 / n + 4e-4, lambda n: 1.0, 0),  # a floor
        (lambda n: 0.1 / n**1.2, lambda n: 1.0, 0),  # faster
        (lambda n: 0.1 / n, lambda n: 1.0 / n, 1),  # FedAvg falls too
        (lambda n: 0.1 / n, lambda n: 1.0 / n**0.2, 1),  # if only slowly
        (lambda n: 0.1 / n, lambda n: n**0.2, 1),  # or rises
        (lambda n: 11.0 / n, lambda n: 1.0, 2),  # ScaffLSA above it at N = 10
    ],
)
def test_each_claim_can_fail(scafflsa: Curve, fedavg: Curve, broken: int) -> None:
    verdicts = [claim.holds for claim in claims(made(scafflsa, fedavg))]
    assert verdicts == [k != broken for k in range(3)]


def test_the_slopes_interval_is_that_of_ordinary_least_squares() -> None:
    from scipy.stats import linregress, t

    curve: Curve = {10: 1.0, 30: 0.4, 100: 0.09, 300: 0.035, 1000: 0.011}.__getitem__
    found = slope(made(curve, curve), "iid", "ScaffLSA")
    wanted = linregress(np.log(CLIENTS), np.log([curve(n) for n in CLIENTS]))
    half = t.ppf(0.975, 3) * wanted.stderr
    interval = (wanted.slope, wanted.slope - half, wanted.slope + half)
    assert (found.slope, found.low, found.high) == pytest.approx(interval, rel=1e-12)


def test_a_small_run(tmp_path: Path) -> None:
    """Three numbers of clients and both ways of sampling, with the criteria of the whole experiment."""
    points = simulate((10, 30, 90), rounds=60, runs=2)
    assert len(points) == 12
    found = claims(points)
    assert len(found) == 6
    assert all(claim.holds for claim in found), found
    assert figures(points)["fedavg_iid"]["n_30"]["plateau"] == points[3].plateau.mean
    draw(points, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 10_000


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_the_whole_experiment(seed: int) -> None:
    points = simulate(seed=seed)
    assert all(claim.holds for claim in claims(points)), claims(points)
    for sampling in ("iid", "markov"):
        assert abs(slope(points, sampling, "FedAvg").slope) < 0.2
