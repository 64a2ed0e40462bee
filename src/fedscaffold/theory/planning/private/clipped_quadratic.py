"""All clients together as one quadratic loss: what a private run comes to, in a moment."""

from dataclasses import dataclass

import numpy as np

from fedscaffold.core.capabilities import GeneralisedLinear
from fedscaffold.core.random.batches import Batches
from fedscaffold.core.types import Array
from fedscaffold.theory.client_blocks import noise_factors
from fedscaffold.theory.prediction.clouds.clipped import ClippedAverages
from fedscaffold.theory.prediction.moments.private import clipped_optimum
from fedscaffold.theory.prediction.setting import at_point


@dataclass(frozen=True, eq=False)
class ClippedQuadratic:
    """Gradient descent on the clipped mean loss, taken as quadratic around its optimum, with noise."""

    clip: float
    lam: Array  # eigenvalues of the mean Hessian, (d,)
    start: Array  # θ_0 − θ̃ in its eigenbasis
    shift: Array  # θ̃ − θ* there
    batch_noise: Array  # variances of the mean of batches' gradients there
    privacy_noise: float  # of every coordinate, for a noise multiplier of 1
    optimum: Array  # θ̃, where the mean clipped gradient vanishes

    @classmethod
    def of(
        cls, problem: GeneralisedLinear, batches: Batches, clip: float, near: Array | None = None
    ) -> "ClippedQuadratic":
        """The model of a problem with a clip; θ̃ is looked for from `near` on, or from θ*."""
        N, w = problem.n_clients, problem.weights
        averages = ClippedAverages(problem, False, clip, np.zeros(N))
        optimum = clipped_optimum(problem, averages, near)
        found = at_point(problem, averages, np.arange(N), optimum, noise_factors(problem, batches))
        lam, U = np.linalg.eigh(np.tensordot(w, found.hessian, axes=1))
        noise = np.tensordot(w**2, found.noise, axes=1)
        counts = problem.sizes if batches.size is None else np.full(N, batches.size)
        return cls(
            clip, np.maximum(lam, 0.0), -U.T @ optimum, U.T @ (optimum - problem.optimum()),
            np.einsum("ij,ik,kj->j", U, noise, U), float(np.sum(np.square(w * clip / counts))),
            optimum,
        )  # fmt: skip

    @property
    def largest(self) -> float:
        """The largest curvature of the quadratic over all directions, slightly rounded up."""
        return float(self.lam.max()) + 1e-12

    def error(self, gamma: float, steps: int, noise: float) -> float:
        """E‖θ_S − θ*‖² after S steps from θ_0."""
        return float(self.errors(np.array([gamma]), steps, noise)[0])

    def errors(self, gammas: Array, steps: int, noise: float) -> Array:
        """E‖θ_S − θ*‖² after S steps from θ_0 with each of some step sizes."""
        g = 1.0 - gammas[:, None] * self.lam
        square = np.minimum(g * g, 1.0 - 1e-15)
        spread = (1.0 - square**steps) / (1.0 - square)
        variance = gammas**2 * (spread @ (self.batch_noise + noise**2 * self.privacy_noise))
        found: Array = np.square(g**steps * self.start + self.shift).sum(axis=1) + variance
        return found
