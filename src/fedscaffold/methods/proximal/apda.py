"""APDA with inexact proximal steps (Sadiev, Kovalev & Richtárik 2022): an accelerated primal–dual local method."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedscaffold.core.checks import positive, set_fields
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array, ExchangedGradients, IntArray, ServerState
from fedscaffold.methods.base import FixedStepsMethod, KeepsOwnModels, initial_control_variates


class PrimalDual(NamedTuple):
    """Client state; each (repetitions, clients, dim)."""

    xi: Array  # ξ_c, the dual variable
    ahead: Array  # ξ_c extrapolated, which corrects the next round
    apart: Array  # how far the client's model is from the server's


@dataclass(frozen=True, kw_only=True)
class Apda(KeepsOwnModels, FixedStepsMethod):
    """θ_c ← θ_c − γ(g_c(θ_c) + ξ̂_c + λ(θ_c − x_c)), H times from x_c, the model that the client ended with before.

    Then m_c = θ_c + λ/(2L) (θ_c − x_c) is sent, θ⁺ = Σ w_c m_c, ξ_c⁺ = ξ_c + λ(m_c − θ⁺) − λ/(2L) (ξ_c − ξ̂_c),
    and ξ̂_c⁺ = ξ_c⁺ + (1 − √(μ/L))(ξ_c⁺ − ξ_c), with λ = √(Lμ). This is the method of Chambolle and Pock with
    local steps for the proximal ones, whose dual step also has the gradient at θ_c. The paper computes that
    gradient; here it is the one that an exact proximal step would have, −ξ̂_c − λ(θ_c − x_c). All clients take
    part in every round.

    Parameters
    ----------
    step_size
        γ > 0, the step size of the local steps.
    local_steps
        H ≥ 1, the number of local steps in a round; some multiple of √κ for exact enough proximal steps.
    smoothness, strong_convexity
        L ≥ μ > 0 of the clients' losses, for example `problem.smoothness(...)` and `problem.strong_convexity()`.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> problem = fs.problems.RidgeStream(n_clients=4, dim=2)
    >>> method = fs.Apda(step_size=0.05, local_steps=10, smoothness=3.0, strong_convexity=0.5)
    >>> trace = fs.run(problem, method, rounds=50, batch_size=5, engine="reference")
    >>> bool(trace.mse[0, -1] < 0.1 * trace.mse[0, 0])
    True
    """

    kind: ClassVar[str] = "apda"

    smoothness: float
    strong_convexity: float

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("smoothness", "strong_convexity"):
            set_fields(self, **{name: positive(name, getattr(self, name))})
        if self.strong_convexity > self.smoothness:
            raise InvalidInput("strong_convexity must be at most smoothness")

    @property
    def pull(self) -> float:  # type: ignore[override]
        """λ = √(Lμ), the weight of the pull to where local steps began."""
        return float(np.sqrt(self.smoothness * self.strong_convexity))

    def init_clients(
        self, repetitions: int, weights: Array, dim: int, control_variates: ArrayLike | None
    ) -> PrimalDual:
        """ξ_c = 0, or given values with Σ w_c ξ_c = 0; all models are the server's."""
        xi = initial_control_variates(repetitions, weights, dim, control_variates)
        return PrimalDual(xi, xi.copy(), np.zeros_like(xi))

    def correction(
        self, client_state: PrimalDual, server: ServerState, exchanged: ExchangedGradients | None
    ) -> Array:
        """ξ̂_c, the extrapolated dual variable."""
        return client_state.ahead

    def message(self, client_state: PrimalDual, local: Array, server: ServerState, step_counts: IntArray) -> Array:
        """m_c = θ_c + λ/(2L) (θ_c − x_c)."""
        return local + self.pull / (2.0 * self.smoothness) * (local - self.start(client_state, server))

    def update_clients(
        self, client_state: PrimalDual, sent: Array, before: ServerState, after: ServerState
    ) -> PrimalDual:
        """ξ_c⁺, ξ̂_c⁺ and the client's model θ_c, from what it sent."""
        part = self.pull / (2.0 * self.smoothness)
        local = (sent + part * self.start(client_state, before)) / (1.0 + part)
        xi, ahead, _ = client_state
        new = xi + self.pull * (sent - after.theta[:, None, :]) - part * (xi - ahead)
        momentum = 1.0 - np.sqrt(self.strong_convexity / self.smoothness)
        return PrimalDual(new, new + momentum * (new - xi), local - after.theta[:, None, :])

    def safe_step_size(self, smoothness: float, strong_convexity: float) -> float:
        """1/(L + λ), with which a local step on f_c + λ/2 ‖·‖² contracts."""
        return 1.0 / (smoothness + self.pull)
