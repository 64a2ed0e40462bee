"""The claims' verdicts, on curves whose answer is known."""

from collections.abc import Callable

import numpy as np
import pytest

from fedscaffold.paper.claims import Claim
from fedscaffold.paper.figure1 import PanelCurve, claims
from fedscaffold.simulation import Trace

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
    found = verdicts(lambda n: 40 / n, lambda n: 1 / n + 1e-3)
    assert [claim.holds for claim in found] == [True] * 5
    assert found[0].measured == "250.00 to 909091 times below; least in regression, N = 10"
    assert found[1].measured.startswith("slope -1.000")


@pytest.mark.parametrize(
    ("regression", "classification", "fedavg", "broken"),
    [
        (lambda n: 40 / n, lambda n: 1 / n + 1e-3, 1.0, 0),  # FedAvg better somewhere
        (lambda n: 40 / n**0.5, lambda n: 1 / n + 1e-3, 1e3, 1),  # slower than 1/N
        (lambda n: 40 / n + 0.02, lambda n: 1 / n + 1e-3, 1e3, 2),  # a floor
        (lambda n: 40 / n, lambda _: 1e-3, 1e3, 3),  # never improves
        (lambda n: 40 / n, lambda n: 1 / n, 1e3, 4),  # never flattens
    ],
)
def test_each_claim_can_fail(regression: Plateau, classification: Plateau, fedavg: float, broken: int) -> None:
    assert verdicts(regression, classification, fedavg)[broken].holds is False
