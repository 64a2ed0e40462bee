"""Each step of the proof of the sharp Theorem 4.8, by algebra, by random search and by exact recursions."""

import itertools
from typing import Any

import numpy as np
import pytest

import fedscaffold as fs
from fedscaffold.core.types import Array
from fedscaffold.problems import Ridge
from fedscaffold.theory import constants
from fedscaffold.theory.bounds import MOMENTS, PROOFS, ScaffoldBounds, SharpProof
from tests.samples import make
from tests.theory.bounds import proof_constants as proof
from tests.theory.bounds.proof_constants import Corner

STATED: SharpProof = PROOFS["sharp"]  # type: ignore[assignment]
CORNER = Corner()


def test_the_conditions_are_those_of_the_proof() -> None:
    assert (1 / STATED.length, 1 / STATED.spread, 1 / STATED.share_of_noise) == (
        CORNER.length,
        CORNER.spread,
        CORNER.noise,
    )


@pytest.mark.parametrize(("p", "free"), [(1, proof.SECOND), (2, proof.FOURTH), (3, proof.SIXTH)])
def test_moments_are_rounded_up(p: int, free: proof.Free) -> None:
    found = proof.moment(p, CORNER, free)
    whole, local = MOMENTS[2 * p]
    assert 0.9 * whole < found.whole <= whole
    assert 0.9 * local < found.local <= local


def test_the_theorem_s_constants_are_rounded_up() -> None:
    covariance = proof.covariance_constant(CORNER, MOMENTS[2][1])
    remainder = proof.remainder_constant(CORNER, MOMENTS[4][1])
    rate = proof.contraction_rate(CORNER, proof.SECOND)
    assert 0.9 * STATED.linear < covariance <= STATED.linear
    assert 0.9 * STATED.curved < remainder <= STATED.curved
    assert STATED.contraction <= rate < 1.05 * STATED.contraction


def test_the_corner_of_the_conditions_is_the_worst() -> None:
    """20,000 random points inside the conditions: no constant is larger than at the corner."""
    rng = np.random.default_rng(0)
    limits = np.array([CORNER.length, CORNER.spread, CORNER.noise])
    at_corner = proof.covariance_constant(CORNER, 1.3), proof.remainder_constant(CORNER, 5.6)
    for shares in rng.uniform(0.01, 1.0, size=(5000, 3)):
        inside = Corner(*(shares * limits))
        assert proof.covariance_constant(inside, 1.3) <= at_corner[0]
        assert proof.remainder_constant(inside, 5.6) <= at_corner[1]
    for p, free in ((1, proof.SECOND), (2, proof.FOURTH), (3, proof.SIXTH)):
        worst = proof.moment(p, CORNER, free)
        for shares in rng.uniform(0.05, 1.0, size=(100, 3)):
            found = proof.moment(p, Corner(*(shares * limits)), free)
            assert found.whole <= worst.whole
            assert found.local <= worst.local


@pytest.mark.parametrize("p", [1, 2, 3])
def test_the_power_of_a_sum(p: int) -> None:
    """‖y − G‖^{2p} ≤ ‖y‖^{2p} − 2p‖y‖^{2p−2}⟨y, G⟩ + c₁‖y‖^{2p−2}‖G‖² + c₂‖y‖^{2p−4}‖G‖⁴ + c₃‖G‖⁶."""
    rng = np.random.default_rng(p)
    y = rng.normal(size=(200_000, 2)) * rng.lognormal(0, 1, size=(200_000, 1))
    G = rng.normal(size=(200_000, 2)) * rng.lognormal(0, 2, size=(200_000, 1))
    G[:1000] = -y[:1000] * rng.uniform(0, 3, size=(1000, 1))  # the worst direction
    Y, g2, inner = (y**2).sum(1), (G**2).sum(1), (y * G).sum(1)
    left = ((y - G) ** 2).sum(1) ** p
    for delta in (0.1, 0.4, 1.0):
        c1, c2, c3 = proof.binomial_terms(p, delta)
        right = Y**p - 2 * p * Y ** (p - 1) * inner + c1 * Y ** (p - 1) * g2
        right += (c2 * Y ** (p - 2) * g2**2 if p > 1 else 0) + (c3 * g2**3 if p > 2 else 0)
        assert (left <= right + 1e-12 * (np.sqrt(Y) + np.sqrt(g2)) ** (2 * p)).all()


