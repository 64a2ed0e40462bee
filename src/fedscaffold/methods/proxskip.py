"""ProxSkip, also called Scaffnew (Mishchenko et al. 2022; with stochastic gradients, Hu & Huang 2023)."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedscaffold.core.checks import positive, set_fields
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array, IntArray, ServerState
from fedscaffold.methods.base import BaseMethod, ControlVariates, KeepsControlVariates

LEAST_PROBABILITY = 1e-8  # so that no round has more than some 2³¹ local steps


@dataclass(frozen=True, kw_only=True)
class ProxSkip(KeepsControlVariates, BaseMethod):
    """θ_c ← θ_c − γ(g_c(θ_c) + ξ_c), and after each step with probability p a communication.

    A communication is θ⁺ = Σ w_c θ_c; ξ_c ← ξ_c + p(θ_c − θ⁺)/γ. So it is Scaffold with a random number of
    local steps in each round, the same for all clients, with mean 1/p. Without noise and with p = 1/√κ it needs
    of the order of √κ communications, where Scaffold with a fixed γHL needs κ.

    Parameters
    ----------
    step_size
        γ > 0, the step size of the local steps.
    communication_probability
        p in (0, 1], the probability of a communication after a local step.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> method = fs.ProxSkip(step_size=0.05, communication_probability=0.1)
    >>> problem = fs.problems.RidgeStream(n_clients=4, dim=2)
    >>> trace = fs.run(problem, method, rounds=50, batch_size=5, engine="reference")
    >>> bool(trace.mse[0, -1] < 0.1 * trace.mse[0, 0])
    True
    """

    kind: ClassVar[str] = "proxskip"

    communication_probability: float

    def __post_init__(self) -> None:
        super().__post_init__()
        p = positive("communication_probability", self.communication_probability)
        if not LEAST_PROBABILITY <= p <= 1.0:
            raise InvalidInput(
                f"communication_probability must be at least {LEAST_PROBABILITY:g} and at most 1, got {p:g}"
            )
        set_fields(self, communication_probability=p)

    def local_step_counts(self, n_clients: int, round_uniform: Array) -> IntArray:
        """Geometric with mean 1/p: the smallest h with (1 − p)^h ≤ round_uniform, shape (repetitions, 1)."""
        if self.communication_probability == 1.0:
            return np.ones((1, 1), dtype=np.int64)
        steps = np.ceil(np.log(round_uniform) / np.log1p(-self.communication_probability))
        return np.maximum(steps, 1.0).astype(np.int64)[:, None]

    def update_clients(
        self, client_state: ControlVariates, sent: Array, before: ServerState, after: ServerState
    ) -> ControlVariates:
        """ξ_c ← ξ_c + p(θ_c − θ⁺)/γ."""
        change = sent - after.theta[:, None, :]
        change *= self.communication_probability / self.step_size
        change += client_state.xi
        return ControlVariates(xi=change)

    def safe_step_size(self, smoothness: float, strong_convexity: float) -> float:
        """1/L, whatever p is."""
        return 1.0 / smoothness
