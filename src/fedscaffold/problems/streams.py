"""Clients that are distributions instead of tables: new records at every step, and derivatives by formula.

Means of logistic functions of Gaussian margins come from the trapezoidal rule, whose error falls exponentially in
the number of points for functions analytic in a strip around the real axis, which σ(√v z) is, with poles at
± iπ/√v (Trefethen & Weideman, SIAM Review 56, 2014). With p = σ(z) and q = 1 − p: σ' = pq, σ'' = pq(q − p),
σ''' = pq(1 − 6pq), σ⁽⁵⁾ = pq(1 − 30pq + 120p²q²), and T = σ − ½.
"""

from __future__ import annotations  # so that help() shows ArrayLike, not what it stands for

import copy
import math
from abc import abstractmethod
from collections.abc import Iterator
from numbers import Real
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedscaffold.core.checks import chosen_clients, not_negative, positive, seed_number, vector, whole_number
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.machine import check_memory, one_blas_thread
from fedscaffold.core.random.normals import NOBODY, normals, of_clients, uniforms
from fedscaffold.core.random.stream import SERVER, Batches, Sampling, Stream
from fedscaffold.core.types import Array, IntArray
from fedscaffold.problems.base import ProblemBase, client_weights, digest, expit, freeze
from fedscaffold.problems.glm import LOGISTIC_DERIVATIVE_BOUNDS
from fedscaffold.problems.newton import minimise

CLIENTS_AT_ONCE = 4096  # in passes over all clients; part of the numbers, as it fixes the order of sums
ENDLESS = int(np.iinfo(np.int64).max)  # how many records a client has, where a number is asked for
NUMBERS_AT_ONCE = 1 << 18  # 2 MB, which fits in a cache
SHARP, ROUGH = 40.0, 23.0  # −log of the error that is aimed at: in one dimension, and in two


class ClientLaws(NamedTuple):
    """The distributions of k clients: x ~ N(0, s_c Λ), and y depends on xᵀw_c."""

    scale: Array  # s_c, (k,)
    w: Array  # w_c, (k, d)


class Derivatives(NamedTuple):
    """Gradients, Hessians and the covariance of one record's gradient, of k clients at one θ."""

    gradient: Array  # (k, d)
    hessian: Array  # (k, d, d)
    noise: Array  # (k, d, d)


