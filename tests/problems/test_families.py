"""Families with a logarithmic link, offsets and sample weights: derivatives, optima, refusals."""

from typing import Any

import numpy as np
import pytest
from scipy.optimize._numdiff import approx_derivative

import fedscaffold as fs
from fedscaffold.core.capabilities import GeneralisedLinear, HasNoiseAlong
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.random.stream import Batches
from fedscaffold.problems import Gamma, Logistic, Multinomial, Poisson, Ridge
from tests.samples import WEIGHTED_KINDS, weighted

SIZES, DIM = (5, 9, 12), 3


@pytest.mark.parametrize("kind", WEIGHTED_KINDS)
def test_each_derivative_is_that_of_the_one_before(kind: str) -> None:
    problem = weighted(kind, SIZES, DIM, weights=(1.0, 2.0, 3.0))
    theta = np.random.default_rng(1).normal(size=problem.dim) / 2

    def slope(function: Any) -> Any:
        return approx_derivative(function, theta, method="3-point")

    np.testing.assert_allclose(slope(problem.loss), problem.gradient(theta), rtol=0, atol=1e-8)
    np.testing.assert_allclose(slope(problem.gradient), problem.hessian(theta), rtol=0, atol=1e-8)
    np.testing.assert_allclose(problem.weights @ problem.client_losses(theta), problem.loss(theta), rtol=1e-13)
    np.testing.assert_allclose(
        problem.weights @ problem.client_gradients(theta), problem.gradient(theta), rtol=1e-10
    )
    mean = np.tensordot(problem.weights, problem.client_hessians(theta), axes=1)
    np.testing.assert_allclose(mean, problem.hessian(theta), rtol=1e-10, atol=1e-14)
    if kind != "multinomial":
        matrix = np.random.default_rng(2).normal(size=(DIM, DIM))
        third = problem.weights @ problem.client_third_derivatives(theta, matrix)
        each = np.array([np.sum(matrix * dH) for dH in np.moveaxis(_third(problem, theta), -1, 0)])
        np.testing.assert_allclose(third, each, rtol=0, atol=1e-6)


def _third(problem: Any, theta: Any) -> Any:
    flat = approx_derivative(lambda t: problem.hessian(t).ravel(), theta, method="3-point")
    return flat.reshape(problem.dim, problem.dim, problem.dim)


@pytest.mark.parametrize("kind", WEIGHTED_KINDS)
def test_a_weight_of_two_is_the_record_twice(kind: str) -> None:
    problem = weighted(kind, (6,), DIM)
    y = problem.y.copy()
    y[:, 2] = 1.0
    y[2, 2] = 2.0
    single, double = np.arange(6), np.append(np.arange(6), 2)
    maker: Any = {
        "ridge": Ridge,
        "logistic": Logistic,
        "poisson": Poisson,
        "gamma": Gamma,
        "multinomial": Multinomial,
    }

    def make(rows: Any, weight: Any) -> Any:
        more = {"n_classes": 3} if kind == "multinomial" else {"offset": [y[rows, 1]]}
        return maker[kind]([problem.x[rows]], [y[rows, 0]], sample_weight=[weight], **more)

    theta = np.random.default_rng(0).normal(size=problem.dim)
    once, twice = make(single, y[:, 2]), make(double, np.ones(7))
    for name in ("loss", "gradient", "hessian"):
        np.testing.assert_allclose(6 * getattr(once, name)(theta), 7 * getattr(twice, name)(theta), rtol=1e-12)


@pytest.mark.parametrize("kind", WEIGHTED_KINDS)
def test_optimum_subset_and_smoothness(kind: str) -> None:
    problem = weighted(kind, SIZES, DIM)
    theta = problem.optimum()
    assert np.abs(problem.gradient(theta)).max() < 1e-11
    part = problem.subset([0, 2])
    np.testing.assert_allclose(part.client_losses(theta), problem.client_losses(theta)[[0, 2]], rtol=1e-14)
    smooth = problem.smoothness(Batches())
    for t in np.linspace(0, 1, 5):
        assert np.linalg.eigvalsh(problem.client_hessians(t * theta))[:, -1].max() <= smooth * (1 + 1e-12)
    assert problem.smoothness(Batches(1)) >= smooth
    assert problem.fingerprint() != weighted(kind, SIZES, DIM, seed=1).fingerprint()


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
def test_poisson_finds_its_optimum_for_small_and_large_counts(scale: float) -> None:
    rng = np.random.default_rng(0)
    X = np.stack([rng.normal(size=(3, 400)), np.ones((3, 400))], axis=2)
    y = rng.poisson(50 * scale * np.exp(X @ [0.3, -0.5]))
    problem = Poisson(X, y)
    mean = np.exp(problem.x @ problem.optimum())
    np.testing.assert_allclose(problem.x.T @ mean, problem.x.T @ y.ravel(), rtol=1e-9)


