"""FedAvg (McMahan et al. 2017): local SGD without correction."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedscaffold.core.checks import positive, whole_number
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array


class Memory(NamedTuple):
    """FedAvg's clients remember nothing."""


@dataclass(frozen=True, kw_only=True)
class FedAvg:
    """θ_c ← θ_c − γ g_c(θ_c), H times on each client; θ⁺ = Σ w_c θ_c.

    Parameters
    ----------
    step_size
        γ > 0.
    local_steps
        H ≥ 1.
    """

    step_size: float
    local_steps: int
    vectors_per_round = 2
    kind: ClassVar[str] = "fedavg"

    def __post_init__(self) -> None:
        positive("step_size", self.step_size)
        whole_number("local_steps", self.local_steps, least=1)

    def start(self, repetitions: int, weights: Array, dim: int, control_variates: ArrayLike | None) -> Memory:
        """No memory."""
        if control_variates is not None:
            raise InvalidInput("FedAvg has no control variates to start from; use Scaffold")
        return Memory()

    def correction(self, memory: Memory, theta: Array) -> Array:
        """ξ_c = 0, the same for all clients and repetitions."""
        return np.zeros((1, 1, theta.shape[-1]))

    def aggregate(self, theta: Array, mean_local: Array) -> Array:
        """θ⁺ = Σ w_c θ_c."""
        return mean_local

    def remember(self, memory: Memory, local: Array, theta_new: Array) -> Memory:
        """Nothing."""
        return memory

    def safe_step_size(self, smoothness: float, strong_convexity: float) -> float:
        """1/L: below it, each local step contracts in mean square."""
        return 1.0 / smoothness
