"""Scaffold, Algorithm 1 of "Scaffold with Stochastic Gradients: New Analysis with Linear Speed-Up"."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from fedscaffold.core.checks import whole_number
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array, ExchangedGradients, IntArray, ServerState
from fedscaffold.methods.base import Sampled, same_length
from fedscaffold.methods.variates import ControlVariates, initial_control_variates


@dataclass(frozen=True, kw_only=True)
class Scaffold(Sampled):
    """θ_c ← θ_c − γ(g_c(θ_c) + ξ_c), H times; θ⁺ = Σ w_c θ_c; ξ_c ← ξ_c + (θ_c − θ⁺)/(γH).

    With this rule a client needs only θ⁺ to update its ξ_c, so control variates never travel. Those who don't
    take part in a round keep their ξ_c, and Σ w_c ξ_c = 0 all the same. Clients may take different numbers of
    steps H_c: then c sends where H̄ steps would have led, θ + (θ_c − θ) H̄/H_c, with H̄ the mean of the H_c.

    Parameters
    ----------
    step_size
        γ > 0.
    local_steps
        H ≥ 1, or one number per client.
    participation
        Share of the clients that takes part in a round.
    cohort
        How many take part, instead of a share.
    """

    kind: ClassVar[str] = "scaffold"
    remembers_theta: ClassVar[bool] = True

    local_steps: Any  # int or a sequence; with a union every reader of the usual int would have to narrow it

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.local_steps, Sequence | np.ndarray) and not isinstance(self.local_steps, str):
            each = tuple(whole_number("local_steps", steps, least=1) for steps in self.local_steps)
            object.__setattr__(self, "local_steps", each)
        else:
            whole_number("local_steps", self.local_steps, least=1)

    def participants(self, n_clients: int) -> int:
        """As many as asked for, but not one alone: it would agree with itself and learn nothing."""
        count = super().participants(n_clients)
        if count == 1 < n_clients:
            raise InvalidInput("Scaffold needs two clients or more in a round; use TwoSidedScaffold for one")
        return count

    @property
    def mean_steps(self) -> float:
        """H̄."""
        return float(np.mean(self.local_steps))

    def local_step_counts(self, n_clients: int, round_uniform: Array) -> IntArray:
        """H, or H_c for each client."""
        if not isinstance(self.local_steps, tuple):
            return same_length(self.local_steps)
        if len(self.local_steps) != n_clients:
            raise InvalidInput(
                f"local_steps has {len(self.local_steps)} numbers, but there are {n_clients} clients"
            )
        return np.array([self.local_steps], dtype=np.int64)

    def init_clients(
        self, repetitions: int, weights: Array, dim: int, control_variates: ArrayLike | None
    ) -> ControlVariates:
        """ξ_c = 0, or given values with Σ w_c ξ_c = 0."""
        return ControlVariates(xi=initial_control_variates(repetitions, weights, dim, control_variates))

    def correction(
        self, client_state: ControlVariates, server: ServerState, exchanged: ExchangedGradients | None
    ) -> Array:
        """Line 6: what each client adds to its gradient."""
        return client_state.xi

    def message(self, local: Array, server: ServerState, step_counts: IntArray) -> Array:
        """Line 8: θ_c, or where H̄ steps would have led."""
        if isinstance(self.local_steps, int | np.integer):
            return local
        theta = server.theta[:, None, :]
        return theta + (local - theta) * (self.mean_steps / step_counts)[:, :, None]

    def aggregate(self, server: ServerState, mean: Array, share: Array) -> ServerState:
        """Line 9: θ⁺ = Σ w_c θ_c."""
        return ServerState(mean)

    def update_clients(
        self, client_state: ControlVariates, sent: Array, before: ServerState, after: ServerState
    ) -> ControlVariates:
        """Line 10: ξ_c ← ξ_c + (θ_c − θ⁺)/(γH)."""
        change = sent - after.theta[:, None, :]
        change /= self.step_size * self.mean_steps
        change += client_state.xi
        return ControlVariates(xi=change)

    def safe_step_size(self, smoothness: float, strong_convexity: float) -> float:
        """min{1/(2L), 1/(H(L+μ))}: Lemma 4.1's conditions, under which a round with all clients contracts."""
        longest = float(np.max(self.local_steps))
        return min(0.5 / smoothness, 1.0 / (longest * (smoothness + strong_convexity)))
