"""FedSplit (Pathak & Wainwright 2020): Peaceman–Rachford splitting, with proximal steps by local gradients."""

from dataclasses import dataclass
from typing import ClassVar

from fedscaffold.core.checks import positive, set_fields
from fedscaffold.core.types import Array, ServerState
from fedscaffold.methods.base import ControlVariates, FixedStepsMethod, KeepsControlVariates


@dataclass(frozen=True, kw_only=True)
class FedSplit(KeepsControlVariates, FixedStepsMethod):
    """θ_c ← θ_c − γ(g_c(θ_c) + ξ_c + λ(θ_c − θ)), H times; θ⁺ = 2θ̄ − θ; ξ_c ← ξ_c + 2λ(θ_c − θ̄).

    θ̄ = Σ w_c θ_c. The local steps approximate the proximal step prox_{sf_c}(2θ − z_c) of the paper, whose z_c is
    θ + sξ_c with s = 1/λ. Σ w_c ξ_c = 0 holds throughout. The optimum with ξ_c = −∇f_c(θ*) is a fixed point for
    any H, so that proximal steps need not be exact; all clients take part in every round.

    Parameters
    ----------
    step_size
        γ > 0, the step size of the local steps.
    local_steps
        H ≥ 1, the number of local steps in a round.
    proximal_weight
        λ = 1/s > 0, the weight of the proximal term; about √(Lμ) is best where proximal steps are exact.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> method = fs.FedSplit(step_size=0.05, local_steps=10, proximal_weight=0.5)
    >>> problem = fs.problems.RidgeStream(n_clients=4, dim=2)
    >>> trace = fs.run(problem, method, rounds=50, batch_size=5, engine="reference")
    >>> bool(trace.mse[0, -1] < 0.1 * trace.mse[0, 0])
    True
    """

    kind: ClassVar[str] = "fedsplit"

    proximal_weight: float

    def __post_init__(self) -> None:
        super().__post_init__()
        set_fields(self, proximal_weight=positive("proximal_weight", self.proximal_weight))

    @property
    def pull(self) -> float:  # type: ignore[override]
        """λ, the weight of the pull to where local steps began."""
        return self.proximal_weight

    def aggregate(self, server: ServerState, mean: Array, share: Array) -> ServerState:
        """θ⁺ = 2θ̄ − θ."""
        return ServerState(2.0 * mean - server.theta)

    def update_clients(
        self, client_state: ControlVariates, sent: Array, before: ServerState, after: ServerState
    ) -> ControlVariates:
        """ξ_c ← ξ_c + 2λ(θ_c − θ̄), with θ̄ = (θ + θ⁺)/2."""
        change = sent - 0.5 * (before.theta + after.theta)[:, None, :]
        return ControlVariates(xi=client_state.xi + 2.0 * self.proximal_weight * change)

    def safe_step_size(self, smoothness: float, strong_convexity: float) -> float:
        """1/(L + λ), with which a local step on f_c + λ/2 ‖·‖² contracts."""
        return 1.0 / (smoothness + self.proximal_weight)
