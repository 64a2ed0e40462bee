"""Clients that are distributions instead of tables: new records at every step, and derivatives by formula."""

from __future__ import annotations  # so that help() shows ArrayLike, not what it stands for

import copy
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedscaffold.core.arrays import chosen_clients
from fedscaffold.core.checks import not_negative, positive, seed_number, vector, whole_number
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.machine import check_memory, one_blas_thread
from fedscaffold.core.random.normals import NOBODY, normals, of_clients
from fedscaffold.core.random.stream import SERVER, Batches, Sampling, Stream
from fedscaffold.core.types import Array, IntArray
from fedscaffold.problems.base import ProblemBase, client_weights, digest, freeze

CLIENTS_AT_ONCE = 4096  # in passes over all clients; part of the numbers, as it fixes the order of sums
ENDLESS = int(np.iinfo(np.int64).max)  # how many records a client has, where a number is asked for
LARGEST_SPREAD = 0.9  # at 1 the smallest s_c is 0, and a problem without penalty has no minimiser


class ClientLaws(NamedTuple):
    """The distributions of k clients: x ~ N(0, s_c Λ), and y depends on xᵀw_c."""

    scale: Array  # s_c, (k,)
    w: Array  # w_c, (k, d)


class Derivatives(NamedTuple):
    """Gradients, Hessians and the covariance of one record's gradient, averaged over some points each."""

    gradient: Array  # (k, m, d)
    hessian: Array  # (k, m, d, d)
    noise: Array  # (k, m, d, d)


