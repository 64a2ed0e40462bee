"""Scaffold's linear part with the clients eliminated: from N·d states to M·d, M about twenty.

With η_c = θ + γHξ_c a round of Scaffold around θ* is (exactly, for quadratic f_c)

    η_c⁺ = C̃_c η_c + (Γ_c^H − C̃_c) θ − γ e_c,     θ = Σ_c w_c η_c,     C̃_c = I − (1/H) Σ_{h<H} Γ_c^h,

so that θ feels client c only through (z − C̃_c)⁻¹. Interpolating 1/(z − c) in log(1 − c) at M Chebyshev points
c_m, with Φ_m(C̃_c) the m-th Lagrange function of C̃_c, gives θ = Σ_m ζ_m with

    ζ_m⁺ = c_m ζ_m + J_m θ − γ ε_m,     J_m = Σ_c w_c Φ_m(C̃_c) (Γ_c^H − C̃_c),     ε_m = Σ_c w_c Φ_m(C̃_c) e_c.

The interpolation's error falls geometrically in M; M is chosen so that it is below a tolerance on |z| = 1.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from fedscaffold.core.types import Array
from fedscaffold.theory.prediction.local_steps import Curvature, no_contraction

CLIENTS_AT_ONCE = 128
MOST_POINTS = 48
DOUBLINGS = 64
GROWN = 1e12
ROUNDED = 0.125  # ends of a range of log δ are moved outwards to multiples of it where points are counted


@dataclass(frozen=True, eq=False)
class ReducedSystem:
    """ζ⁺ = A ζ − γ ε, θ = E ζ, with E = [I ... I]."""

    points: Array  # log(1 − c_m), (M,)
    c: Array  # c_m, (M,)
    J: Array  # (M, d, d)
    A: Array  # (M d, M d)


def lagrange(points: Array, x: Array) -> Array:
    """Lagrange functions of `points` at x, one more axis in front, by the barycentric formula."""
    gaps = points[:, None] - points[None, :] + np.eye(points.size)
    barycentric = 1.0 / gaps.prod(axis=1)
    shape = (points.size,) + (1,) * x.ndim
    off = x[None] - points.reshape(shape)
    exact = off == 0.0
    terms = barycentric.reshape(shape) / np.where(exact, 1.0, off)
    values = terms / terms.sum(axis=0)
    hit = exact.any(axis=0)
    return np.where(hit, exact.astype(np.float64), values)


def interpolation_points(lowest: float, highest: float, tolerance: float) -> Array:
    """Chebyshev points of [lowest, highest] = range of log δ, enough for 1/(z − 1 + δ) on |z| = 1."""
    if highest - lowest < 1e-12:
        return np.array([0.5 * (lowest + highest)])
    top = math.ceil(highest / ROUNDED) * ROUNDED if highest <= 0.0 else highest  # δ = 2 would be a pole at z = −1
    return _chebyshev(lowest, highest, _points_needed(math.floor(lowest / ROUNDED) * ROUNDED, top, tolerance))


def _chebyshev(lowest: float, highest: float, M: int) -> Array:
    return 0.5 * (lowest + highest) + 0.5 * (highest - lowest) * np.cos(np.pi * (np.arange(M) + 0.5) / M)


@lru_cache(maxsize=1024)
def _points_needed(lowest: float, highest: float, tolerance: float) -> int:
    """How many points a range of log δ needs."""
    omega = np.concatenate([[0.0], np.pi * 10.0 ** np.linspace(-4, 0, 60)])
    z = np.exp(1j * omega)[:, None]
    x = np.linspace(lowest, highest, 101)
    for M in range(2, MOST_POINTS):
        points = _chebyshev(lowest, highest, M)
        there = z - 1.0 + np.exp(x)
        error = np.abs((1.0 / (z - 1.0 + np.exp(points))) @ lagrange(points, x) * there - 1.0)
        if error.max() < tolerance:
            return M
    return MOST_POINTS


def reduced_system(w: Array, cur: Curvature, tolerance: float) -> ReducedSystem:
    """The reduced system of weights w_c and curvatures G_c; refuses C̃_c outside (−1, 1), where a round grows."""
    points = points_for(cur, tolerance)
    return system_of(points, coupling(points, w, cur))


def points_for(cur: Curvature, tolerance: float, margin: float = 0.0) -> Array:
    """Points for the C̃_c of these curvatures, and of others whose δ are up to a factor exp(margin) beyond."""
    if cur.delta.min() <= 0.0 or cur.delta.max() >= 2.0:
        raise no_contraction(np.inf)
    x = np.log(cur.delta)
    return interpolation_points(float(x.min()) - margin, float(x.max()) + margin, tolerance)


def coupling(points: Array, w: Array, cur: Curvature) -> Array:
    """J_m of weights w_c and curvatures G_c, (M, d, d)."""
    if cur.delta.min() <= 0.0 or cur.delta.max() >= 2.0:
        raise no_contraction(np.inf)
    x = np.log(cur.delta)
    d, M = cur.g.shape[1], points.size
    J = np.zeros((M, d, d))
    for begin in range(0, w.size, CLIENTS_AT_ONCE):
        part = slice(begin, begin + CLIENTS_AT_ONCE)
        phi = lagrange(points, x[part]) * w[part, None] * (cur.gH[part] - 1.0 + cur.delta[part])
        U = cur.U[part].swapaxes(0, 1)  # (d, k, d)
        J += ((phi[:, None] * U).reshape(M * d, -1) @ U.reshape(d, -1).T).reshape(M, d, d)
    return J


def system_of(points: Array, J: Array) -> ReducedSystem:
    """The reduced system of given points and couplings."""
    M, d, _ = J.shape
    c = 1.0 - np.exp(points)
    A = np.tile(J.reshape(M * d, d), M)
    A[np.diag_indices(M * d)] += np.repeat(c, d)
    return ReducedSystem(points, c, J, A)


def loadings(system: ReducedSystem, cur: Curvature) -> Array:
    """Φ_m(C̃_c) U_c stacked over m: (k, M d, d)."""
    phi = lagrange(system.points, np.log(cur.delta))  # (M, k, d)
    stacked = np.swapaxes(phi, 0, 1)[:, :, None, :] * cur.U[:, None]
    k, M, d, _ = stacked.shape
    return stacked.reshape(k, M * d, d)


def noise_input(system: ReducedSystem, squares: Array, cur: Curvature, Q: Array) -> Array:
    """Cov ε = Σ_c w_c² Φ(C̃_c) Q_c Φ(C̃_c)ᵀ, (M d, M d), for w_c², and Q_c in the eigenbasis, (k, d, d)."""
    size = system.A.shape[0]
    total = np.zeros((size, size))
    for begin in range(0, squares.size, CLIENTS_AT_ONCE):
        part = slice(begin, begin + CLIENTS_AT_ONCE)
        K = loadings(system, cur[part])
        right = K @ (squares[part, None, None] * Q[part])
        total += right.swapaxes(0, 1).reshape(size, -1) @ K.swapaxes(0, 1).reshape(size, -1).T
    return 0.5 * (total + total.T)


def solve_lyapunov(A: Array, noise: Array) -> Array:
    """P = A P Aᵀ + W by doubling: P ← P + A P Aᵀ, A ← A²; refuses A that does not contract."""
    P, power = noise, A
    for k in range(DOUBLINGS):
        more = power @ P @ power.T
        size = float(np.abs(power).sum(axis=1).max())
        if not size < GROWN:
            raise no_contraction(size ** (0.5**k))
        P = P + more
        if np.abs(more).max() <= 1e-16 * np.abs(P).max() and size < 1.0:
            return 0.5 * (P + P.T)
        power = power @ power
    raise no_contraction(1.0)


@dataclass(frozen=True, eq=False)
class Cross:
    """What Cov(θ, η_c) takes from the reduced system, for each point c_k."""

    gains: Array  # S_k = (I − c_k Σ_m J_m/(1 − c_k c_m))⁻¹, stacked: (M d, d)
    pushes: Array  # E (I − c_k A)⁻¹ A P Eᵀ, stacked: (M d, d)
    cov_theta: Array  # (d, d)


def cross(system: ReducedSystem, P: Array) -> Cross:
    """E (I − c_k A)⁻¹ = S_k [I/(1 − c_k c_1) ... I/(1 − c_k c_M)], since A is diagonal plus rank d."""
    M, d, _ = system.J.shape
    shares = 1.0 / (1.0 - system.c[:, None] * system.c[None, :])
    loops = np.eye(d) - system.c[:, None, None] * np.tensordot(shares, system.J, axes=1)
    gains = np.asarray(np.linalg.inv(loops), dtype=np.float64)
    with_theta = P.reshape(M, d, M, d).sum(axis=2)  # P Eᵀ, (M, d, d)
    cov_theta = with_theta.sum(axis=0)
    ahead = system.c[:, None, None] * with_theta + system.J @ cov_theta  # A P Eᵀ
    pushes = gains @ np.tensordot(shares, ahead, axes=1)
    return Cross(gains.reshape(M * d, d), pushes.reshape(M * d, d), cov_theta)


def client_covariances(
    system: ReducedSystem, P: Array, gamma: float, w: Array, cur: Curvature, Q: Array
) -> tuple[Array, Array]:
    """Cov(θ, η_c) and Cov η_c, each (N, d, d) in the clients' eigenbases."""
    x = cross(system, P)
    theta_eta, eta = np.empty_like(Q), np.empty_like(Q)
    for begin in range(0, w.size, CLIENTS_AT_ONCE):
        part = slice(begin, begin + CLIENTS_AT_ONCE)
        theta_eta[part], eta[part] = _covariances(system, x, gamma, w[part], cur[part], Q[part])
    return theta_eta, eta


