"""Local steps taken many at once, against every one of them."""

import numpy as np
import pytest

from benchmarks.random_problems import random_case
from fedscaffold import Scaffold, theory
from fedscaffold.core.random.batches import Batches
from fedscaffold.theory.prediction.moments import predict as predict_module
from fedscaffold.theory.prediction.moments.local_round import Cloud, Coefficients, LocalRound, Start
from fedscaffold.theory.prediction.moments.plateau import (
    PATIENCE,
    SETTLED,
    SETTLED_DEAR,
    settled_after,
    small_plateau,
)
from fedscaffold.theory.prediction.moments.state import beginning, start_of
from fedscaffold.theory.prediction.setting import setting
from tests.samples import make


@pytest.mark.parametrize("skew", [False, True])
@pytest.mark.parametrize("gamma", [0.02, 0.3])
def test_many_steps_at_once_end_where_single_steps_do(
    skew: bool, gamma: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From θ = 0, where curvature and noise change most; and with far fewer looks at the records."""
    s = setting(make("logistic", (9, 6), 2), Scaffold(step_size=gamma, local_steps=150), Batches(2))
    start = start_of(s, beginning(s, skew=skew))
    every = LocalRound(s, skew=skew, step_by_step=150)(start).end
    look, looks = LocalRound.coefficients, 0

    def counted(self: LocalRound, cloud: Cloud, begin: Start) -> Coefficients:
        nonlocal looks
        looks += 1
        return look(self, cloud, begin)

    monkeypatch.setattr(LocalRound, "coefficients", counted)
    leaps = LocalRound(s, skew=skew)(start).end
    assert looks < 75
    spread = np.sqrt(np.trace(every.cov(start), axis1=1, axis2=2) + np.square(every.mean).sum(axis=1))
    assert (np.linalg.norm(leaps.mean - every.mean, axis=1) < 0.005 * spread).all()
    np.testing.assert_allclose(leaps.noise, every.noise, atol=0.02 * np.abs(every.noise).max())
    np.testing.assert_allclose(leaps.B, every.B, atol=0.01 * np.abs(every.B).max())


def test_the_bias_of_a_plateau_is_that_of_single_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small errors of each round add up in the bias, on which extrapolations rest."""
    problem, method = make("logistic", (30,) * 12, 4, l2=0.05, seed=1), Scaffold(step_size=0.1, local_steps=16)
    leaps = theory.predict(problem, method, batch_size=1).bias
    monkeypatch.setattr(predict_module, "STEP_BY_STEP", 16)
    every = theory.predict(problem, method, batch_size=1).bias
    assert np.linalg.norm(leaps - every) < 1e-3 * np.linalg.norm(every)


@pytest.mark.slow
def test_a_long_round_does_not_stay_with_single_steps() -> None:
    """Else maps of rounds jump between many steps at once and single ones, and no pass finds the plateau."""
    case = random_case("logistic", 60_020)
    s = setting(case.problem, case.method, case.batches)
    found, _ = small_plateau(s, predict_module.small_round(s), predict_module.gaussian_plateau(s))
    assert predict_module.squared_error(s, found) == pytest.approx(0.0261, rel=0.02)


def test_dear_passes_end_sooner_than_others() -> None:
    s = setting(make("logistic", (9, 6), 2), Scaffold(step_size=0.1, local_steps=5), Batches(2))
    assert settled_after(s, 0, skew=True) == settled_after(s, 0, skew=False) == SETTLED
    assert settled_after(s, PATIENCE, skew=False) == SETTLED_DEAR
    wide = setting(make("logistic", (30, 30), 15), Scaffold(step_size=0.1, local_steps=5), Batches(2))
    assert settled_after(wide, 0, skew=True) == SETTLED_DEAR
    ridge = setting(make("ridge", (9, 6), 2), Scaffold(step_size=0.1, local_steps=5), Batches(2))
    assert settled_after(ridge, PATIENCE, skew=False) == SETTLED
