"""Linear regression on clients that are distributions."""

from __future__ import annotations  # so that help() shows ArrayLike, not what it stands for

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedscaffold.core.checks import not_negative
from fedscaffold.core.random.normals import normals
from fedscaffold.core.random.stream import Stream
from fedscaffold.core.types import Array, IntArray
from fedscaffold.problems.streams.base import ClientLaws, Derivatives, Streams


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
        """Σ w_c s_c, Σ w_c s_c w_c and Σ w_c s_c w_c∘w_c."""
        scale, first, second = 0.0, np.zeros(self.dim), np.zeros(self.dim)
        for law, weights in laws:
            share = weights * law.scale
            scale += float(share.sum())
            first += share @ law.w
            second += share @ law.w**2
        self.moments = (scale, first, second)

    def loss(self, theta: Array) -> float:
        """f(θ) = Σ w_c f_c(θ)."""
        scale, first, second = self.moments
        square = float(self.spectrum @ (scale * theta**2 - 2.0 * theta * first + second))
        return 0.5 * (square + self.noise**2 + self.l2 * float(theta @ theta))

    def gradient(self, theta: Array) -> Array:
        """The gradient ∇f(θ), shape (dim,)."""
        scale, first, _ = self.moments
        return self.spectrum * (scale * theta - first) + self.l2 * theta

    def hessian(self, theta: Array) -> Array:
        """∇²f = Λ Σ w_c s_c + l2."""
        return np.diag(self.spectrum * self.moments[0] + self.l2)

    def _solve_optimum(self) -> Array:
        """θ* = (Λ Σ w_c s_c + l2)⁻¹ Λ Σ w_c s_c w_c."""
        scale, first, _ = self.moments
        return self.spectrum * first / (self.spectrum * scale + self.l2)

    def averages(self, clients: IntArray, points: Array) -> Derivatives:
        """∇f_c, ∇²f_c and one record's covariance C_c, each averaged over the p points of (k, m, p, d)."""
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
        """E(xᵀθ − y)² = s_c (θ − w_c)ᵀΛ(θ − w_c) + noise² of some clients, shape (k,)."""
        law = self.law(clients)
        return law.scale * ((theta - law.w) ** 2 @ self.spectrum) + self.noise**2

    def client_third_derivatives(self, theta: Array, matrix: Array) -> Array:
        """∇³f_c = 0, shape (N, d)."""
        return np.zeros((self.n_clients, self.dim))

    def drawn_gradient(self, client: int, theta: Array, stream: Stream, first: int, count: int) -> Array:
        """Mean of (xᵀ(θ − w_c) − noise ε) x, penalty added, over records first, ... of a client's round."""
        law = self.law(np.array([client]))
        raw = normals(stream, first * self.dim, count * self.dim).reshape(count, self.dim)
        x = raw * np.sqrt(law.scale * self.spectrum)
        residual = x @ (theta - law.w[0]) - self.noise * normals(stream, first, count, aside=True)
        return residual @ x / count + self.l2 * theta

    def strong_convexity(self) -> float:
        """The smallest s_c times λ_min(Λ), plus l2."""
        return self.smallest_scale * float(self.spectrum.min()) + self.l2

    def describe(self) -> dict[str, Any]:
        """The kind, sizes and how clients and records are drawn."""
        return {**super().describe(), "noise": self.noise}
