"""RandProx in its federated form (Condat & Richtárik 2022): some coordinates are averaged, the others stay."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedscaffold.core.checks import set_fields
from fedscaffold.core.types import Array, ServerState
from fedscaffold.methods.base import KeepsOwnModels, initial_control_variates
from fedscaffold.methods.compression.base import checked_share, halves
from fedscaffold.methods.compression.masks import SharedCoordinates
from fedscaffold.methods.proxskip import ProxSkip


class OwnModels(NamedTuple):
    """Client state: control variates, and how far each client's model is from the server's θ."""

    xi: Array  # (repetitions, clients, dim)
    apart: Array  # (repetitions, clients, dim)


@dataclass(frozen=True, kw_only=True)
class RandProx(KeepsOwnModels, ProxSkip):
    """θ_c ← θ_c − γ(g_c(θ_c) + ξ_c), and after each step with probability p a communication of k coordinates.

    The k coordinates are drawn anew, the same for all clients: there θ_c becomes Σ w_c θ_c, and ξ_c moves by
    pk/(dγ) times by how much θ_c was larger. Elsewhere clients keep their own models, with which they go on. With
    all coordinates it is ProxSkip.

    Parameters
    ----------
    step_size
        γ > 0, the step size of the local steps.
    communication_probability
        p in (0, 1], the probability of a communication after each local step.
    share
        k/d in (0, 1], the share of the coordinates in a communication, rounded up.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> method = fs.RandProx(step_size=0.05, communication_probability=0.5, share=0.5)
    >>> problem = fs.problems.RidgeStream(n_clients=4, dim=4)
    >>> trace = fs.run(problem, method, rounds=200, batch_size=5, engine="reference")
    >>> bool(trace.mse[0, -1] < 0.1 * trace.mse[0, 0])
    True
    """

    kind: ClassVar[str] = "randprox"

    share: float

    def __post_init__(self) -> None:
        super().__post_init__()
        set_fields(self, share=checked_share(self.share))

    @property
    def compressor(self) -> SharedCoordinates:  # type: ignore[override]
        """Which coordinates are sent."""
        return SharedCoordinates(self.share)

    def init_clients(  # type: ignore[override]
        self, repetitions: int, weights: Array, dim: int, control_variates: ArrayLike | None
    ) -> OwnModels:
        """ξ_c = 0, or given values with Σ w_c ξ_c = 0; all models are the server's."""
        xi = initial_control_variates(repetitions, weights, dim, control_variates)
        return OwnModels(xi, np.zeros_like(xi))

    def aggregate(self, server: ServerState, mean: Array, share: Array) -> ServerState:
        """θ⁺ = Σ w_c θ_c on the coordinates that were sent, θ elsewhere."""
        values, sent = halves(mean)
        return ServerState(np.where(sent > 0.0, values, server.theta))

    def update_clients(  # type: ignore[override]
        self, client_state: OwnModels, sent: Array, before: ServerState, after: ServerState
    ) -> OwnModels:
        """ξ_c ← ξ_c + pk/(dγ) (θ_c − θ⁺) on the coordinates that were sent; elsewhere θ_c stays."""
        values, mask = halves(sent)
        apart = values - after.theta[:, None, :]
        averaged = mask * apart
        apart -= averaged  # exactly 0 where coordinates were sent
        averaged *= self.communication_probability * self.compressor.kept(mask.shape[-1])
        averaged /= mask.shape[-1] * self.step_size
        averaged += client_state.xi
        return OwnModels(averaged, apart)