def _covariances(
    system: ReducedSystem, x: Cross, gamma: float, w: Array, cur: Curvature, Q: Array
) -> tuple[Array, Array]:
    M, (k, d) = system.c.size, cur.g.shape
    reach = cur.gH - 1.0 + cur.delta
    c = 1.0 - cur.delta
    shares = 1.0 / (1.0 - c[:, :, None] * c[:, None, :])
    own = cur.U @ (gamma**2 * w[:, None, None] * Q * shares)
    both = x.gains @ own.swapaxes(0, 1).reshape(d, k * d)
    both += x.pushes @ (cur.U * reach[:, None, :]).swapaxes(0, 1).reshape(d, k * d)
    phi = lagrange(system.points, np.log(cur.delta))  # (M, k, d)
    mixed = (both.reshape(M, d, k, d) * phi[:, None]).sum(axis=0)  # (d, k, d)
    inverse = np.swapaxes(cur.U, 1, 2)
    theta_eta = inverse @ mixed.swapaxes(0, 1)
    theta = inverse @ x.cov_theta @ cur.U
    fed = reach[:, :, None] * theta_eta * c[:, None, :]
    source = fed + np.swapaxes(fed, 1, 2) + reach[:, :, None] * theta * reach[:, None, :] + gamma**2 * Q
    return theta_eta, source * shares
