"""The claims of the figure up to a million clients, on plateaus whose answer is known."""

from collections.abc import Callable

import numpy as np
import pytest

from fedscaffold.core.types import Array
from fedscaffold.paper.claims import Claim
from fedscaffold.paper.million import claims
from fedscaffold.reports.figures import PlateauSeries

CLIENTS = np.array([10.0, 100.0, 1000.0, 10_000.0])
Law = Callable[[Array], Array]


def verdicts(ridge: Law, logistic: Law, *, predicted: Law | None = None, saturates: float = 500.0) -> list[Claim]:
    """Ridge and logistic plateaus that follow these laws; logistic ones predicted by another, if given."""
    found = {}
    for name, law, other in (("ridge-stream", ridge, ridge), ("logistic-stream", logistic, predicted or logistic)):
        found[name] = PlateauSeries(
            x=CLIENTS, stationary=np.full(4, True), plateau=law(CLIENTS), error=0.01 * law(CLIENTS),
            predicted=other(CLIENTS),
            saturation=(None, saturates if name == "logistic-stream" else None),
        )  # fmt: skip
    return claims(found)


def falling(N: Array) -> Array:
    return 3.0 / N


def floored(N: Array) -> Array:
    """Both parts are equal at N = 500."""
    return 2.0 / N + 0.004


def test_what_is_told_where_all_claims_hold() -> None:
    found = verdicts(falling, floored)
    assert [claim.holds for claim in found] == [True] * 5
    assert found[0].measured == "slope -1.000, N = 10 to 10,000"
    assert found[2].measured.startswith("N = 500 ± ")
    assert found[2].measured.endswith("predicted 500: 1.00 times")
    assert found[3].claim.startswith("Ridge stream:")


@pytest.mark.parametrize(("predicted", "ratio", "holds"), [(400.0, "1.25", False), (600.0, "0.83", True)])
def test_the_measured_saturation_over_the_predicted_one(predicted: float, ratio: str, holds: bool) -> None:
    found = verdicts(falling, floored, saturates=predicted)[2]
    assert found.measured.endswith(f"predicted {predicted:.0f}: {ratio} times")
    assert found.holds is holds


@pytest.mark.parametrize(
    ("ridge", "logistic", "predicted", "broken"),
    [
        (lambda N: 3.0 / N**0.8, floored, None, [0]),  # too slow, but without a floor
        (floored, floored, None, [0, 1]),  # a floor
        (falling, floored, lambda N: floored(N) * np.where(N == 100.0, 1.5, 1.0), [4]),  # one N is off
    ],
)
def test_each_claim_can_fail(ridge: Law, logistic: Law, predicted: Law | None, broken: list[int]) -> None:
    found = verdicts(ridge, logistic, predicted=predicted)
    assert [k for k, claim in enumerate(found) if claim.holds is False] == broken
    if broken == [4]:
        assert found[4].measured == "0.67 to 1.00 times what was predicted; furthest 0.67 ± 0.01, at N = 100"


def test_without_a_floor_in_sight_nothing_is_said() -> None:
    assert verdicts(falling, falling)[2].holds is None
