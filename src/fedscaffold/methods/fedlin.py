"""FedLin (Mitra et al. 2021): gradients at θ are exchanged before every round's local steps."""

from dataclasses import dataclass, field
from typing import ClassVar, get_args

import numpy as np

from fedscaffold.core.checks import choice
from fedscaffold.core.types import Array, ExchangedGradients, GradientKind, ServerState
from fedscaffold.methods.base import FixedStepsMethod, NoClientState


@dataclass(frozen=True, kw_only=True)
class FedLin(FixedStepsMethod):
    """θ_c ← θ_c − γ(g_c(θ_c) + ξ_c), H times, with ξ_c = ḡ(θ) − ĝ_c(θ); θ⁺ = Σ w_c θ_c.

    The clients keep no state, but every round takes one more gradient and two more vectors per client.

    Parameters
    ----------
    step_size
        γ > 0, the step size of the local steps.
    local_steps
        H ≥ 1, the number of local steps in a round.
    correction_gradients
        Which gradients ĝ_c(θ) are: "full" on all of a client's records, "minibatch" on a batch drawn for it.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> method = fs.FedLin(step_size=0.05, local_steps=10, correction_gradients="minibatch")
    >>> problem = fs.problems.RidgeStream(n_clients=4, dim=2)
    >>> trace = fs.run(problem, method, rounds=50, batch_size=5, engine="reference")
    >>> bool(trace.mse[0, -1] < 0.1 * trace.mse[0, 0])
    True
    """

    kind: ClassVar[str] = "fedlin"
    vectors_per_round: ClassVar[int] = 4  # θ and ḡ down, ĝ_c and θ_c up

    correction_gradients: GradientKind = field(default="full")

    def __post_init__(self) -> None:
        super().__post_init__()
        choice("correction_gradients", self.correction_gradients, get_args(GradientKind))

    @property
    def exchange(self) -> GradientKind:  # type: ignore[override]
        """Which gradients ĝ_c(θ) clients exchange before their local steps."""
        return self.correction_gradients

    def correction(
        self, client_state: NoClientState, server: ServerState, exchanged: ExchangedGradients | None
    ) -> Array:
        """ξ_c = ḡ(θ) − ĝ_c(θ), with ḡ = Σ w_c ĝ_c; 0 between rounds, where no gradients have been exchanged."""
        if exchanged is None:
            return np.zeros((1, 1, server.theta.shape[-1]))
        return exchanged.mean[:, None, :] - exchanged.own

    def safe_step_size(self, smoothness: float, strong_convexity: float) -> float:
        """1/(10 L H), as in Mitra et al.'s theorems."""
        return 0.1 / (smoothness * self.local_steps)
