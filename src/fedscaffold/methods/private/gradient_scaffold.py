"""Scaffold whose clients send the sum of their local gradients, for servers that learn noisy sums only.

With all clients and without noise it is Algorithm 1 (`Scaffold`): since Σ w_c ξ_c = 0, the server's θ⁺ is the same
whether clients send θ_c or θ_c + γHξ_c = θ − γ Σ_h g_c(θ_c^h). The difference is in noise. The message of
Algorithm 1 takes back what the client sent the round before, the noise that it added then included; several
noisy sums together would therefore say more than each of them. Here a message depends on the client's own rows and
on the θ that everybody knows, and on nothing else that was sent.
"""

from dataclasses import dataclass
from typing import ClassVar

from fedscaffold.core.types import Array, IntArray, ServerState
from fedscaffold.methods.base import ControlVariates, FixedStepsMethod, KeepsControlVariates


@dataclass(frozen=True, kw_only=True)
class GradientScaffold(KeepsControlVariates, FixedStepsMethod):
    """θ_c ← θ_c − γ(g_c(θ_c) + ξ_c), H times; θ⁺ = Σ w_c (θ_c + γHξ_c).

    θ_c + γHξ_c is θ − γ times the sum of the client's gradients. Then ξ_c = (θ_c + γHξ_c − θ⁺)/(γH): the mean of
    all clients' gradients in this round minus the client's. All clients take part in every round.

    Parameters
    ----------
    step_size
        γ > 0, the step size of the local steps.
    local_steps
        H ≥ 1, the number of local steps in a round.

    Examples
    --------
    >>> import numpy as np
    >>> import fedscaffold as fs
    >>> problem = fs.problems.RidgeStream(n_clients=4, dim=2)
    >>> settings = {"step_size": 0.05, "local_steps": 10}
    >>> one, other = (
    ...     fs.run(problem, method(**settings), rounds=20, batch_size=5, engine="reference").theta
    ...     for method in (fs.GradientScaffold, fs.Scaffold)
    ... )
    >>> bool(np.allclose(one, other, atol=1e-12))
    True
    """

    kind: ClassVar[str] = "gradient_scaffold"

    def message(
        self, client_state: ControlVariates, local: Array, server: ServerState, step_counts: IntArray
    ) -> Array:
        """θ_c + γHξ_c: where the client's gradients alone would have led."""
        return local + self.step_size * self.local_steps * client_state.xi

    def update_clients(
        self, client_state: ControlVariates, sent: Array, before: ServerState, after: ServerState
    ) -> ControlVariates:
        """ξ_c = (θ_c + γHξ_c − θ⁺)/(γH), whatever ξ_c was before."""
        return ControlVariates(xi=(sent - after.theta[:, None, :]) / (self.step_size * self.local_steps))

    def safe_step_size(self, smoothness: float, strong_convexity: float) -> float:
        """min{1/(2L), 1/(H(L+μ))}, as for Scaffold, which it is with all clients."""
        return min(0.5 / smoothness, 1.0 / (self.local_steps * (smoothness + strong_convexity)))
