"""Scaffold with a server step size and a server variate (Karimireddy et al. 2020), option II."""

from dataclasses import dataclass
from typing import ClassVar

from fedscaffold.core.checks import positive, set_fields
from fedscaffold.core.types import Array
from fedscaffold.methods.base import FixedStepsCohortMethod
from fedscaffold.methods.both_sides import ClientVariates, KeepsVariatesOnBothSides, VariateServerState


@dataclass(frozen=True, kw_only=True)
class TwoSidedScaffold(KeepsVariatesOnBothSides, FixedStepsCohortMethod):
    """θ_i ← θ_i − γ(g_i(θ_i) − c_i + c), H times; θ⁺ = θ + η(mean θ_i − θ).

    Then c_i⁺ = c_i − c + (θ − θ_i)/(γH) for the clients that took part, and c⁺ = c + s mean(c_i⁺ − c_i). The means
    are over the clients that took part, and s is their share of all clients' weight (S/N for S of N clients with
    equal weights). With all clients and η = 1 it is Algorithm 1 (`Scaffold`), with ξ_i = c − c_i.

    Parameters
    ----------
    step_size
        γ > 0, the step size of the local steps.
    local_steps
        H ≥ 1, the number of local steps in a round.
    participation
        Share of the clients that takes part in a round, in (0, 1].
    cohort
        Number of clients that take part in a round, instead of a share.
    server_step_size
        η > 0, the step size of the server.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> method = fs.TwoSidedScaffold(step_size=0.05, local_steps=10, server_step_size=1.0)
    >>> problem = fs.problems.RidgeStream(n_clients=4, dim=2)
    >>> trace = fs.run(problem, method, rounds=50, batch_size=5, engine="reference")
    >>> bool(trace.mse[0, -1] < 0.1 * trace.mse[0, 0])
    True
    """

    kind: ClassVar[str] = "two_sided"
    vectors_per_round: ClassVar[int] = 3  # θ and c down, θ_i up

    server_step_size: float

    def __post_init__(self) -> None:
        super().__post_init__()
        set_fields(self, server_step_size=positive("server_step_size", self.server_step_size))

    def aggregate(self, server: VariateServerState, mean: Array, share: Array) -> VariateServerState:
        """θ⁺ and c⁺; the mean of c_i⁺ − c_i is −c + (θ − mean θ_i)/(γH)."""
        theta, c = server
        change = (theta - mean) / (self.step_size * self.local_steps) - c
        return VariateServerState(theta + self.server_step_size * (mean - theta), c + share[:, None] * change)

    def update_clients(
        self, client_state: ClientVariates, sent: Array, before: VariateServerState, after: VariateServerState
    ) -> ClientVariates:
        """c_i⁺ = c_i − c + (θ − θ_i)/(γH)."""
        own = before.theta[:, None, :] - sent
        own /= self.step_size * self.local_steps
        own -= before.variate[:, None, :]
        own += client_state.own
        return ClientVariates(own=own)

    def safe_step_size(self, smoothness: float, strong_convexity: float) -> float:
        """1/(81 L H max(1, η)), as in Karimireddy et al.'s theorem."""
        return 1.0 / (81.0 * smoothness * self.local_steps * max(1.0, self.server_step_size))
