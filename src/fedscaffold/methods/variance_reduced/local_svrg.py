"""Shifted local SVRG (S-Local-SVRG; Gorbunov, Hanzely & Richtárik 2021): neither drift nor gradient noise."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedscaffold.core.types import Array, Exchange, ExchangedGradients, ServerState
from fedscaffold.methods.base import FixedStepsMethod, NoClientState


@dataclass(frozen=True, kw_only=True)
class LocalSvrg(FixedStepsMethod):
    """θ_c ← θ_c − γ(g_c(θ_c) − g_c(θ) + ∇f(θ)), H times, both gradients on the same records; θ⁺ = Σ w_c θ_c.

    Before the local steps clients exchange their full gradients at θ, whose mean is ∇f(θ). So it reaches the
    optimum with small batches too. The paper renews the reference model with some probability, here it is θ in
    every round. On full batches it is FedLin.

    Parameters
    ----------
    step_size
        γ > 0, the step size of the local steps.
    local_steps
        H ≥ 1, the number of local steps in a round.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> problem = fs.problems.paper("regression", n_clients=4)
    >>> method = fs.LocalSvrg(step_size=3e-3, local_steps=20)
    >>> trace = fs.run(problem, method, rounds=300, batch_size=10)
    >>> bool(trace.mse[0, -1] < 1e-6 * trace.mse[0, 0])
    True
    """

    kind: ClassVar[str] = "local_svrg"
    exchange: ClassVar[Exchange | None] = "full"
    vectors_per_round: ClassVar[int] = 4  # θ and ∇f(θ) down, ∇f_c(θ) and θ_c up

    def anchor(self, client_state: NoClientState, server: ServerState) -> Array:
        """θ, where gradients on the same records are subtracted."""
        return server.theta

    def correction(
        self, client_state: NoClientState, server: ServerState, exchanged: ExchangedGradients | None
    ) -> Array:
        """∇f(θ), the same for all clients; 0 between rounds, where no gradients have been exchanged."""
        if exchanged is None:
            return np.zeros((1, 1, server.theta.shape[-1]))
        return exchanged.mean[:, None, :]

    def safe_step_size(self, smoothness: float, strong_convexity: float) -> float:
        """1/(10 L H), as for FedLin."""
        return 0.1 / (smoothness * self.local_steps)
