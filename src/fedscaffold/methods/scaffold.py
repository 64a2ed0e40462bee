"""Scaffold, Algorithm 1 of "Scaffold with Stochastic Gradients: New Analysis with Linear Speed-Up"."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedscaffold.core.checks import positive, whole_number
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array

SUM_TOLERANCE = 1e-9


class Memory(NamedTuple):
    """What each client keeps between rounds."""

    xi: Array  # (repetitions, clients, dim)


@dataclass(frozen=True, kw_only=True)
class Scaffold:
    """θ_c ← θ_c − γ(g_c(θ_c) + ξ_c), H times; θ⁺ = Σ w_c θ_c; ξ_c ← ξ_c + (θ_c − θ⁺)/(γH).

    With this rule a client needs only θ⁺ to update its ξ_c, so control variates never travel.

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
    kind: ClassVar[str] = "scaffold"

    def __post_init__(self) -> None:
        positive("step_size", self.step_size)
        whole_number("local_steps", self.local_steps, least=1)

    def start(self, repetitions: int, weights: Array, dim: int, control_variates: ArrayLike | None) -> Memory:
        """ξ_c = 0, or given values with Σ w_c ξ_c = 0."""
        shape = (repetitions, weights.size, dim)
        if control_variates is None:
            return Memory(xi=np.zeros(shape))
        try:
            xi = np.broadcast_to(np.asarray(control_variates, dtype=np.float64), shape)
        except ValueError:
            given = np.shape(control_variates)
            raise InvalidInput(f"control_variates0 must have shape {shape[1:]} or {shape}, got {given}") from None
        if not np.isfinite(xi).all():
            raise InvalidInput("control_variates0 holds NaN or infinite values")
        drift = np.abs(np.einsum("c,rcj->rj", weights, xi)).max()
        if drift > SUM_TOLERANCE * max(1.0, np.abs(xi).max()):
            raise InvalidInput(
                f"control variates must sum to zero over clients (weighted), but the sum has an entry of "
                f"size {drift:.3g}; subtract their weighted mean"
            )
        return Memory(xi=xi.copy())

    def correction(self, memory: Memory, theta: Array) -> Array:
        """Line 6: what each client adds to its gradient."""
        return memory.xi

    def aggregate(self, theta: Array, mean_local: Array) -> Array:
        """Line 9: θ⁺ = Σ w_c θ_c."""
        return mean_local

    def remember(self, memory: Memory, local: Array, theta_new: Array) -> Memory:
        """Line 10: ξ_c ← ξ_c + (θ_c − θ⁺)/(γH)."""
        change = local - theta_new[:, None, :]
        change /= self.step_size * self.local_steps
        change += memory.xi
        return Memory(xi=change)

    def safe_step_size(self, smoothness: float, strong_convexity: float) -> float:
        """min{1/(2L), 1/(H(L+μ))}: Lemma 4.1's conditions, under which a round contracts."""
        return min(0.5 / smoothness, 1.0 / (self.local_steps * (smoothness + strong_convexity)))
