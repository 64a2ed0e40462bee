"""Training on minibatches: what a run knows about its own error, and that studies get there with it."""

from typing import Any

import numpy as np
import pytest

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array
from fedscaffold.federation import Study, StudyResult
from fedscaffold.federation.client.rules import SiteRules
from fedscaffold.federation.study.measure import Measurements, SiteMeasurement
from fedscaffold.federation.study.rows import recode
from fedscaffold.federation.study.training import training
from fedscaffold.federation.study.training.autopilot import BatchSearch, batch_step_size, choose_batch
from fedscaffold.federation.study.training.plateau import PlateauMean, StageEstimate, estimate_stage, find_plateau
from tests.federation.study.tables import TABLES, deal

ALL = np.ones(3, dtype=bool)


def walk(rng: np.random.Generator, n: int, memory: float, centre: Array) -> list[Array]:
    """A stationary walk about a centre, with this correlation of neighbours and unit variance."""
    x = rng.normal(size=3)
    found = []
    for _ in range(n):
        x = memory * x + np.sqrt(1.0 - memory**2) * rng.normal(size=3)
        found.append(centre + x)
    return found


@pytest.mark.parametrize("memory", [0.0, 0.5])
def test_the_mean_of_a_plateau_is_as_far_from_the_centre_as_it_says(memory: float) -> None:
    """Over 300 walks the squared distance is its estimate to 25 %, ten standard errors of the ratio or so."""
    rng = np.random.default_rng(1)
    centre = np.array([3.0, -1.0, 0.5])
    true, said, found = 0.0, 0.0, 0
    for _ in range(300):
        plateau = find_plateau(walk(rng, 120, memory, centre))
        if plateau is None:
            continue
        found += 1
        true += float(np.square(plateau.mean - centre).sum())
        said += float(plateau.variances.sum())
        assert plateau.spread.sum() == pytest.approx(3.0, rel=0.6)
    assert found > 250
    assert 0.75 < said / true < 1.35


def test_a_run_that_still_comes_closer_is_not_stationary() -> None:
    rng = np.random.default_rng(2)
    for rate in (0.9, 0.97):
        drifting = [np.full(3, 50.0 * rate**t) + 0.1 * rng.normal(size=3) for t in range(24)]
        assert find_plateau(drifting) is None
    assert find_plateau([np.zeros(3)] * 5) is None
    still = find_plateau([np.ones(3)] * 12)
    assert still is not None
    assert still.variances.sum() == 0.0


def plateau_at(mean: Any, variance: float) -> PlateauMean:
    return PlateauMean(
        mean=np.array(mean, dtype=float),
        variances=np.full(3, variance),
        spread=np.full(3, 10 * variance),
        rounds=20,
    )


def test_the_bias_is_the_difference_between_stages() -> None:
    """With optimum 0 and bias proportional to γ, plateaus at 2b and b: extrapolation gives 0."""
    one = estimate_stage([plateau_at([0.2, 0.0, 0.0], 1e-6)], ALL)
    assert not one.bias_known
    assert one.bias == pytest.approx((30e-6) ** 0.5)
    two = estimate_stage([plateau_at([0.2, 0.0, 0.0], 1e-6), plateau_at([0.1, 0.0, 0.0], 1e-6)], ALL)
    np.testing.assert_allclose(two.theta, 0.0, atol=1e-12)
    assert two.bias_known
    assert two.fluctuation == pytest.approx((15e-6) ** 0.5)  # of 2θ̄ − θ̄': 4 + 1 times 3e-6
    unclear = estimate_stage([plateau_at([0.2, 0.0, 0.0], 1.0), plateau_at([0.1, 0.0, 0.0], 1.0)], ALL)
    np.testing.assert_array_equal(unclear.theta, [0.1, 0.0, 0.0])
    assert unclear.bias == pytest.approx(0.1)
    assert unclear.error == pytest.approx(np.hypot(0.1, 3.0**0.5))


def test_batches_are_taken_where_steps_on_all_rows_cost_more_than_a_round() -> None:
    assert choose_batch("auto", 10_000, 1.0, 1e-4) is None
    assert choose_batch("all", 10_000_000, 1.0, 1.0) is None
    found = choose_batch("auto", 1_000_000, 1.0, 0.25)
    assert found == 12_500  # 64 steps on a share of 1/80 of the rows, each row five times as dear, take a second
    assert choose_batch("auto", 100, 1.0, 1.0) is None
    assert choose_batch(50, 100, 1.0, 0.0) == 50
    assert choose_batch(500, 100, 1.0, 0.0) is None
    site = SiteMeasurement(n_rows=9, smoothness=2.0, noise=8.0, seconds_per_step=0.0)
    quiet = SiteMeasurement(n_rows=90, smoothness=1.0, noise=1.0, seconds_per_step=0.0)
    assert batch_step_size(Measurements.of({"bonn": site, "lyon": quiet}), 12) == 0.25


def test_local_steps_of_batches_grow_while_that_helps() -> None:
    search = BatchSearch(most=300)
    closer = [np.array([0.9**t]) for t in range(12)]
    away = closer[::-1]
    assert search.after(closer).local_steps == 256
    assert search.after(closer).after(closer).local_steps == 256
    assert search.after(closer).after(closer).rounds == np.inf
    back = search.after(closer).after(away)
    assert (back.local_steps, back.may_grow) == (64, False)
    assert search.settled().local_steps == 128


def true_error(result: StudyResult, frame: Any, estimate: StageEstimate) -> float:
    optimum = result.agreement.problem(recode(frame, result.agreement)).optimum()
    slopes = result.training.certificate.slopes
    return float(np.linalg.norm((estimate.theta - optimum)[slopes]))


@pytest.mark.parametrize(("name", "how"), [("wards", "features"), ("diabetes", "even")])
def test_a_study_on_batches_knows_its_error_and_reaches_the_tolerance(
    name: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame, kind = TABLES[name]()
    told: list[StageEstimate] = []

    def spy(plateaus: Any, slopes: Any) -> StageEstimate:
        told.append(estimate_stage(plateaus, slopes))
        return told[-1]

    monkeypatch.setattr(training, "estimate_stage", spy)
    result = Study(target="y", kind=kind, trainer="scaffold", batch_size=32, evaluate=0.0).run(
        deal(frame, 4, how, seed=3), seed=1, engine="reference", rules=SiteRules(by_the_clock=False)
    )
    assert result.reached
    assert "on batches of 32 rows" in result.training.notes[-1]
    assert any("on batches of 32" in point.method for point in result.training.history)
    assert told
    for estimate in told:
        assert true_error(result, frame, estimate) < 3.0 * estimate.error
        assert true_error(result, frame, estimate) > 0.1 * estimate.error
    exact = Study(target="y", kind=kind, evaluate=0.0).run(deal(frame, 4, how, seed=3), engine="reference")
    np.testing.assert_allclose(result.theta, exact.theta, atol=1e-5)


def test_a_batch_size_must_be_a_number_or_a_word() -> None:
    for wrong in (0, -3, 1.5, "some"):
        with pytest.raises(InvalidInput, match="batch_size"):
            Study(target="y", batch_size=wrong)  # type: ignore[arg-type]
