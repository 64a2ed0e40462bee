"""FedLin (Mitra et al. 2021): gradients at θ are exchanged before every round's local steps."""

from dataclasses import dataclass, field
from typing import ClassVar, get_args

import numpy as np

from fedscaffold.core.checks import whole_number
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array, ExchangedGradients, GradientKind, IntArray, ServerState
from fedscaffold.methods.base import Base, NoClientState, same_length


@dataclass(frozen=True, kw_only=True)
class FedLin(Base):
    """θ_c ← θ_c − γ(g_c(θ_c) + ξ_c), H times, with ξ_c = ḡ(θ) − ĝ_c(θ); θ⁺ = Σ w_c θ_c.

    The correction needs no memory, but one gradient and two vectors more in every round.

    Parameters
    ----------
    step_size
        γ > 0.
    local_steps
        H ≥ 1.
    correction_gradients
        What ĝ_c(θ) is: "full", the gradient on all of a client's records, or "minibatch", on a batch of its own.
    """

    kind: ClassVar[str] = "fedlin"
    vectors_per_round: ClassVar[int] = 4  # θ and ḡ down, ĝ_c and θ_c up

    local_steps: int
    correction_gradients: GradientKind = field(default="full")

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number("local_steps", self.local_steps, least=1)
        if self.correction_gradients not in get_args(GradientKind):
            raise InvalidInput(
                f"correction_gradients must be one of {get_args(GradientKind)}, got {self.correction_gradients!r}"
            )

    @property
    def exchange(self) -> GradientKind:  # type: ignore[override]
        """ĝ_c(θ)."""
        return self.correction_gradients

    def local_step_counts(self, n_clients: int, round_uniform: Array) -> IntArray:
        """H, for everyone."""
        return same_length(self.local_steps)

    def correction(
        self, client_state: NoClientState, server: ServerState, exchanged: ExchangedGradients | None
    ) -> Array:
        """ξ_c = ḡ(θ) − ĝ_c(θ); between rounds, 0."""
        if exchanged is None:
            return np.zeros((1, 1, server.theta.shape[-1]))
        return exchanged.mean[:, None, :] - exchanged.own

    def safe_step_size(self, smoothness: float, strong_convexity: float) -> float:
        """1/(10 L H), as in Mitra et al.'s theorems."""
        return 0.1 / (smoothness * self.local_steps)