def test_exposure_is_an_offset() -> None:
    rng = np.random.default_rng(0)
    X, y, exposure = rng.normal(size=(2, 30, 2)), rng.poisson(2.0, size=(2, 30)), rng.uniform(1, 5, size=(2, 30))
    by_exposure, by_offset = Poisson(X, y, exposure=exposure), Poisson(X, y, offset=np.log(exposure))
    np.testing.assert_array_equal(by_exposure.y, by_offset.y)
    with pytest.raises(InvalidInput, match="either exposure or offset"):
        Poisson(X, y, exposure=exposure, offset=np.log(exposure))


def test_multinomial_without_a_penalty_has_an_optimum() -> None:
    rng = np.random.default_rng(0)
    problem = Multinomial(rng.normal(size=(2, 60, 3)), rng.integers(0, 3, size=(2, 60)), l2=0.0)
    theta = problem.optimum()
    assert np.abs(problem.gradient(theta)).max() < 1e-12
    np.testing.assert_allclose(theta.reshape(3, 3).sum(axis=0), 0.0, atol=1e-10)


X3, Y3 = np.ones((2, 3, 1)), np.ones((2, 3))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Poisson(X3, -Y3), "counts must not be negative; client 0, record 0 has -1"),
        (lambda: Poisson(X3, Y3, exposure=0 * Y3), "exposures must be positive; client 0, record 0 has 0"),
        (lambda: Poisson(X3, Y3, exposure=[Y3[0], np.array([1, np.nan, 1])]), "client 1, record 1 has nan"),
        (lambda: Poisson(X3, Y3, exposure=["a", "b"]), "exposure must hold one number per record"),
        (lambda: Poisson(X3, 0 * Y3).optimum(), "all counts are 0"),
        (lambda: Gamma(X3, 0 * Y3), "must be positive; client 0, record 0 has 0"),
        (lambda: Ridge(X3, Y3, sample_weight=-Y3), "sample weights must not be negative; client 0, record 0"),
        (lambda: Ridge(X3, Y3, sample_weight=0 * Y3), "all sample weights are 0"),
        (lambda: Ridge(X3, Y3, sample_weight=Y3[:, :2]), "client 0 has 3 records, but its sample_weight"),
        (lambda: Ridge(X3, Y3, sample_weight=Y3[:1]), "sample_weight has 1 clients, but y has 2"),
        (lambda: Ridge(X3, Y3, offset=np.full((2, 3), np.inf)), "offset must be finite; client 0, record 0"),
        (lambda: Ridge(X3, Y3, offset=3), "offset must hold one number per record"),
    ],
)  # fmt: skip
def test_refusals(make: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        make()


def test_theory_takes_the_general_way_where_margins_do_not_say_all() -> None:
    """Weighted records and unbounded losses are planned from Hessians and noise; predictions are measured."""
    assert isinstance(Ridge(X3, Y3, l2=1.0), GeneralisedLinear)
    problem = weighted("poisson", (40, 50, 60), 3, l2=0.01)
    assert isinstance(problem, HasNoiseAlong)
    assert not isinstance(problem, GeneralisedLinear)
    assert not isinstance(weighted("logistic"), GeneralisedLinear)
    plan = fs.plan(problem, target_mse=1e-4, batch_size=8, mode="first_order")
    trace = fs.run(problem, plan.method, rounds=plan.rounds, batch_size=8, repetitions=20)
    assert trace.mse[:, -1].mean() < 2e-4
    assert fs.theory.predict(problem, plan.method, batch_size=8, accuracy=0.1).how == "measured"
