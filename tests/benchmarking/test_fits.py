"""Fits on points whose answer is known: lines, and plateaus that fall as 1/N to a floor."""

import numpy as np
import pytest
from scipy.stats import linregress
from scipy.stats import t as student

from fedscaffold.benchmarking import fit_line, fit_saturation
from fedscaffold.core.errors import InvalidInput


def test_a_line_is_scipys() -> None:
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=8), generator.normal(size=8)
    fit, other = fit_line(x, y), linregress(x, y)
    assert (fit.slope, fit.intercept) == pytest.approx((other.slope, other.intercept), rel=1e-12)
    assert (fit.high - fit.low) / 2 == pytest.approx(student.ppf(0.975, 6) * other.stderr, rel=1e-12)
    assert fit.misfit == pytest.approx(np.std(y - other.intercept - other.slope * x), rel=1e-12)


def test_intervals_cover_as_often_as_they_say() -> None:
    """95 % of 2,000 intervals from five points; three standard errors are 1.5 %."""
    generator = np.random.default_rng(1)
    x = np.array([1.0, 2.0, 4.0, 5.0, 9.0])
    fits = [fit_line(x, 3.0 * x + generator.normal(size=5)) for _ in range(2000)]
    assert np.mean([fit.low <= 3.0 <= fit.high for fit in fits]) == pytest.approx(0.95, abs=0.015)


def test_a_weighted_line_minimises_weighted_residuals() -> None:
    x, y, w = np.array([0.0, 1.0, 2.0, 3.0]), np.array([1.0, 2.0, 2.0, 9.0]), np.array([1.0, 1.0, 1.0, 1e-6])
    fit, unweighted = fit_line(x, y, w), fit_line(x[:3], y[:3])
    assert fit.slope == pytest.approx(unweighted.slope, abs=1e-5)


def test_two_points_are_too_few() -> None:
    with pytest.raises(InvalidInput, match="three points"):
        fit_line(np.arange(2.0), np.arange(2.0))


def test_saturation() -> None:
    clients = np.array([10.0, 100.0, 1000.0, 10000.0])
    truth = 2.0 / clients + 0.004
    fit = fit_saturation(clients, truth, 0.01 * truth)
    assert fit is not None
    np.testing.assert_allclose(fit[:2], (2.0, 0.004))
    np.testing.assert_allclose(fit.n_clients or 0.0, 500.0)
    no_floor = fit_saturation(clients, 2.0 / clients, 0.01 / clients)
    assert no_floor is not None
    assert no_floor.n_clients is None
    assert fit_saturation(clients[:2], truth[:2], truth[:2]) is None


def test_the_error_of_a_saturation_is_that_of_many_fits() -> None:
    """Its standard deviation over 400 data sets, whose own error is 3.5 %, within 4 of these."""
    rng = np.random.default_rng(0)
    clients = np.geomspace(10, 1e5, 9)
    truth = 2.0 / clients + 0.004
    fits = [fit_saturation(clients, truth * (1 + 0.02 * rng.normal(size=9)), 0.02 * truth) for _ in range(400)]
    at = np.array([fit.n_clients for fit in fits if fit is not None and fit.n_clients is not None])
    exact = fit_saturation(clients, truth, 0.02 * truth)
    assert exact is not None
    assert exact.standard_error is not None
    assert at.size == 400
    np.testing.assert_allclose(at.std(), exact.standard_error, rtol=0.14)


def test_a_saturation_beyond_the_largest_n_is_not_measured() -> None:
    """Plateaus of ridge regression, which has no floor: noise alone gave one, and N = 6,350 from N up to 1,000."""
    clients, plateau = np.array([10.0, 100.0, 1000.0]), np.array([0.007453, 0.000783, 0.000088])
    fit = fit_saturation(clients, plateau, np.array([2.4e-4, 2.4e-5, 2.5e-6]))
    assert fit is not None
    assert fit.n_clients is None
    assert str(fit) == "not reached up to N = 1,000"
