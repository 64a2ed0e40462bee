"""The predictor against dense algebra: no simulation, no statistics."""

from typing import Any

import numpy as np
import pytest

import fedscaffold as fs
from fedscaffold import FedAvg, FedLin, InvalidInput, Scaffold, TwoSidedScaffold, theory
from fedscaffold.core.random.batches import Batches
from fedscaffold.core.types import Array
from fedscaffold.problems import Ridge
from fedscaffold.theory.client_blocks import ClientBlock, for_blocks
from fedscaffold.theory.prediction.clouds.margins import MarginAverages
from fedscaffold.theory.prediction.local_steps import accumulate, curvature, rotate, steps
from fedscaffold.theory.prediction.plateau import covariances as client_covariances
from fedscaffold.theory.prediction.plateau import linear_start, one_pass, solved
from fedscaffold.theory.prediction.reduced_system import noise_input, reduced_system, solve_lyapunov
from fedscaffold.theory.prediction.setting import setting
from fedscaffold.theory.prediction.stationary import solve_stationary
from tests.samples import Kind, make
from tests.theory.dense_algebra import lyapunov, ridge_covariance, round_matrices

METHODS = [
    pytest.param(0.3, 20, None, id="uniform"),
    pytest.param(0.3, 20, (1.0, 4.0, 0.5), id="weighted"),
    pytest.param(0.05, 1, None, id="one-step"),
    pytest.param(1.0, 3, (1.0, 4.0, 0.5), id="oscillating"),
    pytest.param(0.2, 500, None, id="long"),
]


def noises(N: int, d: int) -> Array:
    roots = np.random.default_rng(5).normal(size=(N, d, d))
    return roots @ roots.swapaxes(1, 2)


@pytest.mark.parametrize(("gamma", "H", "weights"), METHODS)
def test_elimination_of_clients_solves_the_full_lyapunov_equation(
    gamma: float, H: int, weights: tuple[float, ...] | None
) -> None:
    problem = make("ridge", dim=2, weights=weights)
    hessians, w = problem.client_hessians(np.zeros(2)), problem.weights
    Q = noises(3, 2)
    full = lyapunov(hessians, w, gamma, H, Q)
    cur = curvature(hessians, gamma, H)
    system = reduced_system(w, cur, 1e-10)
    P = solve_lyapunov(system.A, gamma**2 * noise_input(system, w**2, cur, rotate(cur.U, Q)))
    found = P.reshape(system.c.size, 2, system.c.size, 2).sum(axis=(0, 2))
    np.testing.assert_allclose(found, full[:2, :2], rtol=1e-8, atol=1e-8 * np.abs(full[:2, :2]).max())


@pytest.mark.parametrize(("gamma", "H", "weights"), METHODS)
def test_covariances_with_control_variates_solve_the_full_lyapunov_equation(
    gamma: float, H: int, weights: tuple[float, ...] | None
) -> None:
    problem = make("ridge", dim=2, weights=weights)
    s = setting(problem, Scaffold(step_size=gamma, local_steps=H), Batches(2))
    start, Q = linear_start(s), noises(3, 2)
    full = lyapunov(problem.client_hessians(s.optimum), problem.weights, gamma, H, Q)
    state = solved(s, start.cur, start.noise, rotate(start.cur.U, Q), start.residual)
    theta_eta, eta = client_covariances(s, state)
    for c in range(3):
        at, U = slice(2 * c + 2, 2 * c + 4), state.cur.U[c]
        to_eta = np.zeros((2, 8))
        to_eta[:, :2], to_eta[:, at] = np.eye(2), gamma * H * np.eye(2)
        own = to_eta @ full @ to_eta.T
        np.testing.assert_allclose(U @ theta_eta[c] @ U.T, full[:2] @ to_eta.T, atol=1e-8 * np.abs(own).max())
        np.testing.assert_allclose(U @ eta[c] @ U.T, own, atol=1e-8 * np.abs(own).max())