class Streams(ProblemBase):
    """Client c draws new records (x, y) at every step: x ~ N(0, s_c Λ) and a target y that depends on xᵀw_c.

    With τ_c uniform in (−1, 1) and n_c ~ N(0, I),

        s_c = 1 + scale_spread τ_c,     w_c = w + heterogeneity (n_c/√d + τ_c v),

    and w, of length `signal`, and v, of length one, shared by all. As s_c and w_c go together, clients' Hessians
    and optima do, which is what biases FedAvg for any number of clients. τ_c and n_c are functions of (seed, c),
    computed when they are needed: nothing of a client is stored.
    """

    repr_fields = ("n_clients", "dim", "l2", "seed")
    curvature: ClassVar[float]  # the largest ℓ''
    margin_derivative_bounds: ClassVar[tuple[float, float]]  # the largest |ℓ'''| and |ℓ''''|
    n_unpenalised = 0
    smallest_scale: float  # of all s_c
    largest_scale: float

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
        self.dim = whole_number("dim", dim, least=1)
        n_clients = whole_number("n_clients", n_clients, least=1)
        if n_clients > SERVER:
            raise InvalidInput(f"n_clients must be below 2**32, got {n_clients}")
        check_memory(f"{n_clients:,} clients with dim={self.dim:,}", 16 * n_clients + 64 * self.dim)
        self.seed = seed_number("seed", seed)
        self.heterogeneity = not_negative("heterogeneity", heterogeneity)
        self.scale_spread = not_negative("scale_spread", scale_spread)
        if self.scale_spread > 0.9:  # at 1 the smallest s_c is 0, and a problem without penalty has no minimiser
            raise InvalidInput(f"scale_spread must be at most 0.9, got {scale_spread!r}")
        self.l2 = not_negative("l2", l2)
        self.penalty = np.full(self.dim, self.l2)
        self.spectrum = _spectrum(spectrum, self.dim)
        shared = normals(Stream(self.seed, NOBODY, NOBODY, SERVER), 0, 2 * self.dim).reshape(2, -1)
        shared /= np.linalg.norm(shared, axis=1, keepdims=True)
        self.centre, self.tilt = positive("signal", signal) * shared[0], shared[1]
        self._take(np.arange(n_clients, dtype=np.int64), client_weights(weights, n_clients))

    @one_blas_thread
    def _take(self, client_ids: IntArray, weights: Array) -> None:
        """Set the clients and their weights, and the sums over them."""
        self.client_ids, self.weights = client_ids, weights
        self.n_clients = client_ids.size
        self.sizes: NDArray[np.int64] = np.broadcast_to(np.int64(ENDLESS), client_ids.shape)
        freeze(self.client_ids, self.weights, self.spectrum, self.centre, self.tilt, self.penalty)
        self.smallest_scale, self.largest_scale = np.inf, 0.0
        self._sum_up(self._laws())

    @abstractmethod
    def _sum_up(self, laws: Iterator[tuple[ClientLaws, Array]]) -> None:
        """Sum up, in one pass over the clients' laws and weights, what f, its derivatives and θ* need."""

    def _laws(self) -> Iterator[tuple[ClientLaws, Array]]:
        """Yield (law, weights) of all clients in order, some at a time; also finds the extreme s_c."""
        for chunk in self._chunks():
            law = self.law(chunk)
            self.smallest_scale = min(self.smallest_scale, float(law.scale.min()))
            self.largest_scale = max(self.largest_scale, float(law.scale.max()))
            yield law, self.weights[chunk]

    @abstractmethod
    def loss(self, theta: Array) -> float:
        """Return f(θ) = Σ w_c f_c(θ)."""

    @abstractmethod
    def strong_convexity(self) -> float:
        """Return μ with ∇²f_c ≥ μI everywhere, for every client."""

    @abstractmethod
    def derivatives(self, clients: IntArray, theta: Array) -> Derivatives:
        """Return ∇f_c, ∇²f_c and the covariance C_c of one record's gradient, of some clients at θ."""

    @abstractmethod
    def drawn_gradient(self, client: int, theta: Array, stream: Stream, first: int, count: int) -> Array:
        """Return the mean gradient at θ over the records first, ..., first + count − 1 of a client's round."""

    # clients

    def subset(self, clients: ArrayLike) -> Self:
        """Return the same problem on some of the clients, with the same laws; weights are scaled to sum to one."""
        chosen = chosen_clients(clients, self.n_clients)
        other = copy.copy(self)
        part = self.weights[chosen]
        other._take(self.client_ids[chosen], part / part.sum())
        return other

    def law(self, clients: IntArray) -> ClientLaws:
        """Return s_c and w_c of some clients."""
        normal, uniform = of_clients(self.seed, self.client_ids[clients], self.dim)
        tau = 2.0 * uniform - 1.0
        w = self.centre + self.heterogeneity * (normal / np.sqrt(self.dim) + tau[:, None] * self.tilt)
        return ClientLaws(1.0 + self.scale_spread * tau, w)

    def _chunks(self) -> Iterator[IntArray]:
        """Yield the numbers of all clients in order, some at a time."""
        for begin in range(0, self.n_clients, CLIENTS_AT_ONCE):
            yield np.arange(begin, min(begin + CLIENTS_AT_ONCE, self.n_clients))

    # each client's f_c, one row per client

    def client_gradients(self, theta: Array) -> Array:
        """Return ∇f_c(θ), shape (N, d)."""
        return np.concatenate([at.gradient for at in self._all_clients(theta)])

    def client_hessians(self, theta: Array) -> Array:
        """Return ∇²f_c(θ), shape (N, d, d)."""
        return np.concatenate([at.hessian for at in self._all_clients(theta)])

    def client_noise_covariances(
        self, theta: Array, *, batch_size: int | None, sampling: Sampling = "with_replacement"
    ) -> Array:
        """Return C_c(θ)/B, the covariance of a minibatch gradient, shape (N, d, d); 0 for full gradients."""
        factor = Batches(batch_size, sampling).noise_factor(ENDLESS)
        return factor * np.concatenate([at.noise for at in self._all_clients(theta)])

    def client_noise_along(
        self, theta: Array, directions: Array, *, batch_size: int | None, sampling: Sampling = "with_replacement"
    ) -> Array:
        """Return the variance of a minibatch gradient along each column of (d, m) directions, shape (N, m)."""
        factor = Batches(batch_size, sampling).noise_factor(ENDLESS)
        rows = [
            np.einsum("im,kij,jm->km", directions, at.noise, directions, optimize=True)
            for at in self._all_clients(theta)
        ]
        return factor * np.concatenate(rows)

    def _all_clients(self, theta: Array) -> Iterator[Derivatives]:
        for chunk in self._chunks():
            yield self.derivatives(chunk, theta)

    # constants

    def smoothness(self, batches: Batches) -> float:
        """Return the largest κ ((tr S_c + 2λ)/B + (1 − 1/B) λ) + l2 over clients, λ = λ_max(S_c), S_c = s_c Λ.

        As E[x xᵀ x xᵀ] = tr(S) S + 2S². For logistic regression κ = ¼ and ℓ'' only shrinks what it weighs: it is a
        mixture of centred Gaussian functions (Stefanski 1991), each of which leaves x Gaussian with a smaller S.
        """
        v = batches.noise_factor(ENDLESS)
        largest, total = self.largest_scale * self.spectrum.max(), self.largest_scale * self.spectrum.sum()
        return float(self.curvature * (v * (total + 2.0 * largest) + (1.0 - v) * largest) + self.l2)

    # what identifies the problem

    def describe(self) -> dict[str, Any]:
        """Return the kind, sizes and how clients are drawn."""
        return {
            "kind": self.kind,
            "n_clients": int(self.n_clients),
            "dim": int(self.dim),
            "heterogeneity": self.heterogeneity,
            "scale_spread": self.scale_spread,
            "spectrum": [float(self.spectrum.min()), float(self.spectrum.max())],
            "l2": self.l2,
            "seed": self.seed,
            "weights": self.weighting,
        }

    def _compute_fingerprint(self) -> str:
        """Return the SHA-256 digest of everything that the clients are made of."""
        words = repr(sorted(self.describe().items()))
        return digest(words, self.client_ids, self.weights, self.spectrum, self.centre, self.tilt)


