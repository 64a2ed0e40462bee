"""The partial likelihood, against the definition written as loops."""

import numpy as np
import pytest

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.random.stream import Batches
from fedscaffold.core.types import Array
from fedscaffold.data import from_frame
from fedscaffold.problems.cox import RiskSets, signed_times


def naive_loss(times: Array, events: Array, z: Array, weights: Array) -> float:
    """−log of Efron's partial likelihood of weighted rows."""
    total = 0.0
    for time in np.unique(times[events > 0]):
        own = [i for i in range(len(times)) if times[i] == time and events[i] > 0]
        at_risk = [i for i in range(len(times)) if times[i] >= time]
        total -= sum(weights[i] * z[i] for i in own)
        for k in range(len(own)):
            size = sum(weights[i] * np.exp(z[i]) for i in at_risk)
            size -= k / len(own) * sum(weights[i] * np.exp(z[i]) for i in own)
            total += np.mean([weights[i] for i in own]) * np.log(size)
    return total


def gradient_of(f, at: Array, step: float = 1e-5) -> Array:  # type: ignore[no-untyped-def]
    """Derivatives by central differences."""
    units = step * np.eye(at.size)
    return np.array([(f(at + e) - f(at - e)) / (2 * step) for e in units])


def rows(seed: int, n: int = 24, d: int = 3, *, ties: bool = True) -> tuple[Array, Array, Array, Array]:
    """Times, events, features and a θ."""
    rng = np.random.default_rng(seed)
    times = rng.integers(0, 6, n).astype(float) if ties else rng.permutation(n).astype(float)
    return times, (rng.random(n) < 0.6).astype(float), rng.normal(2.0, 1.0, (n, d)), rng.normal(size=d) / 2


@pytest.mark.parametrize("ties", [True, False])
def test_loss_and_derivatives_equal_the_definition(ties: bool) -> None:
    for seed in range(5):
        times, events, x, theta = rows(seed, ties=ties)
        own, y, one = RiskSets(signed_times(times, events), x @ theta, x), signed_times(times, events), np.ones(24)
        assert own.loss == pytest.approx(naive_loss(times, events, x @ theta, one), rel=1e-12)
        gradient = gradient_of(lambda t: naive_loss(times, events, x @ t, one), theta)  # noqa: B023
        np.testing.assert_allclose(own.gradient, gradient, rtol=1e-6, atol=1e-8)
        hessian = gradient_of(lambda t: RiskSets(y, x @ t, x).gradient, theta)  # noqa: B023
        np.testing.assert_allclose(own.hessian, hessian, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("ties", [True, False])
def test_scores_are_derivatives_in_the_weights_of_rows(ties: bool) -> None:
    times, events, x, theta = rows(7, n=14, d=2, ties=ties)
    own = RiskSets(signed_times(times, events), x @ theta, x)

    def in_theta(weights: Array) -> Array:
        return gradient_of(lambda t: naive_loss(times, events, x @ t, weights), theta, 1e-4)

    np.testing.assert_allclose(own.scores, gradient_of(in_theta, np.ones(14), 1e-3), atol=2e-5)
    np.testing.assert_allclose(own.scores.sum(axis=0), own.gradient, atol=1e-12)


def test_neither_order_nor_shifts_nor_units_of_time_matter() -> None:
    times, events, x, theta = rows(3)
    y, z = signed_times(times, events), x @ theta
    own, order = RiskSets(y, z, x), np.random.default_rng(0).permutation(24)
    other = RiskSets(7.0 * y[order], z[order] + 400.0, x[order] + 1e3)
    assert other.loss == pytest.approx(own.loss, rel=1e-12)
    for name in ("gradient", "hessian"):
        np.testing.assert_allclose(getattr(other, name), getattr(own, name), rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(other.scores, own.scores[order], rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("ties", [True, False])
def test_steep_models_have_finite_sums(ties: bool) -> None:
    """The ways with and without a loop agree, and margins beyond float64's exponents are no exception."""
    for length in (400.0, 500.0, 1e12):
        times, events, x, _ = rows(11, ties=ties)
        z = length * (x[:, 0] - x[:, 0].min()) / np.ptp(x[:, 0])
        own = RiskSets(signed_times(times, events), z, x)
        for found in (own.loss, own.gradient, own.hessian, own.scores):
            assert np.isfinite(found).all()
        np.testing.assert_allclose(own.scores.sum(axis=0), own.gradient, atol=1e-9)
        if length < 600.0:
            tilted = np.concatenate([z, [-300.0]])  # a row that says nothing, but for the range of margins
            more = (np.append(times, 0.0), np.append(events, 0.0), np.vstack([x, np.zeros(3)]))
            other = RiskSets(signed_times(*more[:2]), tilted, more[2])
            assert other.loss == pytest.approx(own.loss, rel=1e-12)
            for name in ("gradient", "hessian"):
                np.testing.assert_allclose(getattr(other, name), getattr(own, name), rtol=1e-9, atol=1e-9)
            np.testing.assert_allclose(other.scores[:-1], own.scores, rtol=1e-9, atol=1e-9)


def test_rows_without_events_say_nothing() -> None:
    _, _, x, theta = rows(1)
    own = RiskSets(signed_times(np.zeros(24), np.zeros(24)), x @ theta, x)
    assert own.loss == 0.0
    for found in (own.gradient, own.hessian, own.scores):
        assert not found.any()


def test_censoring_at_time_zero_differs_from_an_event_there() -> None:
    assert np.signbit(signed_times(np.zeros(2), np.array([0.0, 1.0]))).tolist() == [True, False]


def test_a_problem_adds_its_clients_and_has_no_batches() -> None:
    import pandas as pd

    times, events, x, theta = rows(5, n=40)
    frame = pd.DataFrame(x, columns=list("abc")).assign(time=times, died=events, site=np.arange(40) % 3)
    problem = from_frame(frame, target=("time", "died"), client="site", kind="cox")
    each = []
    for site in range(3):
        own = (frame["site"] == site).to_numpy()
        each.append(naive_loss(times[own], events[own], x[own] @ theta, np.ones(own.sum())))
    assert problem.loss(theta) == pytest.approx(sum(each) / 40, rel=1e-12)
    np.testing.assert_allclose(problem.gradient(theta), gradient_of(problem.loss, theta), rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(problem.hessian(theta), gradient_of(problem.gradient, theta), rtol=1e-6, atol=1e-8)
    assert np.abs(problem.gradient(problem.optimum())).max() < 1e-12
    assert problem.describe()["events"] == events.sum()
    for call in (
        lambda: problem.smoothness(Batches()),
        lambda: problem.batch_gradient(0, theta, np.arange(3)),
    ):
        with pytest.raises(InvalidInput, match="no gradients of single rows or batches"):
            call()
