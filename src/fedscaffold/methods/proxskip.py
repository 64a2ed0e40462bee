"""ProxSkip, also called Scaffnew (Mishchenko et al. 2022; with stochastic gradients, Hu & Huang 2023)."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from fedscaffold.core.checks import positive
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array, ExchangedGradients, IntArray, ServerState
from fedscaffold.methods.base import Base
from fedscaffold.methods.variates import ControlVariates, initial_control_variates


@dataclass(frozen=True, kw_only=True)
class ProxSkip(Base):
    """θ_c ← θ_c − γ(g_c(θ_c) + ξ_c), and after each step with probability p a communication.

    A communication is θ⁺ = Σ w_c θ_c; ξ_c ← ξ_c + p(θ_c − θ⁺)/γ. So it is Scaffold whose number of local steps is
    drawn anew in each round, the same for all clients, with mean 1/p. Without noise and with p = 1/√κ it needs
    of the order of √κ communications, where Scaffold needs κ.

    Parameters
    ----------
    step_size
        γ > 0.
    communication_probability
        p in (0, 1].
    """

    kind: ClassVar[str] = "proxskip"
    remembers_theta: ClassVar[bool] = True

    communication_probability: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if positive("communication_probability", self.communication_probability) > 1.0:
            raise InvalidInput(f"communication_probability is at most 1, got {self.communication_probability!r}")

    def local_step_counts(self, n_clients: int, round_uniform: Array) -> IntArray:
        """Geometric with mean 1/p: the first h with chance ≥ (1−p)^h."""
        if self.communication_probability == 1.0:
            return np.ones((1, 1), dtype=np.int64)
        steps = np.ceil(np.log(round_uniform) / np.log1p(-self.communication_probability))
        return np.maximum(steps, 1.0).astype(np.int64)[:, None]

    def init_clients(
        self, repetitions: int, weights: Array, dim: int, control_variates: ArrayLike | None
    ) -> ControlVariates:
        """ξ_c = 0, or given values with Σ w_c ξ_c = 0."""
        return ControlVariates(xi=initial_control_variates(repetitions, weights, dim, control_variates))

    def correction(
        self, client_state: ControlVariates, server: ServerState, exchanged: ExchangedGradients | None
    ) -> Array:
        """ξ_c."""
        return client_state.xi

    def update_clients(
        self, client_state: ControlVariates, sent: Array, before: ServerState, after: ServerState
    ) -> ControlVariates:
        """ξ_c ← ξ_c + p(θ_c − θ⁺)/γ."""
        change = sent - after.theta[:, None, :]
        change *= self.communication_probability / self.step_size
        change += client_state.xi
        return ControlVariates(xi=change)

    def safe_step_size(self, smoothness: float, strong_convexity: float) -> float:
        """1/L, for any p."""
        return 1.0 / smoothness
