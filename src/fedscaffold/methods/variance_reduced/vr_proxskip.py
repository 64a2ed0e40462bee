"""ProxSkip with variance-reduced local gradients (ProxSkip-VR; Malinovsky, Yi & Richtárik 2022)."""

from dataclasses import dataclass
from typing import ClassVar

from fedscaffold.core.types import Array, Exchange, ExchangedGradients, ServerState
from fedscaffold.methods.base import ControlVariates
from fedscaffold.methods.proxskip import ProxSkip


@dataclass(frozen=True, kw_only=True)
class VRProxSkip(ProxSkip):
    """θ_c ← θ_c − γ(g_c(θ_c) − g_c(θ) + ∇f_c(θ) + ξ_c), both gradients on the same records; then as ProxSkip.

    After each step there is a communication with probability p: θ⁺ = Σ w_c θ_c, ξ_c ← ξ_c + p(θ_c − θ⁺)/γ. Each
    client computes its full gradient ∇f_c(θ) once in a round and keeps it. So without further communication it
    reaches the optimum with small batches too. The paper's L-SVRG renews the reference model with some probability
    at each local step, here it is θ of the last communication. On full batches it is ProxSkip.

    Parameters
    ----------
    step_size
        γ > 0, the step size of the local steps.
    communication_probability
        p in (0, 1], the probability of a communication after each local step.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> problem = fs.problems.paper("regression", n_clients=4)
    >>> method = fs.VRProxSkip(step_size=2e-3, communication_probability=0.05)
    >>> trace = fs.run(problem, method, rounds=300, batch_size=10)
    >>> bool(trace.mse[0, -1] < 1e-6 * trace.mse[0, 0])
    True
    """

    kind: ClassVar[str] = "vr_proxskip"
    exchange: ClassVar[Exchange | None] = "own"

    def anchor(self, client_state: ControlVariates, server: ServerState) -> Array:
        """θ, where gradients on the same records are subtracted."""
        return server.theta

    def correction(
        self, client_state: ControlVariates, server: ServerState, exchanged: ExchangedGradients | None
    ) -> Array:
        """∇f_c(θ) + ξ_c; ξ_c alone between rounds."""
        return client_state.xi if exchanged is None else client_state.xi + exchanged.own

    def safe_step_size(self, smoothness: float, strong_convexity: float) -> float:
        """1/(6L), as for L-SVRG, whatever p is."""
        return 1.0 / (6.0 * smoothness)
