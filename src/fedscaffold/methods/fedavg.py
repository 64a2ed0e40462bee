"""FedAvg (McMahan et al. 2017): local SGD without correction."""

from dataclasses import dataclass
from typing import ClassVar

from fedscaffold.core.checks import whole_number
from fedscaffold.core.types import Array, IntArray
from fedscaffold.methods.base import Sampled, same_length


@dataclass(frozen=True, kw_only=True)
class FedAvg(Sampled):
    """θ_c ← θ_c − γ g_c(θ_c), H times on each client; θ⁺ = Σ w_c θ_c.

    Parameters
    ----------
    step_size
        γ > 0.
    local_steps
        H ≥ 1.
    participation
        Share of the clients that takes part in a round.
    cohort
        How many take part, instead of a share.
    """

    kind: ClassVar[str] = "fedavg"

    local_steps: int

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number("local_steps", self.local_steps, least=1)

    def local_step_counts(self, n_clients: int, round_uniform: Array) -> IntArray:
        """H, for everyone."""
        return same_length(self.local_steps)

    def safe_step_size(self, smoothness: float, strong_convexity: float) -> float:
        """1/L: below it, each local step contracts in mean square."""
        return 1.0 / smoothness
