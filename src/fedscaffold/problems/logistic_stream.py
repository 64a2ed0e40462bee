"""Logistic regression on clients that are distributions.

Means of logistic functions of Gaussian margins come from the trapezoidal rule, whose error falls exponentially in
the number of points for functions analytic in a strip around the real axis, which σ(√v z) is, with poles at
± iπ/√v (Trefethen & Weideman, SIAM Review 56, 2014). With p = σ(z) and q = 1 − p: σ' = pq, σ'' = pq(q − p),
σ''' = pq(1 − 6pq), σ⁽⁵⁾ = pq(1 − 30pq + 120p²q²), and T = σ − ½.
"""

from __future__ import annotations  # so that help() shows ArrayLike, not what it stands for

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.random.normals import normals, uniforms
from fedscaffold.core.random.stream import Stream
from fedscaffold.core.types import Array, IntArray
from fedscaffold.problems.base import expit
from fedscaffold.problems.glm import LOGISTIC_DERIVATIVE_BOUNDS
from fedscaffold.problems.newton import minimise
from fedscaffold.problems.streams import ClientLaws, Derivatives, Streams

NUMBERS_AT_ONCE = 1 << 18  # 2 MB, which fits in a cache
SHARP, ROUGH = 40.0, 23.0  # −log of the error that is aimed at: in one dimension, and in two
WIDEST = 0.65  # step, for small v
MOST_POINTS = 1_000_000  # of the rule: more would take seconds for each mean
LARGEST_SOFT = 1e8  # variance


class Margin(NamedTuple):
    """Means over z ~ N(0, v)."""

    first: Array  # E σ'(z)
    third: Array  # E σ'''(z)
    fifth: Array  # E σ⁽⁵⁾(z)


class Pair(NamedTuple):
    """Means over two margins s and t that are jointly Gaussian."""

    both: Array  # E T(s)T(t)
    second_s: Array  # E σ''(s)T(t)
    firsts: Array  # E σ'(s)σ'(t)
    second_t: Array  # E T(s)σ''(t)


def half_rule(largest: float, aim: float) -> tuple[Array, Array]:
    """Return points z ≥ 0 and weights for means of even functions of √v z, z ~ N(0, 1), v up to `largest`."""
    pole = math.pi / math.sqrt(max(largest, 1e-6))  # where exp(−z²/2) is as large as exp(pole²/2)
    step = min(WIDEST, 2.0 * math.pi * pole / (aim + 0.5 * pole**2))
    if not step * MOST_POINTS > math.sqrt(1.5 * aim):
        raise InvalidInput(
            f"clients' margins have a standard deviation of {math.sqrt(largest):.3g}, too large for means of "
            "logistic functions; take a smaller signal, heterogeneity, spectrum or model"
        )
    z: Array = step * np.arange(math.ceil(math.sqrt(1.5 * aim) / step) + 1.0)
    weights = np.exp(-0.5 * z**2)
    weights[1:] *= 2.0
    return z, weights / weights.sum()


