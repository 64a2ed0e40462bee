"""What the predictor averages over a Gaussian cloud of local models: gradients, their noise and their slope."""

from typing import NamedTuple, Protocol

from fedscaffold.core.types import Array
from fedscaffold.theory.client_blocks import ClientBlock


class Averages(NamedTuple):
    """Means over θ ~ N(mean, cov), for k clients and m local steps."""

    gradient: Array  # E ∇f_c(θ), (k, m, d)
    noise: Array  # E C_c(θ), (k, m, d, d)
    hessian: Array  # E ∇²f_c(θ), (k, m, d, d); (k, 1, d, d) where it is constant


class CloudAverages(Protocol):
    """What the predictor asks of a problem; C_c(θ) is the covariance of a minibatch gradient.

    `factors` (k,) is the variance of a batch mean over that of one record; see `client_blocks.noise_factors`.
    """

    def over_clouds(self, block: ClientBlock, mean: Array, cov: Array, factors: Array) -> Averages:
        """E ∇f_c, E C_c and E ∇²f_c under θ ~ N(mean, cov), for mean (k, m, d) and cov (k, m, d, d)."""

    def gradients(self, block: ClientBlock, points: Array) -> Array:
        """∇f_c at points (k, m, d), shape (k, m, d)."""

    def noise_at(self, block: ClientBlock, points: Array, factors: Array) -> Array:
        """C_c at points (k, m, d), shape (k, m, d, d)."""
