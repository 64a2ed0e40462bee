"""Certificates from gradients alone, against dense algebra."""

import numpy as np
import pytest

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array
from fedscaffold.data.encoding import Encoding, Number
from fedscaffold.federation import Agreement
from fedscaffold.federation.study.training.by_gradients import Products, certify_by_gradients

D = 12


def quadratic(seed: int, l2: float, *, power: float = 1.5) -> tuple[Array, Array, Agreement]:
    """A Hessian with eigenvalues from l2 upwards, an optimum, and an encoding of D slopes."""
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.normal(size=(D, D)))[0]
    hessian = (basis * (l2 + np.geomspace(1e-4, 1.0, D) ** power)) @ basis.T
    columns = tuple(Number(name=f"x{k}") for k in range(D))
    encoding = Encoding(columns=columns, target="y", client="site", intercept=False)
    return hessian, rng.normal(size=D), Agreement(encoding=encoding, l2=l2)


class Counted:
    """Gradient and loss of ½(θ − θ*)ᵀA(θ − θ*), and how often they were asked for."""

    def __init__(self, hessian: Array, optimum: Array) -> None:
        self.hessian, self.optimum, self.asked = hessian, optimum, 0

    def __call__(self, theta: Array) -> tuple[Array, float]:
        self.asked += 1
        gradient = self.hessian @ (theta - self.optimum)
        return gradient, 0.5 * float(gradient @ (theta - self.optimum))


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("tolerance", [0.0, 0.02, 0.3])
def test_the_error_is_never_above_the_certified_one(seed: int, tolerance: float) -> None:
    hessian, optimum, agreement = quadratic(seed, 0.01)
    theta = optimum + 0.05 * np.random.default_rng([seed, 1]).normal(size=D)
    asked = Counted(hessian, optimum)
    found, products = certify_by_gradients(theta, asked, agreement, tolerance=tolerance)
    error = float(np.linalg.norm(theta - optimum))
    norm = float(np.linalg.norm(theta - found.step))
    assert error <= 1.0001 * found.relative_error * norm
    assert np.linalg.norm(theta - found.step - optimum) <= 1.0001 * found.unsolved
    assert asked.asked == len(products.directions) + 1


def test_products_of_an_earlier_model_spare_exchanges() -> None:
    fresh_total = known_total = 0
    for seed in range(10):
        hessian, optimum, agreement = quadratic(seed, 0.001)
        first = Counted(hessian, optimum)
        found, products = certify_by_gradients(np.zeros(D), first, agreement)
        fresh, known = Counted(hessian, optimum), Counted(hessian, optimum)
        certify_by_gradients(found.theta - found.step, fresh, agreement)
        certify_by_gradients(found.theta - found.step, known, agreement, known=products)
        fresh_total, known_total = fresh_total + fresh.asked, known_total + known.asked
    assert known_total < 0.75 * fresh_total


def test_the_preconditioner_is_exact_along_the_directions_and_positive() -> None:
    hessian, _, _ = quadratic(3, 0.01)
    products = Products()
    rng = np.random.default_rng(0)
    for _ in range(4):
        direction = products.conjugate(rng.normal(size=D))
        products.add(direction, hessian @ direction)
    for direction in products.directions:
        np.testing.assert_allclose(products.precondition(hessian @ direction), direction, atol=1e-10)
    matrix = np.array([products.precondition(unit) for unit in np.eye(D)])
    np.testing.assert_allclose(matrix, matrix.T, atol=1e-10)
    assert np.linalg.eigvalsh(matrix)[0] > 0.0
    p = np.array(products.directions)
    basis = np.linalg.qr(p.T)[0]
    expected = np.linalg.eigvalsh(basis.T @ hessian @ basis)[0]
    assert products.least_curvature() == pytest.approx(expected, rel=1e-8)
    assert Products().least_curvature() == np.inf


def test_at_the_optimum_nothing_is_left_and_without_curvature_it_is_refused() -> None:
    hessian, optimum, agreement = quadratic(1, 0.01)
    found, _ = certify_by_gradients(optimum, Counted(hessian, optimum), agreement)
    assert found.relative_error == 1e-12
    with pytest.raises(InvalidInput, match="without curvature"):
        certify_by_gradients(np.zeros(D), Counted(-hessian, optimum), agreement)