class Streams(ProblemBase):
    """Client c draws new records (x, y) at every step: x ~ N(0, s_c Λ) and a target y that depends on xᵀw_c.

    With τ_c uniform in (−1, 1) and n_c ~ N(0, I),

        s_c = 1 + scale_spread τ_c,     w_c = w + heterogeneity (n_c/√d + τ_c v),

    and w, of length `signal`, and v, of length one, shared by all. As s_c and w_c go together, clients' Hessians
    and optima do, which is what biases FedAvg for any number of clients. τ_c and n_c are functions of (seed, c),
    computed when they are needed: nothing of a client is stored.

    Parameters
    ----------
    n_clients
        N, the number of clients, below 2³².
    dim
        d, the number of features.
    heterogeneity
        How far clients' models w_c lie from each other: w_c = w + heterogeneity (n_c/√d + τ_c v), with n_c normal,
        τ_c uniform in (−1, 1), and v of length one.
    scale_spread
        How different clients' features are, at most 0.9: their covariances are s_c Λ, s_c = 1 + scale_spread τ_c.
    spectrum
        Diagonal of Λ, shape (d,): the features' variances on average over clients; geometric from 1 to 0.1 by
        default.
    signal
        Length of w.
    l2
        Strength of the penalty l2/2 ‖θ‖², which every client's f_c includes.
    weights
        One positive weight per client, scaled to sum to one; uniform by default.
    seed
        Chooses w, v and the clients. The records are chosen by the run's seed.
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
        heterogeneity: float,
        scale_spread: float,
        spectrum: ArrayLike | None,
        signal: float,
        l2: float,
        weights: ArrayLike | None,
        seed: int,
    ) -> None:
        self.dim = whole_number("dim", dim, least=1)
        n_clients = whole_number("n_clients", n_clients, least=1)
        if n_clients > SERVER:
            raise InvalidInput(f"n_clients must be below 2**32, got {n_clients}")
        check_memory(f"{n_clients:,} clients with dim={self.dim:,}", 16 * n_clients + 64 * self.dim)
        self.seed = seed_number("seed", seed)
        self.heterogeneity = not_negative("heterogeneity", heterogeneity)
        self.scale_spread = not_negative("scale_spread", scale_spread)
        if self.scale_spread > LARGEST_SPREAD:
            raise InvalidInput(f"scale_spread must be at most {LARGEST_SPREAD}, got {scale_spread!r}")
        self.l2 = not_negative("l2", l2)
        self.penalty = np.full(self.dim, self.l2)
        self.spectrum = _spectrum(spectrum, self.dim)
        shared = normals(Stream(self.seed, NOBODY, NOBODY, SERVER), 0, 2 * self.dim).reshape(2, -1)
        shared /= np.linalg.norm(shared, axis=1, keepdims=True)
        self.centre, self.tilt = positive("signal", signal) * shared[0], shared[1]
        self.given: tuple[Array, Array] | None = None
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
    def averages(self, clients: IntArray, points: Array) -> Derivatives:
        """Return ∇f_c, ∇²f_c and one record's covariance C_c, each averaged over the p points of (k, m, p, d)."""

    @abstractmethod
    def drawn_gradient(self, client: int, theta: Array, stream: Stream, first: int, count: int) -> Array:
        """Return the mean gradient at θ over the records first, ..., first + count − 1 of a client's round."""

    # clients

    def subset(self, clients: ArrayLike) -> Self:
        """Return the same problem on some of the clients, with the same laws; weights are scaled to sum to one."""
        chosen = chosen_clients(clients, self.n_clients)
        other = copy.copy(self)
        if self.given is not None:
            other.given = (self.given[0][chosen], self.given[1][chosen])
            freeze(*other.given)
        part = self.weights[chosen]
        other._take(self.client_ids[chosen], part / part.sum())
        return other

    def block(self, first: int, last: int) -> Self:
        """Return clients first, ..., last − 1; opened with first_client=first, they draw as in the whole."""
        return self.subset(np.arange(first, last))

    def law(self, clients: IntArray) -> ClientLaws:
        """Return s_c and w_c of some clients."""
        if self.given is None:
            normal, uniform = of_clients(self.seed, self.client_ids[clients], self.dim)
            spread, tau = normal / np.sqrt(self.dim), 2.0 * uniform - 1.0
        else:
            spread, tau = self.given[0][clients], self.given[1][clients]
        w = self.centre + self.heterogeneity * (spread + tau[:, None] * self.tilt)
        return ClientLaws(1.0 + self.scale_spread * tau, w)

    def _chunks(self) -> Iterator[IntArray]:
        """Yield the numbers of all clients in order, some at a time."""
        for begin in range(0, self.n_clients, CLIENTS_AT_ONCE):
            yield np.arange(begin, min(begin + CLIENTS_AT_ONCE, self.n_clients))

    def representatives(self, scales: int = 8) -> Self:
        """Return a few clients with weights, with the means of the law that clients are drawn from.

        `scales` points of Gauss and Legendre for τ_c, with each the 2d points ± √d e_j for n_c, a rule of degree
        three. They are for theory (`theory.predict_at_scale`); engines reject them.
        """
        tau, share = np.polynomial.legendre.leggauss(whole_number("scales", scales, least=1, most=1000))
        if self.scale_spread == 0.0 and self.heterogeneity == 0.0:
            tau, share = np.zeros(1), np.full(1, 2.0)
        ends = np.concatenate([np.eye(self.dim), -np.eye(self.dim)])
        if self.heterogeneity == 0.0:
            ends = np.zeros((1, self.dim))
        other = copy.copy(self)
        other.given = (np.tile(ends, (tau.size, 1)), np.repeat(tau, len(ends)))
        freeze(*other.given)
        weights = np.repeat(0.5 * share / len(ends), len(ends))
        other._take(np.arange(weights.size), weights / weights.sum())
        return other

    # each client's f_c, one row per client

    def client_gradients(self, theta: Array) -> Array:
        """Return ∇f_c(θ), shape (N, d)."""
        return np.concatenate([at.gradient[:, 0] for at in self._all_clients(theta)])

    def client_hessians(self, theta: Array) -> Array:
        """Return ∇²f_c(θ), shape (N, d, d)."""
        return np.concatenate([at.hessian[:, 0] for at in self._all_clients(theta)])

    def client_noise_covariances(
        self, theta: Array, *, batch_size: int | None, sampling: Sampling = "with_replacement"
    ) -> Array:
        """Return C_c(θ)/B, the covariance of a minibatch gradient, shape (N, d, d); 0 for full gradients."""
        factor = Batches(batch_size, sampling).noise_factor(ENDLESS)
        return factor * np.concatenate([at.noise[:, 0] for at in self._all_clients(theta)])

    def client_noise_along(
        self, theta: Array, directions: Array, *, batch_size: int | None, sampling: Sampling = "with_replacement"
    ) -> Array:
        """Return the variance of a minibatch gradient along each column of (d, m) directions, shape (N, m)."""
        factor = Batches(batch_size, sampling).noise_factor(ENDLESS)
        rows = [
            np.einsum("im,kij,jm->km", directions, at.noise[:, 0], directions, optimize=True)
            for at in self._all_clients(theta)
        ]
        return factor * np.concatenate(rows)

    def _all_clients(self, theta: Array) -> Iterator[Derivatives]:
        for chunk in self._chunks():
            yield self.averages(chunk, np.broadcast_to(theta, (chunk.size, 1, 1, self.dim)))

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
        given = () if self.given is None else self.given
        words = repr(sorted(self.describe().items()))
        return digest(words, self.client_ids, self.weights, self.spectrum, self.centre, self.tilt, *given)


def _spectrum(spectrum: ArrayLike | None, dim: int) -> Array:
    if spectrum is None:
        return np.geomspace(1.0, 0.1, dim)  # a condition number of 10
    given = vector("spectrum", spectrum, f"dim={dim} numbers, one per feature", dim)
    if not (np.isfinite(given).all() and (given > 0).all()):
        raise InvalidInput("spectrum must be positive and finite: it holds the variances of the features")
    return given


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

    def averages(self, clients: IntArray, points: Array) -> Derivatives:
        """Return ∇f_c, ∇²f_c and one record's covariance C_c, each averaged over the p points of (k, m, p, d)."""
        law = self.law(clients)
        S = law.scale[:, None] * self.spectrum  # (k, d)
        off = points - law.w[:, None, None]
        pull = S[:, None, None] * off
        square = np.einsum("kmpd,kmpd->km", off, pull) / points.shape[2] + self.noise**2
        noise = np.swapaxes(pull, -1, -2) @ pull / points.shape[2]
        every = np.arange(self.dim)
        noise[..., every, every] += square[..., None] * S[:, None]
        hessian = np.zeros_like(noise)
        hessian[..., every, every] = S[:, None] + self.l2
        return Derivatives(pull.mean(axis=2) + self.l2 * points.mean(axis=2), hessian, noise)

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
