"""What most methods have in common: everyone takes part, sends a local model, and the server averages."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedscaffold.core.checks import positive, whole_number
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array, ExchangedGradients, GradientKind, IntArray, ServerState


class NoClientState(NamedTuple):
    """Clients that remember nothing."""


@dataclass(frozen=True, kw_only=True)
class Base:
    """The usual answers to what `fedscaffold.core.types.Method` asks; without changes it is local SGD."""

    kind: ClassVar[str]
    exchange: ClassVar[GradientKind | None] = None
    vectors_per_round: ClassVar[int] = 2
    remembers_theta: ClassVar[bool] = False  # whether the server's new θ goes into a client's memory

    step_size: float

    def __post_init__(self) -> None:
        positive("step_size", self.step_size)

    def participants(self, n_clients: int) -> int:
        """Everyone."""
        return n_clients

    def init_clients(self, repetitions: int, weights: Array, dim: int, control_variates: ArrayLike | None) -> Any:
        """No memory."""
        if control_variates is not None:
            raise InvalidInput(f"{type(self).__name__} has no control variates to start from; use Scaffold")
        return NoClientState()

    def init_server(self, theta: Array) -> Any:
        """The server knows θ."""
        return ServerState(theta)

    def correction(self, client_state: Any, server: Any, exchanged: ExchangedGradients | None) -> Array:
        """ξ_c = 0, the same for all clients and repetitions."""
        return np.zeros((1, 1, server.theta.shape[-1]))

    def message(self, local: Array, server: Any, step_counts: IntArray) -> Array:
        """θ_c."""
        return local

    def aggregate(self, server: Any, mean: Array, share: Array) -> Any:
        """θ⁺ = Σ w_c θ_c, over those who took part."""
        return ServerState(mean)

    def update_clients(self, client_state: Any, sent: Array, before: Any, after: Any) -> Any:
        """Nothing."""
        return client_state


@dataclass(frozen=True, kw_only=True)
class Sampled(Base):
    """A method in whose rounds a cohort of the clients may take part, drawn from the run's seed."""

    participation: float = 1.0
    cohort: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if positive("participation", self.participation) > 1.0:
            raise InvalidInput(f"participation is a share of the clients, at most 1; got {self.participation!r}")
        if self.cohort is not None:
            whole_number("cohort", self.cohort, least=1)
            if self.participation != 1.0:
                raise InvalidInput("give participation (a share) or cohort (a number), not both")

    def participants(self, n_clients: int) -> int:
        """`cohort`, or the nearest whole number to the share, at least one."""
        if self.cohort is None:
            return max(1, round(self.participation * n_clients))
        if self.cohort > n_clients:
            raise InvalidInput(f"cohort={self.cohort}, but there are {n_clients} clients")
        return self.cohort


def same_length(local_steps: int) -> IntArray:
    """The same number of local steps for all clients and repetitions."""
    return np.array([[local_steps]], dtype=np.int64)
