"""Amplified Scaffold (Crawshaw & Liu 2024), for clients that take turns: windows of rounds, then a longer step."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedscaffold.core.checks import positive, set_fields, whole_number
from fedscaffold.core.types import Array, ExchangedGradients, IntArray
from fedscaffold.methods.base import FixedStepsCohortMethod, initial_control_variates
from fedscaffold.methods.compression.base import halves


class WindowVariates(NamedTuple):
    """Client state; each (repetitions, clients, dim)."""

    own: Array  # c_i, what corrected the last window in which the client took part
    mean: Array  # its mean gradient in that window
    turns: Array  # rounds of that window in which it took part
    window: Array  # which window that was, from 1 on; 0 for none


class WindowServerState(NamedTuple):
    """Server state; each (repetitions, dim)."""

    theta: Array
    begin: Array  # θ at the beginning of the window
    variate: Array  # c = Σ w_i c_i
    mean: Array  # Σ w_i of the clients' mean gradients so far, the next c
    round: Array  # rounds since the beginning of the run


@dataclass(frozen=True, kw_only=True)
class AmplifiedScaffold(FixedStepsCohortMethod):
    """θ_i ← θ_i − γ(g_i(θ_i) − c_i + c), H times; θ⁺ = mean θ_i; after P rounds θ⁺ ← θ° + a(θ⁺ − θ°).

    θ° is the model at the beginning of the window. c_i and c change at the end of windows alone: c_i to client i's
    mean gradient over the rounds of the window in which it took part, if there were any, and c to Σ w_i c_i. So a
    window sees clients that are available by turns as if they had taken part together. With P = 1 it is
    `TwoSidedScaffold` with a as the server's step size.

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
    window
        P ≥ 1, the number of rounds in which clients take their turns.
    amplification
        a > 0, by which the window's progress is multiplied.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> method = fs.AmplifiedScaffold(step_size=0.02, local_steps=5, window=2)
    >>> problem = fs.problems.RidgeStream(n_clients=4, dim=2)
    >>> turns = fs.simulation.Periodic(groups=2)
    >>> trace = fs.run(problem, method, rounds=100, batch_size=5, engine="reference", availability=turns)
    >>> bool(trace.mse[0, -1] < 0.1 * trace.mse[0, 0])
    True
    """

    kind: ClassVar[str] = "amplified_scaffold"
    vectors_per_round: ClassVar[int] = 4  # θ and c down, θ_i and the change of the mean gradient up

    window: int
    amplification: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        amplification = positive("amplification", self.amplification)
        set_fields(self, window=whole_number("window", self.window, least=1), amplification=amplification)

    def init_clients(
        self, repetitions: int, weights: Array, dim: int, control_variates: ArrayLike | None
    ) -> WindowVariates:
        """c_i = −ξ_i: zero, or from given control variates with Σ w_i ξ_i = 0."""
        own = -initial_control_variates(repetitions, weights, dim, control_variates)
        return WindowVariates(own, own.copy(), np.zeros_like(own), np.zeros_like(own))

    def init_server(self, theta: Array) -> WindowServerState:
        """θ, and c = Σ w_i c_i = 0."""
        return WindowServerState(theta, theta, theta * 0.0, theta * 0.0, theta * 0.0)

    def correction(
        self, client_state: WindowVariates, server: WindowServerState, exchanged: ExchangedGradients | None
    ) -> Array:
        """ξ_i = c − c_i."""
        return server.variate[:, None, :] - self._current(client_state, server).own

    def message(
        self, client_state: WindowVariates, local: Array, server: WindowServerState, step_counts: IntArray
    ) -> Array:
        """θ_i, and by how much this round's mean gradient changes the client's mean over the window."""
        now = self._current(client_state, server)
        gradient = (server.theta[:, None, :] - local) / (self.step_size * self.local_steps)
        gradient += now.own - server.variate[:, None, :]
        return np.concatenate([local, (gradient - now.mean) / (now.turns + 1.0)], axis=-1)

    def aggregate(self, server: WindowServerState, mean: Array, share: Array) -> WindowServerState:
        """θ⁺; at the end of a window also the longer step and the next c."""
        theta, change = halves(mean)
        following, done = server.mean + share[:, None] * change, server.round + 1.0
        ends = done % self.window == 0.0
        theta = np.where(ends, server.begin + self.amplification * (theta - server.begin), theta)
        begin, variate = np.where(ends, theta, server.begin), np.where(ends, following, server.variate)
        return WindowServerState(theta, begin, variate, following, done)

    def update_clients(
        self, client_state: WindowVariates, sent: Array, before: WindowServerState, after: WindowServerState
    ) -> WindowVariates:
        """Return the client's mean over the window, with this round."""
        now = self._current(client_state, before)
        return now._replace(mean=now.mean + halves(sent)[1], turns=now.turns + 1.0)

    def safe_step_size(self, smoothness: float, strong_convexity: float) -> float:
        """1/(81 L H P max(1, a)), as for `TwoSidedScaffold` with P H steps."""
        return 1.0 / (81.0 * smoothness * self.local_steps * self.window * max(1.0, self.amplification))

    def _current(self, client_state: WindowVariates, server: WindowServerState) -> WindowVariates:
        """Return the state in the server's window: in a new one, c_i is the mean of the client's last one."""
        window = np.floor(server.round / self.window)[:, None, :] + 1.0
        new = client_state.window < window
        own, turns = np.where(new, client_state.mean, client_state.own), np.where(new, 0.0, client_state.turns)
        return WindowVariates(own, client_state.mean, turns, np.broadcast_to(window, own.shape))