@pytest.mark.parametrize(("gamma", "H", "weights"), METHODS)
def test_bias_solves_the_dense_equations(gamma: float, H: int, weights: tuple[float, ...] | None) -> None:
    problem = make("logistic", dim=2, weights=weights)
    s = setting(problem, Scaffold(step_size=gamma, local_steps=H), Batches(1))
    start = linear_start(s)
    residual = np.random.default_rng(0).normal(size=start.residual.shape)
    state = solved(s, start.cur, start.noise, start.Q, residual)
    A, L = round_matrices(problem.client_hessians(s.optimum), problem.weights, gamma, H)
    r = accumulate(s.steps, start.cur, residual, [H])[:, 0]
    push = L @ np.einsum("kij,kj->ki", start.cur.U, r).ravel()
    dense = np.linalg.solve(np.eye(8) - A, push)
    ahead = (state.eta - state.bias) / (gamma * H)
    np.testing.assert_allclose(state.bias, dense[:2], rtol=1e-8, atol=1e-10 * np.abs(dense).max())
    np.testing.assert_allclose(ahead.ravel(), dense[2:], rtol=1e-8, atol=1e-10 * np.abs(dense).max())


@pytest.mark.parametrize("H", [1, 2, 5, 37])
def test_sums_over_steps_are_the_sums(H: int) -> None:
    rng = np.random.default_rng(1)
    cur = curvature(np.array([np.diag([0.2, 1.0, 0.0]), np.diag([3.0, 9.0, 12.0])]), 0.1, H)
    s = steps(0.1, H, 0.0, 12.0, 1e-6)
    values = rng.normal(size=(2, s.nodes.size, 3, 3))
    rates = np.einsum("pq,kqij->kpij", s.fit, values)
    for h in (0, 1, H // 2, H):
        along = [sum(rates[:, p] * s.rates[p] ** k for p in range(s.rates.size)) for k in range(h)]
        g = cur.g[:, :, None] * cur.g[:, None, :]
        expected = sum((g ** (h - 1 - k) * along[k] for k in range(h)), np.zeros((2, 3, 3)))
        np.testing.assert_allclose(accumulate(s, cur, values, [h])[:, 0], expected, rtol=1e-9, atol=1e-9)
    for q, h in enumerate(s.nodes):
        np.testing.assert_allclose(np.einsum("p,kpij->kij", s.rates**h, rates), values[:, q], atol=1e-9)


@pytest.mark.parametrize("method", [Scaffold, FedAvg])
@pytest.mark.parametrize(
    ("gamma", "H", "batch_size", "weights"),
    [(0.2, 4, 2, None), (0.2, 4, 2, (1.0, 4.0, 0.5)), (0.1, 60, 1, (1.0, 4.0, 0.5))],
)
def test_ridge_plateau_is_exact(
    method: type[Scaffold | FedAvg],
    gamma: float,
    H: int,
    batch_size: int,
    weights: tuple[float, ...] | None,
) -> None:
    problem = make("ridge", dim=2, weights=weights)
    assert isinstance(problem, Ridge)
    full, mean = ridge_covariance(problem, gamma, H, batch_size, scaffold=method is Scaffold)
    found = theory.predict(problem, method(step_size=gamma, local_steps=H), batch_size=batch_size)
    np.testing.assert_allclose(found.cov_theta, full[:2, :2], atol=1e-6 * np.abs(full[:2, :2]).max())
    np.testing.assert_allclose(found.bias, mean[:2], atol=1e-8)
    np.testing.assert_allclose(found.mse, np.trace(full[:2, :2]) + mean[:2] @ mean[:2], rtol=1e-6)
    assert found.mse == found.mse_variance_part + found.mse_bias_part


@pytest.mark.parametrize("kind", ["ridge", "logistic"])
@pytest.mark.parametrize("method", [Scaffold, FedAvg])
def test_without_noise_the_curve_is_the_run(kind: Kind, method: type[Scaffold | FedAvg]) -> None:
    problem = make(kind, (20, 30, 12, 25), 3, weights=(1.0, 2.0, 3.0, 0.5), seed=4)
    chosen = method(step_size=0.2, local_steps=25)
    found = theory.predict(problem, chosen, batch_size=None, rounds=40)
    trace = fs.run(problem, chosen, rounds=40, engine="reference", progress=False)
    assert found.curve is not None
    assert found.mse_variance_part == 0.0
    mse = trace.mse[0]
    np.testing.assert_allclose(found.curve, mse, rtol=1e-3, atol=1e-10 * mse[0])
    if method is Scaffold:
        assert found.mse < 1e-20
    else:
        settled = fs.run(problem, chosen, rounds=400, engine="reference", progress=False)
        np.testing.assert_allclose(found.mse, settled.mse[0, -1], rtol=1e-3)


@pytest.mark.parametrize("noise", [0.0, 1.0])
@pytest.mark.parametrize("H", [20, 100, pytest.param(1000, marks=pytest.mark.slow)])
def test_long_rounds_with_far_away_local_optima(H: int, noise: float) -> None:
    """Paths along which the noise falls a hundredfold, or without end; γH‖∇²f_c‖ from 2 to 90."""
    rng = np.random.default_rng(0)
    X = [rng.normal(size=(20, 2)) * [1.0, 0.3] * rng.uniform(0.7, 1.3) for _ in range(3)]
    problem = Ridge(X, [x @ rng.normal(size=2) * 30 + noise * rng.normal(size=20) for x in X], l2=0.01)
    for method in (Scaffold, FedAvg):
        full, mean = ridge_covariance(problem, 0.05, H, 10, scaffold=method is Scaffold)
        found = theory.predict(problem, method(step_size=0.05, local_steps=H), batch_size=10)
        np.testing.assert_allclose(found.mse_variance_part, np.trace(full[:2, :2]), rtol=1e-6)
        np.testing.assert_allclose(found.bias, mean[:2], atol=1e-8)


def test_sampling_without_replacement_of_everything_has_no_noise() -> None:
    problem = make("logistic", (9, 9, 9), 3)
    found = theory.predict(
        problem, Scaffold(step_size=0.1, local_steps=5), batch_size=9, sampling="without_replacement"
    )
    assert found.mse < 1e-20


@pytest.mark.parametrize("kind", ["ridge", "logistic"])
def test_order_and_duplication_of_clients_do_not_matter(kind: Kind) -> None:
    problem = make(kind, (6, 9, 4, 7), 3, seed=2)
    tables = [(problem.x[a:b], problem.y[a:b]) for a, b in zip(problem.offsets, problem.offsets[1:], strict=False)]
    method = Scaffold(step_size=0.1, local_steps=10)
    plain = theory.predict(problem, method, batch_size=2, rounds=5)
    turned = type(problem)([x for x, _ in tables[::-1]], [y for _, y in tables[::-1]], l2=problem.l2)
    other = theory.predict(turned, method, batch_size=2, rounds=5)
    np.testing.assert_allclose(other.cov_theta, plain.cov_theta, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(other.bias, plain.bias, rtol=1e-5, atol=1e-9)
    assert other.curve is not None
    assert plain.curve is not None
    np.testing.assert_allclose(other.curve, plain.curve, rtol=1e-4)
    assert other.bias_xi.shape == (4, 3)
    np.testing.assert_allclose(other.bias_xi[::-1], plain.bias_xi, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("method", [Scaffold, FedAvg])
@pytest.mark.parametrize("H", [1, 2, 3, 20, 100])
def test_no_plateau_where_the_run_without_noise_diverges(method: type[Scaffold | FedAvg], H: int) -> None:
    problem = make("ridge", dim=2)
    largest = float(np.linalg.eigvalsh(problem.client_hessians(np.zeros(2)))[:, -1].max())
    chosen = method(step_size=4.0 / largest, local_steps=H)
    A, _ = round_matrices(problem.client_hessians(np.zeros(2)), problem.weights, chosen.step_size, H)
    assert np.abs(np.linalg.eigvals(A if method is Scaffold else A[:2, :2])).max() > 1
    with pytest.raises(InvalidInput, match="does not contract"):
        theory.predict(problem, chosen, batch_size=2)


@pytest.mark.parametrize("method", [Scaffold, FedAvg])
def test_powers_that_overflow_are_refused_in_the_same_words(method: type[Scaffold | FedAvg]) -> None:
    with pytest.raises(InvalidInput, match="does not contract"):
        theory.predict(make("ridge", dim=2), method(step_size=9.0, local_steps=5000), batch_size=2)


def test_contraction_is_all_that_is_asked_for() -> None:
    problem = make("ridge", dim=2)
    hessians = problem.client_hessians(np.zeros(2))
    largest = float(np.linalg.eigvalsh(hessians)[:, -1].max())
    for share in np.linspace(0.2, 3.0, 15):
        for H in (1, 2, 3, 4):
            gamma = share / largest
            A, _ = round_matrices(hessians, problem.weights, gamma, H)
            radius = np.abs(np.linalg.eigvals(A)).max()
            try:
                reduced_radius_is_fine = True
                s = setting(problem, Scaffold(step_size=gamma, local_steps=H), Batches(None))
                solve_stationary(s)
            except InvalidInput:
                reduced_radius_is_fine = False
            assert abs(radius - 1) < 0.01 or reduced_radius_is_fine == (radius < 1), (share, H, radius)


def test_noise_that_feeds_on_itself_is_refused() -> None:
    x = np.random.default_rng(0).standard_cauchy(size=(2, 40, 2))
    problem = Ridge(x, x[..., 0], l2=0.1)
    largest = float(np.linalg.eigvalsh(problem.client_hessians(np.zeros(2)))[:, -1].max())
    with pytest.raises(InvalidInput, match=r"no plateau found|does not contract"):
        theory.predict(problem, Scaffold(step_size=1.0 / largest, local_steps=5), batch_size=1)


def test_passes_settle() -> None:
    problem = make("logistic", (30, 20, 25), 3)
    s = setting(problem, Scaffold(step_size=0.3, local_steps=20), Batches(1))
    state = solve_stationary(s)
    for _ in range(6):
        later = one_pass(s, state)
    np.testing.assert_allclose(np.trace(later.cov_theta), np.trace(state.cov_theta), rtol=1e-4)
    np.testing.assert_allclose(later.bias, state.bias, rtol=1e-3)


OTHER_METHODS = (
    FedLin(step_size=0.1, local_steps=2),
    TwoSidedScaffold(step_size=0.1, server_step_size=1.0, local_steps=2),
)


@pytest.mark.parametrize("method", OTHER_METHODS, ids=lambda method: method.kind)
def test_other_methods_are_refused(method: TwoSidedScaffold | FedLin) -> None:
    """By expansions; `predict` foresees them, see the folder family."""
    with pytest.raises(InvalidInput, match=f"Scaffold and FedAvg, not {method.kind}; simulate it"):
        theory.expansion(make("ridge"), method, batch_size=1)


@pytest.mark.parametrize("change", [{"participation": 0.7}, {"cohort": 2}, {"local_steps": (2, 2, 2)}])
def test_clients_that_differ_are_refused(change: dict[str, Any]) -> None:
    """By expansions; `predict` foresees them, see the folder family."""
    method = Scaffold(**{"step_size": 0.1, "local_steps": 2, **change})
    with pytest.raises(InvalidInput, match="full participation with the same number of local steps"):
        theory.expansion(make("ridge"), method, batch_size=1)


def test_theory_reads_kind_and_not_the_name_of_the_class() -> None:
    class Renamed(FedAvg):
        pass

    plain, other = (
        theory.predict(make("ridge"), kind(step_size=0.1, local_steps=2), batch_size=1)
        for kind in (FedAvg, Renamed)
    )
    assert other.mse == plain.mse


def test_swapped_arguments_are_refused_with_a_sentence() -> None:
    problem: Any = make("ridge")
    method: Any = Scaffold(step_size=0.1, local_steps=2)
    no_method: Any = Scaffold
    for ask in (theory.predict, theory.expansion, theory.predict_at_scale):
        with pytest.raises(
            InvalidInput, match="problem comes first and the method second; got Scaffold and Ridge"
        ):
            ask(method, problem, batch_size=1)
        with pytest.raises(InvalidInput, match="method must be a method such as Scaffold"):
            ask(problem, no_method, batch_size=1)


def test_no_rounds_are_refused() -> None:
    with pytest.raises(InvalidInput, match="rounds"):
        theory.predict(make("ridge"), Scaffold(step_size=0.1, local_steps=2), batch_size=1, rounds=0)


def test_the_noise_of_ridge_is_linear_in_the_covariance_even_if_that_is_indefinite() -> None:
    # Krylov methods ask for the noise under matrices that are no covariances.
    problem = make("ridge", dim=2)
    averages, found = MarginAverages(problem, quadratic=True), []
    first, second = np.array([[1.0, 0.3], [0.3, -2.0]]), np.array([[-0.5, 1.0], [1.0, 0.2]])

    def work(block: ClientBlock) -> None:
        k = block.clients.size
        mean, factors = np.zeros((k, 1, 2)), np.ones(k)

        def noise(cov: Array) -> Array:
            return averages.over_clouds(block, mean, np.broadcast_to(cov, (k, 1, 2, 2)), factors).noise

        at_rest = noise(np.zeros((2, 2)))
        apart = noise(first) + noise(second) - at_rest
        found.append(np.abs(noise(first + second) - apart).max() / np.abs(apart).max())

    for_blocks(problem, work)
    assert max(found) < 1e-14