def _spectrum(spectrum: ArrayLike | None, dim: int) -> Array:
    if spectrum is None:
        return np.geomspace(1.0, 0.1, dim)  # a condition number of 10
    each = np.full(dim, spectrum) if isinstance(spectrum, Real) else spectrum
    given = vector("spectrum", each, f"dim={dim} numbers, one per feature", dim)
    if not (np.isfinite(given).all() and (given > 0).all()):
        raise InvalidInput("spectrum must be positive and finite: it holds the variances of the features")
    return given


def _diagonals(values: Array) -> Array:
    """Return diagonal matrices (k, d, d) of (k, d) values."""
    return values[:, :, None] * np.eye(values.shape[1])


class RidgeStream(Streams):
    """f_c(θ) = ½ E(xᵀθ − y)² + l2/2 ‖θ‖², x ~ N(0, s_c Λ), y = xᵀw_c + noise ε, ε ~ N(0, 1).

    New records are drawn at every step; nothing of a client is stored. With S_c = s_c Λ and u = θ − w_c,

        ∇f_c = S_c u + l2 θ,     ∇²f_c = S_c + l2,     C_c = (uᵀS_c u + noise²) S_c + S_c u uᵀ S_c

    for one record, by Wick's formula; a batch of B divides C_c by B.

    Parameters
    ----------
    noise
        Standard deviation of y given x.
    n_clients, dim
        N and d, the numbers of clients and features.
    heterogeneity, scale_spread
        Distance between clients' models, and spread (at most 0.9) of their features' scales.
    spectrum
        Mean variances of the features, shape (d,), or one number for all; geometric from 1 to 0.1 by default.
    signal
        Length of the common model w.
    l2, weights
        Strength of the penalty l2/2 ‖θ‖², and one positive weight per client; uniform by default.
    seed
        Seed of the models; records are drawn with the run's seed.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> fs.problems.RidgeStream(n_clients=1000, dim=20)
    RidgeStream(n_clients=1000, dim=20, l2=0.0, seed=0)
    """

    kind = "ridge_stream"
    curvature = 1.0
    margin_derivative_bounds = (0.0, 0.0)

    def __init__(
        self,
        *,
        n_clients: int,
        dim: int,
        heterogeneity: float = 1.0,
        scale_spread: float = 0.5,
        noise: float = 1.0,
        spectrum: ArrayLike | None = None,
        signal: float = 1.0,
        l2: float = 0.0,
        weights: ArrayLike | None = None,
        seed: int = 0,
    ) -> None:
        self.noise = not_negative("noise", noise)
        super().__init__(
            n_clients=n_clients, dim=dim, heterogeneity=heterogeneity, scale_spread=scale_spread,
            spectrum=spectrum, signal=signal, l2=l2, weights=weights, seed=seed,
        )  # fmt: skip

    def _sum_up(self, laws: Iterator[tuple[ClientLaws, Array]]) -> None:
        """Sum up Σ w_c s_c, Σ w_c s_c w_c and Σ w_c s_c w_c∘w_c."""
        scale, first, second = 0.0, np.zeros(self.dim), np.zeros(self.dim)
        for law, weights in laws:
            share = weights * law.scale
            scale += float(share.sum())
            first += share @ law.w
            second += share @ law.w**2
        self.moments = (scale, first, second)

    def loss(self, theta: Array) -> float:
        """Return f(θ) = Σ w_c f_c(θ)."""
        scale, first, second = self.moments
        square = float(self.spectrum @ (scale * theta**2 - 2.0 * theta * first + second))
        return 0.5 * (square + self.noise**2 + self.l2 * float(theta @ theta))

    def gradient(self, theta: Array) -> Array:
        """Return the gradient ∇f(θ), shape (dim,)."""
        scale, first, _ = self.moments
        return self.spectrum * (scale * theta - first) + self.l2 * theta

    def hessian(self, theta: Array) -> Array:
        """Return ∇²f = Λ Σ w_c s_c + l2."""
        return np.diag(self.spectrum * self.moments[0] + self.l2)

    def _solve_optimum(self) -> Array:
        """Return θ* = (Λ Σ w_c s_c + l2)⁻¹ Λ Σ w_c s_c w_c."""
        scale, first, _ = self.moments
        return self.spectrum * first / (self.spectrum * scale + self.l2)

    def derivatives(self, clients: IntArray, theta: Array) -> Derivatives:
        """Return ∇f_c, ∇²f_c and the covariance C_c of one record's gradient, of some clients at θ."""
        law = self.law(clients)
        S = law.scale[:, None] * self.spectrum  # (k, d)
        pull = S * (theta - law.w)
        noise = pull[:, :, None] * pull[:, None] + _diagonals(self.residual_variances(theta, clients)[:, None] * S)
        return Derivatives(pull + self.l2 * theta, _diagonals(S + self.l2), noise)

    def residual_variances(self, theta: Array, clients: IntArray) -> Array:
        """Return E(xᵀθ − y)² = s_c (θ − w_c)ᵀΛ(θ − w_c) + noise² of some clients, shape (k,)."""
        law = self.law(clients)
        return law.scale * ((theta - law.w) ** 2 @ self.spectrum) + self.noise**2

    def client_third_derivatives(self, theta: Array, matrix: Array) -> Array:
        """Return ∇³f_c = 0, shape (N, d)."""
        return np.zeros((self.n_clients, self.dim))

    def drawn_gradient(self, client: int, theta: Array, stream: Stream, first: int, count: int) -> Array:
        """Return the mean of (xᵀ(θ − w_c) − noise ε) x plus the penalty's, over records first, ... of a round."""
        law = self.law(np.array([client]))
        raw = normals(stream, first * self.dim, count * self.dim).reshape(count, self.dim)
        x = raw * np.sqrt(law.scale * self.spectrum)
        residual = x @ (theta - law.w[0]) - self.noise * normals(stream, first, count, aside=True)
        return residual @ x / count + self.l2 * theta

    def strong_convexity(self) -> float:
        """Return the smallest s_c times λ_min(Λ), plus l2."""
        return self.smallest_scale * float(self.spectrum.min()) + self.l2

    def describe(self) -> dict[str, Any]:
        """Return the kind, sizes and how clients and records are drawn."""
        return {**super().describe(), "noise": self.noise}


