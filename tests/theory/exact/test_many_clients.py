"""Scaffold and FedAvg with any number of clients, against the second moment of all states."""

from typing import Any

import numpy as np
import pytest
from scipy.linalg import block_diag

import fedscaffold as fs
from fedscaffold import FedAvg, Scaffold
from fedscaffold.core.errors import NoPlateau
from fedscaffold.core.random.stream import Batches
from fedscaffold.core.types import Array
from fedscaffold.problems import Ridge
from fedscaffold.theory.exact import exact_law, law
from fedscaffold.theory.exact.local_steps import Powers, accumulate, steps
from fedscaffold.theory.exact.many_clients import ManyClients, Noise
from tests.samples import make
from tests.theory.dense_algebra import curve_of, lyapunov, round_matrices

METHODS = [
    pytest.param(0.3, 20, None, id="uniform"),
    pytest.param(0.3, 20, (1.0, 4.0, 0.5), id="weighted"),
    pytest.param(0.05, 1, None, id="one-step"),
    pytest.param(1.0, 3, (1.0, 4.0, 0.5), id="oscillating"),
    pytest.param(0.2, 500, None, id="long"),
]


@pytest.fixture
def never_dense(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(law, "_cheapest", lambda *asked: (law.many_clients(*asked[:3]), 0.0))


def of(problem: Any, method: Any, batch_size: int | None) -> ManyClients:
    found = law.many_clients(problem, method, Batches(batch_size))
    assert found is not None
    return found


def clients(N: int, d: int, n: int, *, seed: int = 0, heavy: bool = False, weights: Any = None) -> Ridge:
    rng = np.random.default_rng(seed)
    X = [
        (rng.standard_t(3, size=(n, d)) if heavy else rng.normal(size=(n, d))) * rng.uniform(0.5, 1.5)
        for _ in range(N)
    ]
    return Ridge(X, [x.sum(axis=1) + rng.normal(size=n) + rng.normal() for x in X], l2=0.1, weights=weights)


@pytest.mark.parametrize(("gamma", "H", "weights"), METHODS)
def test_covariances_solve_the_full_lyapunov_equation(gamma: float, H: int, weights: Any) -> None:
    problem = make("ridge", dim=2, weights=weights)
    many = of(problem, Scaffold(step_size=gamma, local_steps=H), 2)
    roots = np.random.default_rng(5).normal(size=(3, 2, 2))
    Q = roots @ roots.swapaxes(1, 2)
    full = lyapunov(problem.client_hessians(np.zeros(2)), problem.weights, gamma, H, Q)
    U = many.powers.U
    turned = np.swapaxes(U, 1, 2) @ Q @ U
    found = many.law(many.system.lyapunov(many.input(turned)), turned)
    within = 1e-6
    np.testing.assert_allclose(found.cov_theta, full[:2, :2], atol=within * np.abs(full[:2, :2]).max())
    for c in range(3):
        to_eta = np.zeros((2, 8))
        to_eta[:, :2], to_eta[:, 2 * c + 2 : 2 * c + 4] = np.eye(2), gamma * H * np.eye(2)
        own = to_eta @ full @ to_eta.T
        scale = within * np.abs(own).max()
        np.testing.assert_allclose(U[c] @ found.theta_eta[c] @ U[c].T, full[:2] @ to_eta.T, atol=scale)
        np.testing.assert_allclose(U[c] @ found.eta[c] @ U[c].T, own, atol=scale)


@pytest.mark.parametrize("H", [1, 2, 5, 37])
def test_sums_over_steps_are_the_sums(H: int) -> None:
    lam = np.array([[0.2, 1.0, 0.0], [3.0, 9.0, 12.0]])
    own = Powers.of(np.broadcast_to(np.eye(3), (2, 3, 3)), lam, 0.1, H)
    s = steps(0.1, H, 0.0, 12.0, 1.0, 1e-6)
    values = np.random.default_rng(1).normal(size=(2, len(s.nodes), 3, 3))
    rates = np.einsum("pq,kqij->kpij", s.fit, values)
    g = own.g[:, :, None] * own.g[:, None, :]
    for h in (0, 1, H // 2, H):
        along = [sum(rates[:, p] * s.rates[p] ** k for p in range(s.rates.size)) for k in range(h)]
        expected = sum((g ** (h - 1 - k) * along[k] for k in range(h)), np.zeros((2, 3, 3)))
        np.testing.assert_allclose(accumulate(s, own, values, [h])[:, 0], expected, rtol=1e-9, atol=1e-9)
    for q, h in enumerate(s.nodes):
        np.testing.assert_allclose(np.einsum("p,kpij->kij", s.rates**h, rates), values[:, q], atol=1e-9)


CASES = [(12, 2, 9, 3), (30, 3, 8, 10), (40, 2, 10, 60)]


@pytest.mark.parametrize("method", [Scaffold, FedAvg])
@pytest.mark.parametrize(("N", "d", "n", "H"), CASES)
def test_plateaus_and_curves_are_those_of_all_states(
    method: Any, N: int, d: int, n: int, H: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = clients(N, d, n, weights=np.linspace(1.0, 3.0, N))
    chosen, start = method(step_size=0.05, local_steps=H), np.ones(d)
    exact = exact_law(problem, chosen, Batches(2), rounds=40, theta0=start)
    monkeypatch.setattr(law, "_cheapest", lambda *asked: (law.many_clients(*asked[:3]), 0.0))
    found = exact_law(problem, chosen, Batches(2), rounds=40, theta0=start)
    np.testing.assert_allclose(found.cov_theta, exact.cov_theta, atol=1e-6 * np.abs(exact.cov_theta).max())
    np.testing.assert_allclose(found.bias, exact.bias, atol=1e-10)
    np.testing.assert_allclose(curve_of(found), curve_of(exact), rtol=5e-3)
    without = exact_law(problem, chosen, Batches(None), rounds=40, theta0=start)
    assert np.abs(curve_of(without) / curve_of(exact) - 1.0).max() > 0.1  # so that the noise is seen


@pytest.mark.parametrize("method", [Scaffold, FedAvg])
def test_noise_that_grows_along_a_round(method: Any, never_dense: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Heavy tails: single clients' second moments grow from step to step, the mean over clients settles."""
    problem = clients(30, 3, 6, seed=3, heavy=True)
    chosen = method(step_size=0.032 if method is Scaffold else 0.043, local_steps=10)
    many = of(problem, chosen, 1)
    assert many.steps.rates.max() > 1.0
    found = exact_law(problem, chosen, Batches(1), rounds=30)
    monkeypatch.undo()
    exact = exact_law(problem, chosen, Batches(1), rounds=30)
    np.testing.assert_allclose(np.trace(found.cov_theta), np.trace(exact.cov_theta), rtol=1e-4)
    np.testing.assert_allclose(curve_of(found), curve_of(exact), rtol=1e-2)


@pytest.mark.parametrize("start", [0.0, 20.0])
def test_some_clients_show_how_the_noise_of_all_grows(start: float) -> None:
    """Also from far away, where first rounds have thousands of times the plateau's noise."""
    problem = clients(300, 4, 12, weights=np.linspace(1.0, 2.0, 300))
    many = of(problem, Scaffold(step_size=0.03, local_steps=20), 1)
    plateau, theta0 = many.plateau(), np.full(4, start)
    few, all_of_them = (many.way(*plateau, theta0, shown) for shown in (64, 150))
    assert few.clients.size <= 64 < all_of_them.clients.size == 300
    some, everyone = (many.followed(way, 40, theta0) for way in (few, all_of_them))
    np.testing.assert_allclose(many.curve(40, theta0, plateau), everyone, rtol=4e-3)
    assert np.abs(some / everyone - 1.0).max() > 1e-2  # so that following more of them is seen


def test_elimination_for_a_thousand_clients_agrees_with_runs() -> None:
    problem, method = fs.problems.RidgeStream(n_clients=1000, dim=4), Scaffold(step_size=0.1, local_steps=10)
    found = exact_law(problem, method, Batches(2), rounds=10)
    mse = fs.run(problem, method, rounds=10, batch_size=2, repetitions=150, seed=3, progress=False).mse
    error = mse.std(axis=0, ddof=1) / np.sqrt(len(mse))
    assert found.curve is not None
    assert (np.abs(found.curve - mse.mean(axis=0))[1:] <= 4.5 * error[1:] + 3e-3 * found.curve[1:]).all()


def test_the_noise_is_linear_in_moments_that_are_indefinite() -> None:
    many = of(make("ridge", dim=2), Scaffold(step_size=0.1, local_steps=3), 1)
    first, second = np.array([[1.0, 0.3], [0.3, -2.0]]), np.array([[-0.5, 1.0], [1.0, 0.2]])

    def noise(matrix: Array) -> Array:
        W = block_diag(0.0, matrix)
        return many.q.covariances(np.broadcast_to(W, (3, 1, 3, 3)))

    apart = noise(first) + noise(second)
    np.testing.assert_allclose(noise(first + second), apart, atol=1e-13 * np.abs(apart).max())


@pytest.mark.parametrize(("method", "largest"), [(Scaffold, 0.1344), (FedAvg, 0.1847)])
def test_all_ways_agree_on_the_largest_step_size(
    method: Any, largest: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to which noise fades: the limit was found by bisection with the second moment of all states."""
    problem = clients(20, 2, 8)
    for share, settles in ((0.98, True), (1.02, False)):
        chosen = method(step_size=share * largest, local_steps=10)
        outcomes = []
        for way in (law.dense_rounds, law.many_clients):
            with monkeypatch.context() as patch:
                patch.setattr(law, "_cheapest", lambda *asked, way=way: (way(*asked[:3]), 0.0))
                try:
                    outcomes.append(np.trace(exact_law(problem, chosen, Batches(1)).cov_theta) > 0.0)
                except NoPlateau:
                    outcomes.append(False)
        assert outcomes == [settles] * 2


@pytest.mark.parametrize("method", [Scaffold, FedAvg])
@pytest.mark.parametrize("H", [1, 2, 3, 20, 100])
def test_no_plateau_if_the_run_without_noise_diverges(method: Any, H: int, never_dense: None) -> None:
    problem = make("ridge", dim=2)
    hessians = problem.client_hessians(np.zeros(2))
    chosen = method(step_size=4.0 / float(np.linalg.eigvalsh(hessians).max()), local_steps=H)
    A, _ = round_matrices(hessians, problem.weights, chosen.step_size, H)
    assert np.abs(np.linalg.eigvals(A if method is Scaffold else A[:2, :2])).max() > 1
    with pytest.raises(NoPlateau, match="does not contract"):
        exact_law(problem, chosen, Batches(2))
    with pytest.raises(NoPlateau, match="does not contract"):
        exact_law(problem, method(step_size=9.0, local_steps=5000), Batches(2))


def test_contraction_is_all_that_is_asked_for(never_dense: None) -> None:
    problem = make("ridge", dim=2)
    hessians = problem.client_hessians(np.zeros(2))
    for share in np.linspace(0.2, 3.0, 15):
        for H in (1, 2, 3, 4):
            gamma = share / float(np.linalg.eigvalsh(hessians).max())
            A, _ = round_matrices(hessians, problem.weights, gamma, H)
            radius = np.abs(np.linalg.eigvals(A)).max()
            try:
                exact_law(problem, Scaffold(step_size=gamma, local_steps=H), Batches(None))
                settles = True
            except NoPlateau:
                settles = False
            assert abs(radius - 1) < 0.01 or settles == (radius < 1), (share, H, radius)


def test_the_order_of_clients_does_not_matter(never_dense: None) -> None:
    problem = make("ridge", (6, 9, 4, 7), 3, seed=2)
    turned = problem.subset([3, 2, 1, 0])
    plain, other = (
        exact_law(p, Scaffold(step_size=0.1, local_steps=10), Batches(2), rounds=5) for p in (problem, turned)
    )
    np.testing.assert_allclose(other.cov_theta, plain.cov_theta, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(curve_of(other), curve_of(plain), rtol=1e-5)


def test_noise_of_some_clients_adds_up_to_that_of_all() -> None:
    """A part with expansion factors has the same weighted noise as the whole, if every client is in it."""
    problem = clients(20, 2, 6)
    many = of(problem, Scaffold(step_size=0.05, local_steps=5), 2)
    _, noise = many.plateau()
    part = many.q.part(np.arange(20))
    assert [block.clients.tolist() for block in part.blocks] == [block.clients.tolist() for block in many.q.blocks]
    np.testing.assert_array_equal(Noise(many, noise.nodes).input, noise.input)