@pytest.mark.parametrize("p", [1, 2, 3])
def test_martingales_of_signs(p: int) -> None:
    """Sums of H signs with weights, all 2^H of them: E^{1/p} S^{2p} ≤ κ Σ a_h²."""
    rng = np.random.default_rng(p)
    for H in (1, 2, 5, 9):
        signs = np.array(list(itertools.product([-1.0, 1.0], repeat=H)))
        for a in (np.ones(H), rng.lognormal(0, 1, size=H)):
            moment = float(np.mean((signs @ a) ** (2 * p)) ** (1 / p))
            assert moment <= proof.martingale(p) * float(a @ a) * (1 + 1e-12)


def test_the_mean_of_the_spread_of_powers_is_little_more_than_that_of_the_curvatures() -> None:
    """Σ w_c‖Δ_c‖ ≤ (1 + 2γ(H − 1)L) ζ₂, so at most (7/6) ζ₂ where γHL ≤ 1/12."""
    rng = np.random.default_rng(1)
    for _ in range(300):
        N, d, H = int(rng.integers(2, 6)), int(rng.integers(1, 5)), int(rng.integers(1, 30))
        a = rng.normal(size=(N, d, d)) * rng.lognormal(0, 1, size=(N, 1, 1))
        M = a @ np.swapaxes(a, 1, 2)
        w = rng.dirichlet(np.ones(N))
        L = float(np.linalg.eigvalsh(M).max())
        gamma = rng.uniform(0.01, 1) / (12 * H * L)
        power = np.linalg.matrix_power(np.eye(d) - gamma * M, H)
        delta = (power - np.tensordot(w, power, 1)) / (gamma * H)
        spread = M - np.tensordot(w, M, 1)
        zeta2 = float(np.sqrt(w @ np.linalg.norm(spread, 2, axis=(1, 2)) ** 2))
        mean = float(w @ np.linalg.norm(delta, 2, axis=(1, 2)))
        assert mean <= (1 + 2 * gamma * (H - 1) * L) * zeta2 * (1 + 1e-9) <= 7 / 6 * zeta2 * (1 + 1e-9)
        tilde = np.eye(d) - sum(np.linalg.matrix_power(np.eye(d) - gamma * M, k) for k in range(H)) / H
        assert np.linalg.eigvalsh(tilde).max() <= gamma * (H - 1) * L / 2 + 1e-12
        assert np.linalg.eigvalsh(tilde).min() >= -1e-12


def recursion(hessians: Array, w: Array, gamma: float, H: int) -> tuple[Array, Array, Array, Array]:
    """Γ̄, C̃_c, Δ_c and Γ_c^H of the proof's recursion."""
    d = hessians.shape[1]
    steps = np.eye(d) - gamma * hessians
    powers = [np.linalg.matrix_power(steps, h) for h in range(H + 1)]
    tilde = np.eye(d) - np.mean(powers[:H], axis=0)
    mean = np.tensordot(w, powers[H], 1)
    return mean, tilde, (powers[H] - mean) / (gamma * H), powers[H]


def nuclear(matrix: Array) -> float:
    return float(np.linalg.norm(matrix, "nuc"))


def test_the_part_that_noise_drives_obeys_the_three_inequalities() -> None:
    """Dense second moments of (θ_U, ξ_U) against the rows of the matrix, in nuclear norm, for k = 1, 2, 3."""
    from tests.theory.dense_algebra import lyapunov

    rng = np.random.default_rng(2)
    for _ in range(40):
        N, d, H = int(rng.integers(2, 5)), int(rng.integers(1, 3)), int(rng.integers(2, 8))
        a = rng.normal(size=(N, d, d))
        hessians = a @ np.swapaxes(a, 1, 2) * 0.3 + np.eye(d)
        w = rng.dirichlet(np.ones(N)) * 0.9 + 0.1 / N
        L = float(np.linalg.eigvalsh(hessians).max())
        gamma = 1 / (24 * H * (L + 1.0))
        noise = rng.normal(size=(N, d, d))
        Q = noise @ np.swapaxes(noise, 1, 2)
        full = lyapunov(hessians, w, gamma, H, Q)
        _, tilde, delta, _ = recursion(hessians, w, gamma, H)
        c = gamma * (H - 1) * L / 2
        zeta = float(w @ np.linalg.norm(delta, 2, axis=(1, 2)))
        size = float(w**2 @ np.trace(Q, axis1=1, axis2=2))

        def followed(k: int, w: Array = w, tilde: Array = tilde, N: int = N, d: int = d) -> Array:
            row = np.zeros((d, (N + 1) * d))
            for i in range(N):
                row[:, (i + 1) * d : (i + 2) * d] = w[i] * np.linalg.matrix_power(tilde[i], k)
            return row

        theta = np.eye((N + 1) * d)[:d]
        A = nuclear(theta @ full @ theta.T)
        B = max(nuclear(theta @ full @ followed(k).T) / c**k for k in (1, 2, 3, 4))
        C = max(nuclear(followed(j) @ full @ followed(k).T) / c ** (j + k) for j in (1, 2, 3) for k in (1, 2, 3))
        shrink = (1 - gamma * 1.0) ** H
        assert shrink**2 * A + 2 * gamma * H * c * B + (gamma * H * c) ** 2 * C + gamma**2 * size + 1e-12 * A >= A
        assert zeta * A + 2 * c * B + gamma * H * c * (zeta * B + 2 * c * C) + gamma * size / H >= B
        assert zeta**2 * A + 4 * c * zeta * B + 4 * c * c * C + size / H**2 >= C


