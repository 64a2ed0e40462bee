"""Tamuna (Condat, Agarský, Malinovsky & Richtárik 2023): ProxSkip with compression and partial participation.

With all clients it is CompressedScaffnew (Condat, Agarský & Richtárik 2022).
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedscaffold.core.checks import set_fields, whole_number
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array, ServerState
from fedscaffold.methods.base import CohortMethod, ControlVariates
from fedscaffold.methods.compression.base import halves
from fedscaffold.methods.compression.masks import CoordinateMasks
from fedscaffold.methods.proxskip import ProxSkip


@dataclass(frozen=True, kw_only=True)
class Tamuna(ProxSkip, CohortMethod):
    """θ_c ← θ_c − γ(g_c(θ_c) + ξ_c), 1/p times on average, at random; then s clients send each coordinate.

    Which s of the round's clients these are is drawn anew in each round, so that each client sends its share of
    the coordinates, s over the number of participants. θ⁺ is the owners' mean of each coordinate, and owners of
    it take ξ_c ← ξ_c + pχ(θ_c − θ⁺)/γ, with χ = n(s − 1)/(s(n − 1)). Clients that miss a round keep their ξ_c,
    and Σ w_c ξ_c = 0 holds. With all clients and no compression it is ProxSkip.

    Parameters
    ----------
    step_size
        γ > 0, the step size of the local steps.
    communication_probability
        p in (0, 1], the probability of a communication after each local step.
    owners
        s ≥ 2, how many of the round's clients send each coordinate; None for all of them, without compression.
    participation
        Share of the clients that takes part in a round, in (0, 1].
    cohort
        Number of clients that take part in a round, instead of a share.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> method = fs.Tamuna(step_size=0.05, communication_probability=0.1, owners=2, cohort=4)
    >>> problem = fs.problems.RidgeStream(n_clients=8, dim=2)
    >>> trace = fs.run(problem, method, rounds=100, batch_size=5, engine="reference")
    >>> bool(trace.mse[0, -1] < 0.1 * trace.mse[0, 0])
    True
    """

    kind: ClassVar[str] = "tamuna"

    owners: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.owners is not None:
            set_fields(self, owners=whole_number("owners", self.owners, least=2))

    @property
    def compressor(self) -> CoordinateMasks:  # type: ignore[override]
        """Who sends which coordinates."""
        return CoordinateMasks(self.owners)

    def participants(self, n_clients: int) -> int:
        """Return the number of clients in a round, at least two: one alone would keep its ξ_c."""
        count = CohortMethod.participants(self, n_clients)
        if count == 1 < n_clients:
            raise InvalidInput("Tamuna needs two clients or more in a round")
        return count

    def aggregate(self, server: ServerState, mean: Array, share: Array) -> ServerState:
        """θ⁺ = Σ w_c m_c θ_c / Σ w_c m_c, coordinate by coordinate; θ where none was sent."""
        values, weights = halves(mean)
        return ServerState(np.where(weights > 0.0, values / np.where(weights > 0.0, weights, 1.0), server.theta))

    def update_clients(
        self, client_state: ControlVariates, sent: Array, before: ServerState, after: ServerState
    ) -> ControlVariates:
        """ξ_c ← ξ_c + pχ m_c(θ_c − θ⁺)/γ; the message is χ(m_c θ_c, m_c)."""
        values, mask = halves(sent)
        change = mask * after.theta[:, None, :]
        np.subtract(values, change, out=change)
        change *= self.communication_probability / self.step_size
        change += client_state.xi
        return ControlVariates(xi=change)
