"""f, f_c and their derivatives against plain loops and finite differences."""

import math

import numpy as np
import pytest
from scipy.optimize._numdiff import approx_derivative

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array
from fedscaffold.problems import base as records
from tests import naive
from tests.samples import KINDS, Kind, make, tables

SIZES, DIM, L2, WEIGHTS = (5, 9, 2), 4, 0.3, (1.0, 2.0, 5.0)
THETA = np.array([0.5, -1.0, 2.0, 0.1])


def loss_by_loops(kind: Kind, x: Array, y: Array, theta: Array) -> float:
    total = 0.0
    for row, target in zip(x.tolist(), y.tolist(), strict=True):
        z = sum(a * b for a, b in zip(row, theta.tolist(), strict=True))
        total += 0.5 * (z - target) ** 2 if kind == "ridge" else math.log(1 + math.exp(-target * z))
    return total / len(y) + 0.5 * L2 * sum(t * t for t in theta.tolist())


@pytest.mark.parametrize("kind", KINDS)
def test_losses_by_plain_loops(kind: Kind) -> None:
    problem = make(kind, SIZES, DIM, l2=L2, weights=WEIGHTS)
    each = [loss_by_loops(kind, x, y, THETA) for x, y in zip(*tables(kind, SIZES, DIM), strict=True)]
    np.testing.assert_allclose(problem.client_losses(THETA), each, rtol=1e-13)
    assert problem.loss(THETA) == pytest.approx((each[0] + 2 * each[1] + 5 * each[2]) / 8, rel=1e-13)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_by_plain_loops(kind: Kind) -> None:
    X, y = tables(kind, SIZES, DIM)
    problem = make(kind, SIZES, DIM, l2=L2, weights=WEIGHTS)
    clients = naive.Clients(kind, [x.tolist() for x in X], [t.tolist() for t in y], L2, [])
    each = [naive.gradient_of_batch(clients, c, THETA.tolist(), range(n)) for c, n in enumerate(SIZES)]
    np.testing.assert_allclose(problem.client_gradients(THETA), each, rtol=1e-12)
    rows = [4, 4, 0]
    part = naive.gradient_of_batch(clients, 1, THETA.tolist(), rows)
    np.testing.assert_allclose(problem.batch_gradient(1, THETA, np.array(rows)), part, rtol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_each_derivative_is_that_of_the_one_before(kind: Kind) -> None:
    """Central differences: relative error about 1e-10, refused at 1e-8."""
    problem = make(kind, SIZES, DIM, l2=L2, weights=WEIGHTS)
    weights = np.array(WEIGHTS) / 8
    matrix = np.random.default_rng(1).normal(size=(DIM, DIM))
    np.testing.assert_allclose(
        problem.client_gradients(THETA),
        approx_derivative(problem.client_losses, THETA, method="3-point"),
        rtol=1e-8,
    )
    np.testing.assert_allclose(
        problem.gradient(THETA), approx_derivative(problem.loss, THETA, method="3-point"), rtol=1e-8
    )
    for c in range(len(SIZES)):
        by_differences = approx_derivative(
            lambda theta, c=c: problem.client_gradients(theta)[c], THETA, method="3-point"
        )
        np.testing.assert_allclose(problem.client_hessians(THETA)[c], by_differences, rtol=1e-8, atol=1e-9)
        slopes = approx_derivative(
            lambda theta, c=c: problem.client_hessians(theta)[c].ravel(), THETA, method="3-point"
        ).reshape(DIM, DIM, DIM)  # fmt: skip
        np.testing.assert_allclose(
            problem.client_third_derivatives(THETA, matrix)[c],
            np.einsum("jki,jk->i", slopes, matrix), rtol=1e-8, atol=1e-9,
        )  # fmt: skip
    np.testing.assert_allclose(
        problem.hessian(THETA), np.einsum("c,cij->ij", weights, problem.client_hessians(THETA)), rtol=1e-12
    )
    np.testing.assert_allclose(problem.gradient(THETA), weights @ problem.client_gradients(THETA), rtol=1e-12)


def test_third_derivatives_take_a_matrix_per_client() -> None:
    problem = make("logistic", SIZES, DIM)
    matrices = np.random.default_rng(1).normal(size=(3, DIM, DIM))
    together = problem.client_third_derivatives(THETA, matrices)
    for c in range(3):
        np.testing.assert_allclose(
            together[c], problem.client_third_derivatives(THETA, matrices[c])[c], rtol=1e-13
        )
    assert np.abs(together).min() > 0


@pytest.mark.parametrize("kind", KINDS)
def test_data_read_in_pieces_add_up(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = make(kind, SIZES, DIM, weights=WEIGHTS)
    loss, gradient, hessian = problem.loss(THETA), problem.gradient(THETA), problem.hessian(THETA)
    monkeypatch.setattr(records, "ROWS_AT_ONCE", 3)
    assert problem.loss(THETA) == pytest.approx(loss, rel=1e-13)
    np.testing.assert_allclose(problem.gradient(THETA), gradient, rtol=1e-13)
    np.testing.assert_allclose(problem.hessian(THETA), hessian, rtol=1e-13)


def test_logistic_keeps_its_head_far_out() -> None:
    """Margins of ±10,000: log(1 + e^z) = z, and no overflow."""
    problem = make("logistic", (4, 4), 2, l2=0.0)
    theta = np.array([1e4, -1e4])
    z = problem.y * (problem.x @ theta)
    assert problem.loss(theta) == pytest.approx(np.maximum(-z, 0).mean(), rel=1e-12)
    assert np.isfinite(problem.gradient(theta)).all()


def test_strong_convexity_is_the_flattest_clients() -> None:
    problem = make("ridge", (5, 9, 8), DIM, l2=L2)
    X, _ = tables("ridge", (5, 9, 8), DIM)
    flattest = min(np.linalg.svd(x, compute_uv=False)[-1] ** 2 / len(x) for x in X)
    assert problem.strong_convexity() == pytest.approx(flattest + L2, rel=1e-10)
    assert make("logistic", (5, 9, 8), DIM, l2=L2).strong_convexity() == L2


@pytest.mark.parametrize("kind", KINDS)
def test_unpenalised_features_have_no_penalty(kind: Kind) -> None:
    """Their part of the gradient and of the Hessian is that of the same problem with l2 = 0."""
    problem, without = (make(kind, SIZES, DIM, l2=l2, weights=WEIGHTS, n_unpenalised=1) for l2 in (L2, 0.0))
    pull = np.array([L2, L2, L2, 0.0])
    assert problem.loss(THETA) - without.loss(THETA) == pytest.approx(0.5 * pull @ THETA**2, rel=1e-12)
    np.testing.assert_allclose(problem.gradient(THETA), without.gradient(THETA) + pull * THETA, rtol=1e-12)
    np.testing.assert_allclose(problem.hessian(THETA), without.hessian(THETA) + np.diag(pull), rtol=1e-12)
    np.testing.assert_allclose(
        problem.client_gradients(THETA), without.client_gradients(THETA) + pull * THETA, rtol=1e-12
    )
    np.testing.assert_allclose(
        problem.client_losses(THETA).mean(), without.client_losses(THETA).mean() + 0.5 * pull @ THETA**2
    )
    np.testing.assert_allclose(
        problem.batch_gradient(1, THETA, np.array([2, 2, 5])),
        without.batch_gradient(1, THETA, np.array([2, 2, 5])) + pull * THETA,
        rtol=1e-12,
    )
    assert problem.subset([0, 2]).n_unpenalised == 1
    with pytest.raises(InvalidInput, match="n_unpenalised=5"):
        make(kind, SIZES, DIM, n_unpenalised=5)