def test_the_part_that_remainders_drive() -> None:
    """A constant push ρ_c: θ_V is where the linear recursion rests, and below the proof's bound."""
    rng = np.random.default_rng(3)
    for _ in range(200):
        N, d, H = int(rng.integers(2, 5)), int(rng.integers(1, 3)), int(rng.integers(1, 8))
        a = rng.normal(size=(N, d, d))
        hessians = a @ np.swapaxes(a, 1, 2) * 0.05 + np.eye(d)
        w = rng.dirichlet(np.ones(N))
        L = float(np.linalg.eigvalsh(hessians).max())
        mu = float(np.linalg.eigvalsh(hessians).min())
        spread = hessians - np.tensordot(w, hessians, 1)
        zeta2 = float(np.sqrt(w @ np.linalg.norm(spread, 2, axis=(1, 2)) ** 2))
        gamma = min(1 / (24 * H * (L + mu)), mu / (4 * H * L * max(zeta2, 1e-9)))
        mean, tilde, delta, _ = recursion(hessians, w, gamma, H)
        rho = rng.normal(size=(N, d))
        rho /= np.linalg.norm(rho, axis=1, keepdims=True)  # P = 1
        push = w @ rho

        def one_round(state: Array, parts: Any = (mean, tilde, delta, rho, push, w, gamma, H)) -> Array:
            mean, tilde, delta, rho, push, w, gamma, H = parts
            theta, xi = state[0], state[1:] - w @ state[1:]
            pulled = np.einsum("kij,kj->ki", tilde, xi)
            after = mean @ theta + gamma * H * (w @ pulled) - gamma * push
            return np.vstack([after, delta @ theta + pulled - w @ pulled - (rho - push) / H])

        size = (N + 1) * d
        offset = one_round(np.zeros((N + 1, d))).ravel()
        matrix = np.stack([one_round(unit.reshape(N + 1, d)).ravel() - offset for unit in np.eye(size)], axis=1)
        theta = np.linalg.solve(np.eye(size) - matrix, offset)[:d]
        assert np.linalg.norm(theta) <= 2.0 / 5.6 * STATED.curved / (H * mu)


@pytest.mark.parametrize("seed", range(6))
def test_exact_plateaus_are_below_the_bound_and_not_far(seed: int) -> None:
    """Ridge, where `predict` is exact: measured over bound is at most 1, and for equal curvatures about 5/7."""
    rng = np.random.default_rng(seed)
    N, H = int(rng.integers(1, 6)), int(rng.integers(1, 20))
    problem = make("ridge", (15,) * N, 2, l2=3.0, seed=seed)
    known = constants(problem, batch_size=3)
    length = 0.99 * min(1 / (24 * (known.L + known.mu)), known.mu / (4 * known.L * max(known.zeta2, 1e-9)))
    setting: dict[str, Any] = {"step_size": length / H / 100, "local_steps": H, "n_clients": N}
    bound = ScaffoldBounds(known, **setting).stationary_covariance()
    assert bound.holds
    method = fs.Scaffold(step_size=setting["step_size"], local_steps=H)
    reached = fs.theory.predict(problem, method, batch_size=3).mse
    assert reached <= bound.value


def test_the_bound_is_nearly_attained() -> None:
    """One curvature, noise that does not depend on θ: E‖θ − θ*‖² is γσ²/(2μN), five sevenths of the bound."""
    n_clients = 50
    x = np.ones((n_clients, 2, 1))
    y = np.tile([-1.0, 1.0], (n_clients, 1))  # every gradient is θ ± 1
    problem = Ridge(x, y)
    known = constants(problem, batch_size=1)
    setting: dict[str, Any] = {"step_size": 1e-4, "local_steps": 10, "n_clients": n_clients}
    bound = ScaffoldBounds(known, **setting).stationary_covariance()
    reached = fs.theory.predict(problem, fs.Scaffold(step_size=1e-4, local_steps=10), batch_size=1).mse
    assert bound.holds
    assert reached / bound.value == pytest.approx(0.5 / 0.7, rel=0.02)
