"""Streamed clients: f and its derivatives against each other, against Monte Carlo, and over chunks and blocks."""

from typing import Any

import numpy as np
import pytest
from scipy import integrate
from scipy.special import expit

import fedscaffold as fs
from fedscaffold.core.random.stream import Batches
from fedscaffold.core.types import Array
from fedscaffold.problems import LogisticStream, RidgeStream, streams
from fedscaffold.problems import streams as sigmoid

KINDS: Any = [RidgeStream, LogisticStream]
THETA = np.array([0.3, -0.8, 1.1])


def make(kind: Any, n_clients: int = 6, **kwargs: Any) -> Any:
    return kind(n_clients=n_clients, dim=3, **{"l2": 0.1, "seed": 5, **kwargs})


def slopes(of: Any, theta: Array, h: float = 1e-5) -> Array:
    """Derivatives along each axis, one more axis at the end."""
    return np.stack([(of(theta + h * e) - of(theta - h * e)) / (2 * h) for e in np.eye(theta.size)], axis=-1)


def gradients(problem: Any, client: int, theta: Array, *, repetitions: int, batch_size: int) -> Array:
    """Independent stochastic gradients, the same draws at every θ: steps of size one from θ."""
    start = np.broadcast_to(theta, (repetitions, theta.size))
    with fs.engines.Native().open(problem, Batches(batch_size), seed=3) as local_sgd:
        after = local_sgd(
            start,
            np.zeros((1, 1, theta.size)),
            step_size=1.0,
            local_steps=1,
            round=2,
            clients=np.array([[client]]),
        )
    return start - after[:, 0]


@pytest.mark.parametrize("kind", KINDS)
def test_derivatives_of_f(kind: Any) -> None:
    problem = make(kind, weights=range(1, 7))
    np.testing.assert_allclose(problem.gradient(THETA), slopes(problem.loss, THETA), atol=1e-9)
    np.testing.assert_allclose(problem.hessian(THETA), slopes(problem.gradient, THETA), atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_derivatives_of_each_client(kind: Any) -> None:
    problem = make(kind, weights=range(1, 7))
    w = problem.weights
    np.testing.assert_allclose(w @ problem.client_gradients(THETA), problem.gradient(THETA), atol=1e-13)
    hessians = problem.client_hessians(THETA)
    np.testing.assert_allclose(np.tensordot(w, hessians, axes=1), problem.hessian(THETA), atol=1e-13)
    np.testing.assert_allclose(hessians, slopes(problem.client_gradients, THETA), atol=1e-9)
    matrix = np.array([[2.0, 0.3, -0.1], [0.3, 1.0, 0.2], [-0.1, 0.2, 0.7]])
    third = np.einsum("cijk,jk->ci", slopes(problem.client_hessians, THETA), matrix)
    np.testing.assert_allclose(problem.client_third_derivatives(THETA, matrix), third, atol=1e-8)
    assert (np.abs(third).max() > 0.01) == (kind is LogisticStream)


@pytest.mark.parametrize("kind", KINDS)
def test_the_optimum_is_where_the_gradient_vanishes(kind: Any) -> None:
    problem = make(kind, n_clients=50)
    np.testing.assert_allclose(problem.gradient(problem.optimum()), 0.0, atol=1e-13)
    assert np.abs(problem.client_gradients(problem.optimum())).max() > 0.1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("theta", [THETA, np.zeros(3)], ids=["somewhere", "zero"])
def test_mean_and_covariance_of_drawn_gradients(kind: Any, theta: Array) -> None:
    """40,000 records; 18 numbers, each within four standard errors, which one seed in 1,000 would miss."""
    problem = make(kind)
    each = gradients(problem, 4, theta, repetitions=40_000, batch_size=1)
    error = each.std(axis=0) / np.sqrt(len(each))
    assert (np.abs(each.mean(axis=0) - problem.client_gradients(theta)[4]) < 4 * error).all()
    centred = each - each.mean(axis=0)
    products = np.einsum("ni,nj->nij", centred, centred)
    error = products.std(axis=0) / np.sqrt(len(each))
    wanted = problem.client_noise_covariances(theta, batch_size=1)[4]
    assert (np.abs(products.mean(axis=0) - wanted) < 4 * error).all()
    np.testing.assert_allclose(problem.client_noise_covariances(theta, batch_size=5)[4], wanted / 5)
    U = np.array([[1.0, 0.5], [0.0, 2.0], [-1.0, 0.0]])
    along = problem.client_noise_along(theta, U, batch_size=1)[4]
    np.testing.assert_allclose(along, np.diag(U.T @ wanted @ U), rtol=1e-12)


@pytest.mark.parametrize("theta", [(0.7, -1.2), (2.0, 1.0), (0.0, 0.0)])
def test_logistic_noise_by_brute_force(theta: tuple[float, float]) -> None:
    """E (σ(xᵀθ) − y)² x xᵀ − E E ᵀ over a grid of x, for two features."""
    problem = LogisticStream(n_clients=3, dim=2, l2=0.0, seed=5)
    found = problem.derivatives(np.arange(3), np.array(theta))
    z = np.linspace(-9, 9, 601)
    weight = np.exp(-0.5 * z**2)
    weight /= weight.sum()
    for c, (scale, w) in enumerate(zip(*problem.law(np.arange(3)), strict=True)):
        axes = np.sqrt(scale * problem.spectrum)[:, None] * z
        x = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2)
        p, q = expit(x @ np.array(theta)), expit(x @ w)
        share = np.outer(weight, weight).reshape(-1)
        mean = (share * (p - q)) @ x
        second = x.T @ ((share * (q * (1 - p) ** 2 + (1 - q) * p**2))[:, None] * x)
        np.testing.assert_allclose(found.gradient[c], mean, rtol=0, atol=1e-12)
        np.testing.assert_allclose(found.noise[c], second - np.outer(mean, mean), rtol=0, atol=1e-6)


