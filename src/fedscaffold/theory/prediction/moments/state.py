"""Means, covariances and third cumulants at the beginning of a round, and what a round makes of them.

For Scaffold the random state is x = (η_1, ..., η_N) with η_c = θ + γHξ_c and θ = Σ_c w_c η_c, which a round takes
to

    η_c⁺ = θ_c^H + γHξ_c = D_c η_c + R_c θ + n_c,     D_c = I + B^ξ_c/(γH),     R_c = B^θ_c − D_c,

where B_c = [B^θ_c B^ξ_c] and n_c are those of `RoundMap`. For FedAvg it is x = θ, with θ⁺ = Σ_c w_c θ_c^H.

Where the sum of messages has noise that no client remembers, θ = Σ_c w_c η_c + p, p being fresh in every round.
"""

from dataclasses import dataclass

import numpy as np

from fedscaffold.core.types import Array
from fedscaffold.theory.prediction.moments.local_round import RoundMap, Start
from fedscaffold.theory.prediction.setting import Setting


@dataclass(frozen=True, eq=False)
class Moments:
    """Means of θ and ξ_c, relative to θ* and ξ*_c, the covariance of the state x, and third cumulants."""

    theta: Array  # (d,)
    ahead: Array  # (N, d)
    cov: Array  # (N d, N d); (d, d) for FedAvg
    theta_skew: Array | None  # (d, d, d)
    ahead_skew: Array | None  # (N, d, d, d)
    fresh: float = 0.0  # variance of noise in every coordinate of θ that is not in x


def beginning(s: Setting, *, skew: bool) -> Moments:
    """θ_0 = 0 and ξ_c = 0, known exactly."""
    return at_rest(s, -s.optimum, s.gradients, skew=skew)


def at_rest(s: Setting, theta: Array, ahead: Array, *, skew: bool) -> Moments:
    """Given means, known exactly."""
    N, d = s.gradients.shape
    size = N * d if s.scaffold else d
    zeros = (np.zeros((d, d, d)), np.zeros((N, d, d, d))) if skew else (None, None)
    return Moments(theta, ahead, np.zeros((size, size)), *zeros)


def theta_covariance(s: Setting, moments: Moments) -> Array:
    """Cov θ, (d, d)."""
    if not s.scaffold:
        return moments.cov
    N, d = s.gradients.shape
    w = s.problem.weights
    mean = np.tensordot(w, np.tensordot(w, moments.cov.reshape(N, d, N, d), axes=(0, 0)), axes=(0, 1))
    return np.asarray(mean + moments.fresh * np.eye(d))


def start_of(s: Setting, moments: Moments) -> Start:
    """The moments of y = (θ, ξ_c) of every client."""
    cov = with_clients(s, theta_rows(s, moments.cov), moments.cov, moments.fresh)
    return Start(moments.theta, moments.ahead, cov, start_skewness(s, moments.theta_skew, moments.ahead_skew))


def start_skewness(s: Setting, theta_skew: Array | None, ahead_skew: Array | None) -> Array | None:
    """κ₃(y) of every client, (N, 2 d, 2 d, 2 d); mixed cumulants of θ and ξ_c are left out."""
    if theta_skew is None or ahead_skew is None:
        return None
    N, d = s.gradients.shape
    skew = np.zeros((N, 2 * d, 2 * d, 2 * d))
    skew[:, :d, :d, :d] = theta_skew
    skew[:, d:, d:, d:] = ahead_skew
    return skew


def theta_rows(s: Setting, cov: Array) -> Array:
    """Cov(θ, x), (d, N d), from the covariance of the state; Cov θ for FedAvg."""
    if not s.scaffold:
        return cov
    N, d = s.gradients.shape
    return np.tensordot(s.problem.weights, cov.reshape(N, d, N * d), axes=(0, 0))


def with_clients(s: Setting, rows: Array, cov: Array, fresh: float) -> Array:
    """Cov (θ, ξ_c) of every client, (N, 2 d, 2 d), from Cov(θ, x), the covariance of the state and fresh noise."""
    N, d = s.gradients.shape
    found = np.zeros((N, 2 * d, 2 * d))
    if not s.scaffold:
        found[:, :d, :d] = cov
        return found
    length = s.gamma * s.H
    found[:, :d] = beside_clients(s, rows)
    theta, mixed = found[:, :d, :d], rows.reshape(d, N, d).swapaxes(0, 1)
    own = cov.reshape(N, d, N, d)[np.arange(N), :, np.arange(N)]
    found[:, d:, :d] = np.swapaxes(found[:, :d, d:], 1, 2)
    found[:, d:, d:] = (own - mixed - np.swapaxes(mixed, 1, 2) + theta) / length**2
    return found + fresh * np.kron([[1.0, -1.0 / length], [-1.0 / length, 1.0 / length**2]], np.eye(d))


def beside_clients(s: Setting, rows: Array) -> Array:
    """Cov(v, y_c) of every client, (N, k, 2 d), from Cov(v, x), (k, N d), of some random vector v."""
    N, d = s.gradients.shape
    k = rows.shape[0]
    if not s.scaffold:
        return np.broadcast_to(np.concatenate([rows, np.zeros((k, d))], axis=1), (N, k, 2 * d))
    each = rows.reshape(k, N, d).swapaxes(0, 1)
    theta = np.broadcast_to(np.tensordot(s.problem.weights, each, axes=1), each.shape)
    return np.concatenate([theta, (each - theta) / (s.gamma * s.H)], axis=2)


def transition(s: Setting, map: RoundMap) -> tuple[Array, Array]:
    """(A, W) of the state: x⁺ = A x + noise of covariance W, for a round that is not the first."""
    N, d = s.gradients.shape
    w, end = s.problem.weights, map.end
    if not s.scaffold:
        return np.tensordot(w, end.B[:, :, :d], axes=1), np.tensordot(w * s.own, end.noise, axes=1)
    D = np.eye(d) + end.B[:, :, d:] / (s.gamma * s.H)
    R = end.B[:, :, :d] - D
    A = (R[:, :, None, :] * w[None, None, :, None]).reshape(N, d, N, d)
    A[np.arange(N), :, np.arange(N)] += D
    W = np.zeros((N, d, N, d))
    W[np.arange(N), :, np.arange(N)] = end.noise
    by_fresh = R.reshape(N * d, d)
    return A.reshape(N * d, N * d), W.reshape(N * d, N * d) + s.theta_noise * by_fresh @ by_fresh.T


def mean_after(s: Setting, map: RoundMap, theta: Array, ahead: Array) -> tuple[Array, Array]:
    """Means of θ and ξ_c after a round from given ones, to first order around those of the map."""
    local = map.mean_from(theta, ahead)
    after = s.problem.weights @ local
    return after, ahead + (local - after) / (s.gamma * s.H) if s.scaffold else ahead
