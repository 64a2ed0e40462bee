"""Averages over a Gaussian cloud of local models for generalised linear problems, from their margins xᵀθ."""

from dataclasses import dataclass
from functools import cache

import numpy as np

from fedscaffold.core.capabilities import GeneralisedLinear
from fedscaffold.core.types import Array
from fedscaffold.theory.client_blocks import ClientBlock
from fedscaffold.theory.prediction.averages import Averages

POINTS = ((0.5, 3), (1.0, 5), (2.0, 9), (4.0, 15), (8.0, 25), (np.inf, 41))  # up to a spread, so many points


def gauss_points(spread: float) -> tuple[Array, Array]:
    """Points and weights for means over a standard normal number of functions of `spread` times it.

    Losses bend over a distance of about one: the wider the spread, the more points.
    """
    return _gauss_hermite(next(count for limit, count in POINTS if spread <= limit))


@cache
def _gauss_hermite(count: int) -> tuple[Array, Array]:
    points, weights = np.polynomial.hermite_e.hermegauss(count)
    return points, weights / weights.sum()


@dataclass(frozen=True, eq=False)
class MarginAverages:
    """Averages of a generalised linear problem: under a Gaussian θ its margins xᵀθ are Gaussian too."""

    problem: GeneralisedLinear
    quadratic: bool

    def over_clouds(self, block: ClientBlock, mean: Array, cov: Array, factors: Array) -> Averages:
        """E C = v (E_i[E ℓ'² x xᵀ] − E∇ E∇ᵀ − E∇² cov E∇²), v the batch's noise factor; exact for quadratic ℓ.

        Means over a margin by Gauss and Hermite's rule; the gradient is linearised in the last term.
        """
        problem, x = self.problem, block.x[:, None]
        z = np.swapaxes(block.x @ np.swapaxes(mean, 1, 2), 1, 2)
        variance = np.einsum("kqij,kij->kqi", x @ cov, block.x)
        y, share = block.y[:, None], block.share[:, None]
        if self.quadratic:
            own, slope = problem.d1(z, y), problem.d2(z[:, :1], y)
            square = np.square(own) + np.square(slope) * variance  # linear in cov, which need not be a covariance
        else:
            own, square, slope = self._over_margins(z, np.sqrt(np.maximum(variance, 0.0)), y)
        gradient = (own * share)[:, :, None, :] @ x
        second_moment = _outer(x, square * share)
        hessian = _outer(x, slope * share)
        centre = np.swapaxes(gradient, -1, -2) @ gradient + hessian @ cov @ hessian
        noise = factors[:, None, None, None] * (second_moment - centre)
        return Averages(gradient[:, :, 0] + problem.penalty * mean, noise, hessian + np.diag(problem.penalty))

    def _over_margins(self, z: Array, spread: Array, y: Array) -> tuple[Array, Array, Array]:
        """Means of ℓ', ℓ'² and ℓ'' over normal margins around z."""
        own, square, slope = np.zeros_like(z), np.zeros_like(z), np.zeros_like(z)
        for point, weight in zip(*gauss_points(float(spread.max())), strict=True):
            at = z + point * spread
            value = self.problem.d1(at, y)
            own += weight * value
            square += weight * np.square(value)
            slope += weight * self.problem.d2(at, y)
        return own, square, slope

    def gradients(self, block: ClientBlock, points: Array) -> Array:
        """∇f_c at points (k, m, d), shape (k, m, d)."""
        z = block.x @ np.swapaxes(points, 1, 2)
        first = self.problem.d1(z, block.y[..., None]) * block.share[..., None]
        return np.swapaxes(first, 1, 2) @ block.x + self.problem.penalty * points

    def noise_at(self, block: ClientBlock, points: Array, factors: Array) -> Array:
        """C_c at points (k, m, d), shape (k, m, d, d)."""
        z = np.swapaxes(block.x @ np.swapaxes(points, 1, 2), 1, 2)
        first = self.problem.d1(z, block.y[:, None])
        gradient = (first * block.share[:, None]) @ block.x
        second_moment = _outer(block.x[:, None], first * first * block.share[:, None])
        return factors[:, None, None, None] * (second_moment - gradient[..., :, None] * gradient[..., None, :])


def _outer(x: Array, weight: Array) -> Array:
    """Σ_i weight_i x_i x_iᵀ for x (k, 1, n, d) and weight (k, m, n)."""
    return np.swapaxes(x, -1, -2) @ (weight[..., None] * x)