@pytest.mark.parametrize("v", [0.0, 0.01, 1.0, 5.0, 60.0])
def test_means_over_one_margin(v: float) -> None:
    def mean(f: Any) -> float:
        def weighted(z: float) -> float:
            return float(f(np.sqrt(v) * z) * np.exp(-0.5 * z * z) / np.sqrt(2 * np.pi))

        return float(integrate.quad(weighted, -12, 12, epsabs=1e-13, limit=500, points=[0.0])[0])

    found = sigmoid.margin(np.array([v]))
    assert found.first[0] == pytest.approx(mean(lambda z: expit(z) * expit(-z)), abs=1e-12)
    third = mean(lambda z: expit(z) * expit(-z) * (1 - 6 * expit(z) * expit(-z)))
    assert found.third[0] == pytest.approx(third, abs=1e-12)
    h = 0.01  # of a second difference of the third derivatives, whose error is some 1e-5
    around = [mean(lambda z, s=s: expit(z + s) * expit(-z - s) * (1 - 6 * expit(z + s) * expit(-z - s)))
              for s in (-h, h)]  # fmt: skip
    assert found.fifth[0] == pytest.approx((sum(around) - 2 * third) / h**2, abs=2e-4)
    assert sigmoid.mean_softplus(np.array([v]))[0] == pytest.approx(mean(lambda z: np.logaddexp(0, z)), abs=1e-11)


