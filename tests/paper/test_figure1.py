"""The claims' verdicts, on curves whose answer is known."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import beta

from benchmarks.figure1 import draw_draws
from fedscaffold.paper.claims import Claim
from fedscaffold.paper.figure1 import (
    KINDS,
    METHODS,
    DataDraw,
    Figure1Settings,
    PanelCurve,
    claims,
    draws,
    draws_to_frame,
    shares,
)
from fedscaffold.problems import paper
from fedscaffold.simulation import Trace
from fedscaffold.theory import Prediction, predict

Plateau = Callable[[int], float]


def curve(kind: str, n_clients: int, method: str, plateau: float) -> PanelCurve:
    mse = np.full((2, 101), plateau)
    mse[:, :50] = 1e6  # a transient that must not count
    trace = Trace(
        theta=np.zeros((2, 1)),
        control_variates=np.zeros((2, n_clients, 1)),
        metrics={"mse": mse},
        rounds=100,
        gradients_per_client=np.zeros((1, 1)),
        vectors_per_client=np.zeros(1),
        bits_sent_per_client=np.zeros(1),
        bits_received_per_client=np.zeros(1),
        provenance={},
    )
    return PanelCurve(kind, n_clients, method, trace)  # type: ignore[arg-type]


def verdicts(regression: Plateau, classification: Plateau, fedavg: float = 1e3) -> list[Claim]:
    curves = []
    for kind, plateau in (("regression", regression), ("classification", classification)):
        for n_clients in (10, 100, 1000, 10000):
            curves.append(curve(kind, n_clients, "Scaffold", plateau(n_clients)))
            curves.append(curve(kind, n_clients, "FedAvg", fedavg))
    return claims(curves)


def test_the_papers_picture_holds() -> None:
    found = verdicts(lambda n: 40 / n, lambda n: 1 / n if n <= 1000 else 1.1e-3)
    assert [claim.holds for claim in found] == [True, None, True, True, True, True]  # draws were not asked for
    assert found[0].measured.startswith("FedAvg's is 1e+04 [1e+04, 1e+04] times Scaffold's")
    assert found[0].measured.endswith("N = 10")
    assert found[1].measured.startswith("in this draw in 4 of 4 panels")
    assert found[2].measured.startswith("slope -1.000")
    assert found[5].measured.startswith("the plateau at 1,000 is 0.909 [")


@pytest.mark.parametrize(
    ("regression", "classification", "fedavg", "broken"),
    [
        (lambda n: 40 / n, lambda n: 1 / n + 1e-3, 0.05, 0),  # FedAvg better somewhere
        (lambda n: 40 / n**0.5, lambda n: 1 / n + 1e-3, 1e3, 2),  # slower than 1/N
        (lambda n: 40 / n if n <= 1000 else 0.2, lambda n: 1 / n + 1e-3, 1e3, 3),  # a floor
        (lambda n: 40 / n, lambda n: 1e-3 * n**0.1, 1e3, 4),  # never improves
        (lambda n: 40 / n, lambda n: 1 / n, 1e3, 5),  # goes on improving
        (lambda n: 40 / n, lambda n: 1 / n + 1e-3, 1e3, 5),  # flattens, and still improves 1.8 times
    ],
)
def test_each_claim_can_fail(regression: Plateau, classification: Plateau, fedavg: float, broken: int) -> None:
    assert verdicts(regression, classification, fedavg)[broken].holds is False


def test_a_draw_in_which_fedavg_is_better_decides_nothing() -> None:
    found = verdicts(lambda n: 40 / n, lambda n: 1 / n + 1e-3, fedavg=2.0)[1]
    assert found.holds is None
    assert found.measured.startswith("in this draw in 3 of 4 panels")


def test_intervals_are_of_the_runs_noise() -> None:
    """Runs whose plateaus differ by less than their noise neither confirm an improvement nor deny it."""
    noise = np.random.default_rng(0).normal(size=(2, 2, 101))
    curves = []
    for kind in ("regression", "classification"):
        for n_clients, draw in zip((100, 1000), noise, strict=True):
            for method in ("Scaffold", "FedAvg"):
                made = curve(kind, n_clients, method, 1.0)
                made.trace.metrics["mse"][:] = np.exp(draw)
                curves.append(made)
    found = claims(curves)
    assert found[0].holds is None
    assert found[4].holds is None
    assert re.fullmatch(r"100 to 1,000: \S+ \[0\.\d+, 1\.\d+\] times \(1/N: 10\)", found[4].measured)


def draw(n_clients: int, seed: int, scaffold: float, fedavg: float) -> DataDraw:
    parts = [Prediction(how="exact", variance=mse, bias=np.zeros(1)) for mse in (scaffold, fedavg)]
    return DataDraw(n_clients, seed, *parts)


@pytest.mark.parametrize(("below", "holds"), [(40, True), (36, True), (24, None), (20, None), (4, False)])
def test_a_share_of_draws(below: int, holds: bool | None) -> None:
    drawn = [draw(10, seed, 1.0, 2.0 if seed < below else 0.5) for seed in range(40)]
    share = shares(drawn)[10]
    assert share.value == below / 40
    low = beta.ppf(0.025, below, 41 - below)  # Clopper and Pearson's
    high = beta.ppf(0.975, below + 1, 40 - below) if below < 40 else 1.0
    assert (share.low, share.high) == pytest.approx((low, high))
    curves = [curve(kind, 10, name, 1.0) for kind in KINDS for name in ("Scaffold", "FedAvg")]
    found = claims(curves, drawn)[1]
    assert found.holds is holds
    assert found.measured.startswith(f"N = 10: {below} of 40 draws, [")


def test_draws_are_exact_plateaus_of_the_next_data_seeds(tmp_path: Path) -> None:
    settings = Figure1Settings(clients=(4, 2000, 2), seed=5, seeds=2)
    found = draws(settings)
    assert [(each.n_clients, each.seed) for each in found] == [
        (2, 5),
        (2, 6),
        (4, 5),
        (4, 6),
    ]
    expected = predict(paper("regression", n_clients=4, seed=6), METHODS[1], batch_size=10)
    assert (found[3].fedavg.mse, found[3].fedavg.how) == (expected.mse, "exact")
    assert all(each.scaffold.squared_bias < 1e-9 * each.scaffold.variance for each in found)
    frame = draws_to_frame(found)
    draw_draws(frame, tmp_path / "draws.png")
    assert (tmp_path / "draws.png").stat().st_size > 10_000
    assert frame["fedavg_squared_bias"][3] == expected.squared_bias
