"""Logistic regression on clients that are distributions."""

from __future__ import annotations  # so that help() shows ArrayLike, not what it stands for

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedscaffold.core.random.normals import normals, uniforms
from fedscaffold.core.random.stream import Stream
from fedscaffold.core.types import Array, IntArray
from fedscaffold.problems.logistic import LOGISTIC_DERIVATIVE_BOUNDS
from fedscaffold.problems.newton import minimise
from fedscaffold.problems.special import expit
from fedscaffold.problems.streams.base import ClientLaws, Derivatives, Streams
from fedscaffold.problems.streams.sigmoid import Margin, Pair, margin, mean_softplus, pair

SCALES = 40  # points between the least and the largest s_c, from which sums over clients are made
GRID, LINE = 6, 12  # points of the grids from which a client's means at many points are interpolated
SHORT = 1e-150


class ScaleSums(NamedTuple):
    """Sums over clients that f needs: means over s_c as sums over few scales, and Λ Σ w_c s_c E σ'(xᵀw_c) w_c."""

    scales: Array
    shares: Array
    pull: Array


class LogisticStream(Streams):
    """f_c(θ) = E log(1 + exp(−y xᵀθ)) + l2/2 ‖θ‖², x ~ N(0, s_c Λ), P(y = 1 | x) = σ(xᵀw_c), y = ±1.

    New records are drawn at every step; nothing of a client is stored. By Stein's identity all derivatives are
    means over one or two Gaussian margins (`problems.streams.sigmoid`): with S_c = s_c Λ, t = S_c θ and
    z ~ N(0, θᵀS_cθ),

        ∇f_c = E σ'(z) t − E σ'(xᵀw_c) S_c w_c + l2 θ,     ∇²f_c = E σ'(z) S_c + E σ'''(z) t tᵀ + l2,
        ∇³f_c[M] = E σ'''(z) (2 S_c M t + tr(S_c M) t) + E σ⁽⁵⁾(z) (tᵀM t) t.

    Within a round each client's local models spread, and ∇³f_c turns their spread into a pull on the mean that no
    number of clients averages away: Scaffold's bias floor. The defaults make it visible: see docs/streams.md.

    Parameters
    ----------
    n_clients, dim
        N and d, the numbers of clients and features.
    heterogeneity, scale_spread
        Distance between clients' models, and spread (at most 0.9) of their features' scales.
    spectrum
        Mean variances of the features, shape (d,); geometric from 1 to 0.1 by default.
    signal
        Length of the common model w.
    l2, weights
        Strength of the penalty l2/2 ‖θ‖², and one positive weight per client; uniform by default.
    seed
        Seed of the models; records are drawn with the run's seed.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> fs.problems.LogisticStream(n_clients=1000, dim=20)
    LogisticStream(n_clients=1000, dim=20, l2=0.01, seed=0)
    """

    kind = "logistic_stream"
    curvature = 0.25
    margin_derivative_bounds = LOGISTIC_DERIVATIVE_BOUNDS

    def __init__(
        self,
        *,
        n_clients: int,
        dim: int,
        heterogeneity: float = 1.0,
        scale_spread: float = 0.5,
        spectrum: ArrayLike | None = None,
        signal: float = 2.0,
        l2: float = 0.01,
        weights: ArrayLike | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(
            n_clients=n_clients, dim=dim, heterogeneity=heterogeneity, scale_spread=scale_spread,
            spectrum=spectrum, signal=signal, l2=l2, weights=weights, seed=seed,
        )  # fmt: skip

    def _sum_up(self, laws: Iterator[tuple[ClientLaws, Array]]) -> None:
        """Sums over clients of any smooth function of s_c, by interpolation; the pull of w_c."""
        points = np.cos(np.pi * (np.arange(SCALES) + 0.5) / SCALES) if self.scale_spread else np.zeros(1)
        shares, pull = np.zeros(points.size), np.zeros(self.dim)
        for law, weights in laws:
            tau = (law.scale - 1.0) / self.scale_spread if self.scale_spread else np.zeros_like(law.scale)
            shares += weights @ chebyshev(points, tau)
            slope = margin(law.scale * (law.w**2 @ self.spectrum)).first
            pull += (weights * law.scale * slope) @ law.w
        self.scale_sums = ScaleSums(1.0 + self.scale_spread * points, shares, self.spectrum * pull)

    def loss(self, theta: Array) -> float:
        """f(θ) = Σ w_c f_c(θ)."""
        scales, shares, pull = self.scale_sums
        level = float(shares @ mean_softplus(scales * float(self.spectrum @ theta**2)))
        return level - float(pull @ theta) + 0.5 * self.l2 * float(theta @ theta)

    def gradient(self, theta: Array) -> Array:
        """The gradient ∇f(θ), shape (dim,)."""
        scales, shares, pull = self.scale_sums
        slope = float((shares * scales) @ margin(scales * float(self.spectrum @ theta**2)).first)
        return (slope * self.spectrum + self.l2) * theta - pull

    def hessian(self, theta: Array) -> Array:
        """The Hessian ∇²f(θ), shape (dim, dim)."""
        scales, shares, _ = self.scale_sums
        means = margin(scales * float(self.spectrum @ theta**2))
        t = self.spectrum * theta
        bend = float((shares * scales**2) @ means.third)
        return np.diag(float((shares * scales) @ means.first) * self.spectrum + self.l2) + bend * np.outer(t, t)

    def _solve_optimum(self) -> Array:
        """θ* = argmin f, by Newton's method, to a gradient of 1e-12 relative."""
        return minimise(self)

    def averages(self, clients: IntArray, points: Array) -> Derivatives:
        """∇f_c, ∇²f_c and one record's covariance C_c, each averaged over the p points of (k, m, p, d)."""
        law = self.law(clients)
        S = law.scale[:, None] * self.spectrum  # (k, d)
        t, own = S[:, None, None] * points, S * law.w
        square, mixed = np.einsum("kmpd,kmpd->kmp", points, t), np.einsum("kmpd,kd->kmp", points, own)
        own_square = np.einsum("kd,kd->k", law.w, own)
        means, own_slope = _margins(square), margin(own_square).first
        gradient = means.first[..., None] * t - (own_slope[:, None] * own)[:, None, None]
        two = _pairs(np.sqrt(square), np.sqrt(own_square), mixed)
        p = points.shape[2]

        def sums(left: Array, weight: Array, right: Array) -> Array:
            return np.swapaxes(left, -1, -2) @ (weight[..., None] * right) / p

        every = np.arange(self.dim)
        hessian = sums(t, means.third, t)
        hessian[..., every, every] += means.first.mean(axis=2)[..., None] * S[:, None] + self.l2
        noise = sums(t, -means.third - 2.0 * two.second_s, t) - np.swapaxes(gradient, -1, -2) @ gradient / p
        cross = (two.firsts[:, :, None] @ t / -0.5 / p).swapaxes(-1, -2) * own[:, None, None]
        noise += cross + np.swapaxes(cross, -1, -2)
        noise -= 2.0 * two.second_t.mean(axis=2)[..., None, None] * (own[:, None, :, None] * own[:, None, None, :])
        level = (0.5 - means.first - 2.0 * two.both).mean(axis=2)
        noise[..., every, every] += level[..., None] * S[:, None]
        return Derivatives(gradient.mean(axis=2) + self.l2 * points.mean(axis=2), hessian, noise)

    def client_third_derivatives(self, theta: Array, matrix: Array) -> Array:
        """∇³f_c(θ)[M], shape (N, d): entry i is Σ_jk ∂³f_c/∂i∂j∂k M_jk; M is symmetric, (d, d) or (N, d, d)."""
        S = self.law(np.arange(self.n_clients)).scale[:, None] * self.spectrum
        t = S * theta
        means = margin(t @ theta)
        matrices = np.broadcast_to(matrix, (self.n_clients, self.dim, self.dim))
        along = np.einsum("kij,kj->ki", matrices, t)
        trace = np.einsum("kii,ki->k", matrices, S)
        straight = 2.0 * S * along + trace[:, None] * t
        return means.third[:, None] * straight + (means.fifth * np.einsum("ki,ki->k", t, along))[:, None] * t

    def drawn_gradient(self, client: int, theta: Array, stream: Stream, first: int, count: int) -> Array:
        """Mean of −y σ(−y xᵀθ) x, penalty added, over records first, ... of a client's round."""
        law = self.law(np.array([client]))
        raw = normals(stream, first * self.dim, count * self.dim).reshape(count, self.dim)
        x = raw * np.sqrt(law.scale * self.spectrum)
        y = np.where(uniforms(stream, first, count) * (1.0 + np.exp(-(x @ law.w[0]))) < 1.0, 1.0, -1.0)
        return (-y * expit(-y * (x @ theta))) @ x / count + self.l2 * theta

    def strong_convexity(self) -> float:
        """l2: what the penalty alone gives."""
        return self.l2


def chebyshev(points: Array, x: Array) -> Array:
    """Lagrange functions of Chebyshev points at x, (x, points), by the barycentric formula."""
    count = points.size
    signs = (-1.0) ** np.arange(count) * np.sin(np.pi * (np.arange(count) + 0.5) / count)
    off = x[:, None] - points
    hit = off == 0.0
    terms = signs / np.where(hit, 1.0, off)
    values = terms / terms.sum(axis=1, keepdims=True)
    return np.where(hit.any(axis=1, keepdims=True), hit.astype(np.float64), values)


def _margins(v: Array) -> Margin:
    """`margin` of (k, m, p); where a client has more than some points, by interpolation on a line of its own."""
    k, m, p = v.shape
    if m * p <= LINE:
        return margin(v)
    at, line = _gridded(v.reshape(k, -1), np.cos(np.pi * (np.arange(LINE) + 0.5) / LINE))
    return Margin(*((at @ values[:, :, None]).reshape(k, m, p) for values in margin(line)))


def _pairs(a: Array, r: Array, mixed: Array) -> Pair:
    """Means over the margins of θ and w_c: a = √(θᵀSθ), mixed = θᵀSw_c, (k, m, p); r = √(w_cᵀSw_c), (k,).

    Where a client has more than a few points, by interpolation in a and the correlation on a grid of its own.
    """
    lengths = a * r[:, None, None]
    x = np.clip(np.where(lengths > SHORT, mixed / np.maximum(lengths, SHORT), 0.0), -1.0, 1.0)
    k, m, p = a.shape
    if m * p <= GRID**2:
        return pair(a, np.broadcast_to(r[:, None, None], a.shape), x)
    nodes = np.cos(np.pi * (np.arange(GRID) + 0.5) / GRID)
    (at_a, a_grid), (at_x, x_grid) = (_gridded(values.reshape(k, -1), nodes) for values in (a, x))
    shape = (k, GRID, GRID)
    grid = pair(
        np.broadcast_to(a_grid[:, :, None], shape),
        np.broadcast_to(r[:, None, None], shape),
        np.broadcast_to(x_grid[:, None, :], shape),
    )
    return Pair(*(np.einsum("kni,kij,knj->kn", at_a, g, at_x, optimize=True).reshape(k, m, p) for g in grid))


def _gridded(values: Array, nodes: Array) -> tuple[Array, Array]:
    """Lagrange functions (k, n, nodes) of points spread over each row's range, and these points (k, nodes)."""
    low, high = values.min(axis=1, keepdims=True), values.max(axis=1, keepdims=True)
    centre, half = 0.5 * (low + high), np.maximum(0.5 * (high - low), 1e-300)
    inside = np.clip((values - centre) / half, -1.0, 1.0)
    functions = chebyshev(nodes, inside.reshape(-1)).reshape(*values.shape, nodes.size)
    return functions, centre + half * nodes