@pytest.mark.parametrize(("a", "r", "x"), [(0.0, 1.0, 0.0), (1.3, 1.6, 0.7), (2.0, 3.0, -0.4), (1.5, 1.5, 1.0)])
def test_means_over_two_margins(a: float, r: float, x: float) -> None:
    z = np.linspace(-9, 9, 1201)
    weight = np.exp(-0.5 * z**2)
    weight /= weight.sum()
    s, t = a * z[:, None], r * (x * z[:, None] + np.sqrt(1 - x * x) * z[None])
    p, q = expit(s), expit(t)
    wanted = ((p - 0.5) * (q - 0.5), p * (1 - p) * (1 - 2 * p) * (q - 0.5), p * (1 - p) * q * (1 - q),
              q * (1 - q) * (1 - 2 * q) * (p - 0.5))  # fmt: skip
    for found, values in zip(sigmoid.pair(*(np.array([n]) for n in (a, r, x))), wanted, strict=True):
        assert found[0] == pytest.approx(float(weight @ values @ weight), abs=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_clients_stay_who_they_are(kind: Any) -> None:
    problem = make(kind)
    block, some = (p.client_gradients(THETA) for p in (problem.subset(range(2, 5)), problem.subset([4, 1])))
    whole = problem.client_gradients(THETA)
    np.testing.assert_allclose(block, whole[2:5], rtol=0, atol=1e-12)
    np.testing.assert_allclose(some, whole[[4, 1]], rtol=0, atol=1e-12)
    assert problem.subset([4, 1]).weights.sum() == pytest.approx(1.0)
    assert (
        len({problem.fingerprint(), problem.subset(range(2, 5)).fingerprint(), make(kind, seed=6).fingerprint()})
        == 3
    )
    assert make(kind).fingerprint() == problem.fingerprint()


@pytest.mark.parametrize("kind", KINDS)
def test_sums_do_not_depend_on_chunks_beyond_rounding(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = make(kind, n_clients=100)
    monkeypatch.setattr(streams, "CLIENTS_AT_ONCE", 7)
    parts = make(kind, n_clients=100)
    np.testing.assert_allclose(parts.optimum(), whole.optimum(), rtol=1e-12)
    assert parts.loss(THETA) == pytest.approx(whole.loss(THETA), rel=1e-13)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch_size", [1, 4])
def test_smoothness_holds(kind: Any, batch_size: int) -> None:
    """E‖g(θ) − g(θ')‖² ≤ L⟨∇f_c(θ) − ∇f_c(θ'), θ − θ'⟩, and for ridge along the top direction it is met."""
    problem = make(kind)
    L = problem.smoothness(Batches(batch_size))
    c = int(np.argmax(problem.law(np.arange(6)).scale))
    u = np.eye(3)[0]
    there, here = (gradients(problem, c, at, repetitions=10_000, batch_size=batch_size) for at in (u, 0 * u))
    squares = np.square(there - here).sum(axis=1)
    slope = float((problem.client_gradients(u)[c] - problem.client_gradients(0 * u)[c]) @ u)
    share = np.mean(squares) / (L * slope)
    assert share < 1.0 + 4 * np.std(squares) / 100 / (L * slope)
    assert share > (0.9 if kind is RidgeStream else 0.5)


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"n_clients": 0}, "n_clients"),
        ({"n_clients": 2**32}, "below 2"),
        ({"dim": 0}, "dim"),
        ({"scale_spread": 0.95}, "at most 0.9"),
        ({"heterogeneity": -1.0}, "heterogeneity"),
        ({"spectrum": [1.0, 2.0]}, "dim=3"),
        ({"spectrum": [1.0, 2.0, 0.0]}, "positive"),
        ({"spectrum": "abc"}, "spectrum"),
        ({"signal": 0.0}, "signal"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**64}, "seed"),
        ({"l2": -0.1}, "l2"),
        ({"weights": [1.0]}, "weights"),
    ],
)
def test_refusals(kwargs: Any, words: str) -> None:
    for kind in KINDS:
        with pytest.raises(fs.InvalidInput, match=words):
            kind(**{"n_clients": 4, "dim": 3, **kwargs})


def test_one_number_is_the_variance_of_every_feature() -> None:
    problem = RidgeStream(n_clients=2, dim=3, spectrum=2.0)
    assert problem.fingerprint() == RidgeStream(n_clients=2, dim=3, spectrum=[2.0, 2.0, 2.0]).fingerprint()
