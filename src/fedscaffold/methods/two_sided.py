"""Scaffold with a server step size and a server variate (Karimireddy et al. 2020), option II."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from numpy.typing import ArrayLike

from fedscaffold.core.checks import positive, whole_number
from fedscaffold.core.types import Array, ExchangedGradients, IntArray
from fedscaffold.methods.base import Sampled, same_length
from fedscaffold.methods.variates import initial_control_variates


class OwnVariate(NamedTuple):
    """What each client keeps between rounds: its variate c_i."""

    own: Array  # (repetitions, clients, dim)


class TwoSidedServerState(NamedTuple):
    """The model, and the server's variate c = Σ w_i c_i."""

    theta: Array
    variate: Array


@dataclass(frozen=True, kw_only=True)
class TwoSidedScaffold(Sampled):
    """θ_i ← θ_i − γ(g_i(θ_i) − c_i + c), H times; θ⁺ = θ + η(mean θ_i − θ).

    Then c_i⁺ = c_i − c + (θ − θ_i)/(γH) for those who took part, and c⁺ = c + s mean(c_i⁺ − c_i). The means are
    over those who took part, S, and s is their share of all clients' weight (S/N where weights are equal). With
    everyone and η = 1 it is Algorithm 1, with ξ_i = c − c_i.

    Parameters
    ----------
    step_size
        γ > 0, of the local steps.
    local_steps
        H ≥ 1.
    server_step_size
        η > 0, of the server.
    participation
        Share of the clients that takes part in a round.
    cohort
        How many take part, instead of a share.
    """

    kind: ClassVar[str] = "two_sided"
    vectors_per_round: ClassVar[int] = 3  # θ and c down, θ_i up

    local_steps: int
    server_step_size: float

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number("local_steps", self.local_steps, least=1)
        positive("server_step_size", self.server_step_size)

    def local_step_counts(self, n_clients: int, round_uniform: Array) -> IntArray:
        """H, for everyone."""
        return same_length(self.local_steps)

    def init_clients(
        self, repetitions: int, weights: Array, dim: int, control_variates: ArrayLike | None
    ) -> OwnVariate:
        """c_i = −ξ_i."""
        return OwnVariate(own=-initial_control_variates(repetitions, weights, dim, control_variates))

    def init_server(self, theta: Array) -> TwoSidedServerState:
        """Starts with c = Σ w_i c_i = 0."""
        return TwoSidedServerState(theta, theta * 0.0)

    def correction(
        self, client_state: OwnVariate, server: TwoSidedServerState, exchanged: ExchangedGradients | None
    ) -> Array:
        """ξ_i = c − c_i."""
        return server.variate[:, None, :] - client_state.own

    def aggregate(self, server: TwoSidedServerState, mean: Array, share: Array) -> TwoSidedServerState:
        """θ⁺ and c⁺; the mean of c_i⁺ − c_i is −c + (θ − mean θ_i)/(γH)."""
        theta, c = server
        change = (theta - mean) / (self.step_size * self.local_steps) - c
        return TwoSidedServerState(theta + self.server_step_size * (mean - theta), c + share[:, None] * change)

    def update_clients(
        self, client_state: OwnVariate, sent: Array, before: TwoSidedServerState, after: TwoSidedServerState
    ) -> OwnVariate:
        """c_i⁺ = c_i − c + (θ − θ_i)/(γH)."""
        own = before.theta[:, None, :] - sent
        own /= self.step_size * self.local_steps
        own -= before.variate[:, None, :]
        own += client_state.own
        return OwnVariate(own=own)

    def safe_step_size(self, smoothness: float, strong_convexity: float) -> float:
        """1/(81 L H max(1, η)), as in Karimireddy et al.'s theorem."""
        return 1.0 / (81.0 * smoothness * self.local_steps * max(1.0, self.server_step_size))