def margin(v: Array) -> Margin:
    """Return E σ', E σ''' and E σ⁽⁵⁾ of z ~ N(0, v), in the shape of v."""
    first, third, fifth = np.empty((3, v.size))
    z, weights = half_rule(float(v.max(initial=0.0)), SHARP)
    flat = np.sqrt(v.reshape(-1))
    at_once = max(1, NUMBERS_AT_ONCE // z.size)
    for begin in range(0, flat.size, at_once):
        part = slice(begin, begin + at_once)
        p = expit(flat[part, None] * z)
        slope = p * (1.0 - p)
        first[part] = slope @ weights
        third[part] = (slope * (1.0 - 6.0 * slope)) @ weights
        fifth[part] = (slope * (1.0 + slope * (120.0 * slope - 30.0))) @ weights
    return Margin(first.reshape(v.shape), third.reshape(v.shape), fifth.reshape(v.shape))


def mean_softplus(v: Array) -> Array:
    """Return E log(1 + exp z), z ~ N(0, v), for v of one axis."""
    # beyond LARGEST_SOFT the function is |z| but for its kink, which this rule gets right to 1e-8 of the mean
    z, weights = half_rule(min(float(v.max(initial=0.0)), LARGEST_SOFT), SHARP)
    points = np.sqrt(v)[:, None] * z
    return (np.logaddexp(0.0, points) - 0.5 * points) @ weights


def pair(a: Array, r: Array, x: Array) -> Pair:
    """Return the means over s and t of standard deviations a and r and of correlation x, all of one shape."""
    shape = a.shape
    a, r, x = (np.reshape(each, -1) for each in (a, r, x))
    found = np.empty((4, a.size))
    z, weights = half_rule(float(max(a.max(initial=0.0), r.max(initial=0.0))) ** 2, ROUGH)
    other = np.concatenate([-z[:0:-1], z])
    around = np.concatenate([weights[:0:-1], 2.0 * weights[:1], weights[1:]])
    around /= around.sum()
    at_once = max(1, NUMBERS_AT_ONCE // (z.size * other.size))
    for begin in range(0, a.size, at_once):
        part = slice(begin, begin + at_once)
        p = expit(a[part, None] * z)
        along = (r * x)[part, None, None] * z[:, None]
        across = (r * np.sqrt(np.maximum(1.0 - x**2, 0.0)))[part, None, None] * other
        q = expit(along + across)
        slope_p, slope_q = p * (1.0 - p), q * (1.0 - q)
        q = q - 0.5
        mean_q, mean_slope, mean_second = q @ around, slope_q @ around, (-2.0 * q * slope_q) @ around
        p = p - 0.5
        for k, product in enumerate(
            (p * mean_q, -2.0 * p * slope_p * mean_q, slope_p * mean_slope, p * mean_second)
        ):
            found[k, part] = product @ weights
    return Pair(*(values.reshape(shape) for values in found))


GRID, LINE = 6, 12  # points of the grids from which a client's means at many points are interpolated
SHORT = 1e-150  # a product of lengths below it has a square that underflows


class ScaleSums(NamedTuple):
    """Sums over clients that f needs: means over s_c as sums over few scales, and Λ Σ w_c s_c E σ'(xᵀw_c) w_c."""

    scales: Array
    shares: Array
    pull: Array


class LogisticStream(Streams):
    """f_c(θ) = E log(1 + exp(−y xᵀθ)) + l2/2 ‖θ‖², x ~ N(0, s_c Λ), P(y = 1 | x) = σ(xᵀw_c), y = ±1.

    New records are drawn at every step; nothing of a client is stored. By Stein's identity all derivatives are
    means over one or two Gaussian margins (`problems.logistic_stream`): with S_c = s_c Λ, t = S_c θ and
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
        """Sum smooth functions of s_c over clients, by interpolation, and the pull of w_c."""
        points = np.cos(np.pi * (np.arange(40) + 0.5) / 40) if self.scale_spread else np.zeros(1)
        shares, pull = np.zeros(points.size), np.zeros(self.dim)
        for law, weights in laws:
            tau = (law.scale - 1.0) / self.scale_spread if self.scale_spread else np.zeros_like(law.scale)
            shares += weights @ chebyshev(points, tau)
            slope = margin(law.scale * (law.w**2 @ self.spectrum)).first
            pull += (weights * law.scale * slope) @ law.w
        self.scale_sums = ScaleSums(1.0 + self.scale_spread * points, shares, self.spectrum * pull)

    def loss(self, theta: Array) -> float:
        """Return f(θ) = Σ w_c f_c(θ)."""
        scales, shares, pull = self.scale_sums
        level = float(shares @ mean_softplus(scales * float(self.spectrum @ theta**2)))
        return level - float(pull @ theta) + 0.5 * self.l2 * float(theta @ theta)

    def gradient(self, theta: Array) -> Array:
        """Return the gradient ∇f(θ), shape (dim,)."""
        scales, shares, pull = self.scale_sums
        slope = float((shares * scales) @ margin(scales * float(self.spectrum @ theta**2)).first)
        return (slope * self.spectrum + self.l2) * theta - pull

    def hessian(self, theta: Array) -> Array:
        """Return the Hessian ∇²f(θ), shape (dim, dim)."""
        scales, shares, _ = self.scale_sums
        means = margin(scales * float(self.spectrum @ theta**2))
        t = self.spectrum * theta
        bend = float((shares * scales**2) @ means.third)
        return np.diag(float((shares * scales) @ means.first) * self.spectrum + self.l2) + bend * np.outer(t, t)

    def _solve_optimum(self) -> Array:
        """Return θ* = argmin f, by Newton's method, to a gradient of 1e-12 relative."""
        return minimise(self)

    def averages(self, clients: IntArray, points: Array) -> Derivatives:
        """Return ∇f_c, ∇²f_c and one record's covariance C_c, each averaged over the p points of (k, m, p, d)."""
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
        """Return ∇³f_c(θ)[M], (N, d): entry i is Σ_jk ∂³f_c/∂i∂j∂k M_jk; M is symmetric, (d, d) or (N, d, d)."""
        S = self.law(np.arange(self.n_clients)).scale[:, None] * self.spectrum
        t = S * theta
        means = margin(t @ theta)
        matrices = np.broadcast_to(matrix, (self.n_clients, self.dim, self.dim))
        along = np.einsum("kij,kj->ki", matrices, t)
        trace = np.einsum("kii,ki->k", matrices, S)
        straight = 2.0 * S * along + trace[:, None] * t
        return means.third[:, None] * straight + (means.fifth * np.einsum("ki,ki->k", t, along))[:, None] * t

    def drawn_gradient(self, client: int, theta: Array, stream: Stream, first: int, count: int) -> Array:
        """Return the mean of −y σ(−y xᵀθ) x, penalty added, over records first, ... of a client's round."""
        law = self.law(np.array([client]))
        raw = normals(stream, first * self.dim, count * self.dim).reshape(count, self.dim)
        x = raw * np.sqrt(law.scale * self.spectrum)
        y = np.where(uniforms(stream, first, count) * (1.0 + np.exp(-(x @ law.w[0]))) < 1.0, 1.0, -1.0)
        return (-y * expit(-y * (x @ theta))) @ x / count + self.l2 * theta

    def strong_convexity(self) -> float:
        """Return l2: what the penalty alone gives."""
        return self.l2


def chebyshev(points: Array, x: Array) -> Array:
    """Return Lagrange functions of Chebyshev points at x, (x, points), by the barycentric formula."""
    count = points.size
    signs = (-1.0) ** np.arange(count) * np.sin(np.pi * (np.arange(count) + 0.5) / count)
    off = x[:, None] - points
    hit = off == 0.0
    terms = signs / np.where(hit, 1.0, off)
    values = terms / terms.sum(axis=1, keepdims=True)
    return np.where(hit.any(axis=1, keepdims=True), hit.astype(np.float64), values)


def _margins(v: Array) -> Margin:
    """Return `margin` of (k, m, p); for clients with many points by interpolation on a line per client."""
    k, m, p = v.shape
    if m * p <= LINE:
        return margin(v)
    at, line = _gridded(v.reshape(k, -1), np.cos(np.pi * (np.arange(LINE) + 0.5) / LINE))
    return Margin(*((at @ values[:, :, None]).reshape(k, m, p) for values in margin(line)))


def _pairs(a: Array, r: Array, mixed: Array) -> Pair:
    """Return means over the margins of θ and w_c: a = √(θᵀSθ), mixed = θᵀSw_c, (k, m, p); r = √(w_cᵀSw_c).

    For clients with many points they come from interpolation in a and the correlation, on a grid per client.
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
    """Return Lagrange functions (k, n, nodes) of points over each row's range, and the points (k, nodes)."""
    low, high = values.min(axis=1, keepdims=True), values.max(axis=1, keepdims=True)
    centre, half = 0.5 * (low + high), np.maximum(0.5 * (high - low), 1e-300)
    inside = np.clip((values - centre) / half, -1.0, 1.0)
    functions = chebyshev(nodes, inside.reshape(-1)).reshape(*values.shape, nodes.size)
    return functions, centre + half * nodes
