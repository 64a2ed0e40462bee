"""θ*, against other ways to find it."""

import numpy as np
import pytest
from scipy.optimize import minimize

import fedscaffold as fs
from fedscaffold.problems import Logistic, Ridge
from tests.samples import KINDS, Kind, make

SIZES, WEIGHTS = (30, 12, 25), (3.0, 1.0, 2.0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("l2", [0.0, 1e-3, 1.0])
def test_gradient_vanishes(kind: Kind, l2: float) -> None:
    problem = make(kind, SIZES, 4, l2=l2, weights=WEIGHTS)
    at_zero = np.linalg.norm(problem.gradient(np.zeros(4)))
    assert np.linalg.norm(problem.gradient(problem.optimum())) <= 1e-12 * at_zero


def test_ridge_is_least_squares() -> None:
    problem = make("ridge", SIZES, 4, l2=0.7, weights=WEIGHTS)
    share = np.sqrt(np.repeat(problem.weights / problem.sizes, problem.sizes))
    a = np.vstack([share[:, None] * problem.x, np.sqrt(0.7) * np.eye(4)])
    b = np.concatenate([share * problem.y, np.zeros(4)])
    np.testing.assert_allclose(problem.optimum(), np.linalg.lstsq(a, b, rcond=None)[0], rtol=1e-10)


def test_logistic_agrees_with_a_general_minimiser() -> None:
    problem = make("logistic", SIZES, 4, l2=0.01, weights=WEIGHTS)
    found = minimize(problem.loss, np.ones(4), jac=problem.gradient, method="BFGS", options={"gtol": 1e-9})
    np.testing.assert_allclose(problem.optimum(), found.x, atol=1e-7)
    assert problem.loss(problem.optimum()) <= found.fun + 4 * np.spacing(found.fun)  # rounding of the sums


def test_far_optimum_of_nearly_separable_labels() -> None:
    """Newton's full step overshoots here; the loss must fall all the same."""
    x = np.linspace(-1, 1, 40)[:, None] * 50
    problem = Logistic([x], [np.where(x[:, 0] > 0, 1.0, -1.0)], l2=1e-6)
    theta = problem.optimum()
    assert np.linalg.norm(problem.gradient(theta)) <= 1e-12 * np.linalg.norm(problem.gradient(np.zeros(1)))


@pytest.mark.parametrize("factor", [1.0, 1e6, 1e-6])
def test_clients_that_cancel_each_other(factor: float) -> None:
    """∇f(0) is rounding error alone, so nothing can be measured relative to it; θ* = 0."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(30, 4)), rng.normal(size=30) * factor
    problem = Ridge([x, x], [y, -y], l2=0.01)
    np.testing.assert_allclose(problem.optimum(), 0.0, atol=1e-14 * factor)


def test_targets_that_features_do_not_explain() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(30, 4)), rng.normal(size=30)
    residual = y - x @ np.linalg.lstsq(x, y, rcond=None)[0]
    np.testing.assert_allclose(Ridge([x], [residual], l2=0.01).optimum(), 0.0, atol=1e-14)


def test_zero_targets() -> None:
    assert Ridge(np.random.default_rng(0).normal(size=(2, 9, 3)), np.zeros((2, 9))).optimum().tolist() == [0, 0, 0]


def test_no_unique_minimiser_is_refused() -> None:
    x = np.ones((2, 5, 3))
    with pytest.raises(fs.InvalidInput, match="not unique"):
        Ridge(x, np.ones((2, 5))).optimum()
    separable = np.linspace(-1, 1, 10).reshape(1, 10, 1)
    with pytest.raises(fs.InvalidInput, match="l2"):
        Logistic(separable, np.sign(separable[..., 0])).optimum()