# means of logistic functions of Gaussian margins


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
    step = min(0.65, 2.0 * math.pi * pole / (aim + 0.5 * pole**2))  # wider ones miss exp(−z²/2) itself
    if not step * 1e6 > math.sqrt(1.5 * aim):  # a million points would take seconds for each mean
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
    # beyond a variance of 1e8 the function is |z| but for its kink, which this rule gets right to 1e-8 of the mean
    z, weights = half_rule(min(float(v.max(initial=0.0)), 1e8), SHARP)
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


class ScaleSums(NamedTuple):
    """Sums over clients that f needs: means over s_c as sums over few scales, and Λ Σ w_c s_c E σ'(xᵀw_c) w_c."""

    scales: Array
    shares: Array
    pull: Array


class LogisticStream(Streams):
    """f_c(θ) = E log(1 + exp(−y xᵀθ)) + l2/2 ‖θ‖², x ~ N(0, s_c Λ), P(y = 1 | x) = σ(xᵀw_c), y = ±1.

    New records are drawn at every step; nothing of a client is stored. By Stein's identity all derivatives are
    means over one or two Gaussian margins (`margin`, `pair`): with S_c = s_c Λ, t = S_c θ and
    z ~ N(0, θᵀS_cθ),

        ∇f_c = E σ'(z) t − E σ'(xᵀw_c) S_c w_c + l2 θ,     ∇²f_c = E σ'(z) S_c + E σ'''(z) t tᵀ + l2,
        ∇³f_c[M] = E σ'''(z) (2 S_c M t + tr(S_c M) t) + E σ⁽⁵⁾(z) (tᵀM t) t.

    Within a round each client's local models spread, and ∇³f_c turns their spread into a pull on the mean that no
    number of clients averages away: Scaffold's bias floor. The defaults make it visible: see docs/streams.md.

    Parameters
    ----------
    n_clients, dim, heterogeneity, scale_spread, spectrum, signal, l2, weights, seed
        As for `RidgeStream`.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> fs.problems.LogisticStream(n_clients=1000, dim=20)
    LogisticStream(n_clients=1000, dim=20, l2=0.01, seed=0)
    """

    kind = "logistic_stream"
    curvature = 0.25
    margin_derivative_bounds = LOGISTIC_DERIVATIVE_BOUNDS

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

    def derivatives(self, clients: IntArray, theta: Array) -> Derivatives:
        """Return ∇f_c, ∇²f_c and the covariance C_c of one record's gradient, of some clients at θ."""
        law = self.law(clients)
        S = law.scale[:, None] * self.spectrum  # (k, d)
        t, own = S * theta, S * law.w
        square, own_square = t @ theta, np.einsum("kd,kd->k", law.w, own)
        means, own_slope = margin(square), margin(own_square).first
        lengths = np.sqrt(square) * np.sqrt(own_square)
        short = 1e-150  # a product of lengths below it has a square that underflows
        x = np.clip(np.where(lengths > short, own @ theta / np.maximum(lengths, short), 0.0), -1.0, 1.0)
        two = pair(np.sqrt(square), np.sqrt(own_square), x)

        def outer(weight: Array, left: Array, right: Array) -> Array:
            return (weight[:, None] * left)[:, :, None] * right[:, None]

        gradient = means.first[:, None] * t - own_slope[:, None] * own
        hessian = outer(means.third, t, t) + _diagonals(means.first[:, None] * S + self.l2)
        cross = outer(-2.0 * two.firsts, t, own)
        level = 0.5 - means.first - 2.0 * two.both
        noise = (
            outer(-means.third - 2.0 * two.second_s, t, t)
            - gradient[:, :, None] * gradient[:, None]
            + cross
            + np.swapaxes(cross, 1, 2)
            - outer(2.0 * two.second_t, own, own)
            + _diagonals(level[:, None] * S)
        )
        return Derivatives(gradient + self.l2 * theta, hessian, noise)

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
