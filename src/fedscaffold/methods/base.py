"""The base of most methods: all clients take part and send local models, which the server averages."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedscaffold.core.checks import numbers, positive, set_fields, whole_number
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.protocols import Compressor
from fedscaffold.core.types import Array, Exchange, ExchangedGradients, IntArray, ServerState

MOST_LOCAL_STEPS = 2**31 - 1  # compiled kernels count in 32 bits


class NoClientState(NamedTuple):
    """The client state of methods whose clients keep nothing between rounds."""


@dataclass(frozen=True, kw_only=True)
class BaseMethod:
    """Local SGD as a `core.protocols.Method`; other methods override their differences."""

    kind: ClassVar[str]
    exchange: ClassVar[Exchange | None] = None
    vectors_per_round: ClassVar[int] = 2
    clients_receive_new_theta: ClassVar[bool] = False  # whether `update_clients` needs θ⁺
    pull: ClassVar[float] = 0.0
    compressor: ClassVar[Compressor | None] = None
    download: ClassVar[Compressor | None] = None

    step_size: float

    def __post_init__(self) -> None:
        set_fields(self, step_size=positive("step_size", self.step_size))

    def participants(self, n_clients: int) -> int:
        """Return the number of clients in a round: all of them."""
        return n_clients

    def init_clients(self, repetitions: int, weights: Array, dim: int, control_variates: ArrayLike | None) -> Any:
        """Return the client state before the first round: empty; raise if control variates are given."""
        if control_variates is not None:
            raise InvalidInput(f"{type(self).__name__} has no control variates to start from; use Scaffold")
        return NoClientState()

    def init_server(self, theta: Array) -> Any:
        """Return the server state before the first round: the model θ alone."""
        return ServerState(theta)

    def start(self, client_state: Any, server: Any) -> Array:
        """Return the start of the local steps: the server's θ."""
        return server.theta

    def anchor(self, client_state: Any, server: Any) -> Array | None:
        """Return None: no gradients are subtracted."""
        return None

    def correction(self, client_state: Any, server: Any, exchanged: ExchangedGradients | None) -> Array:
        """ξ_c = 0, shape (1, 1, dim), the same for all clients and repetitions."""
        return np.zeros((1, 1, server.theta.shape[-1]))

    def message(self, client_state: Any, local: Array, server: Any, step_counts: IntArray) -> Array:
        """Return each client's message: its local model θ_c."""
        return local

    def aggregate(self, server: Any, mean: Array, share: Array) -> Any:
        """θ⁺ = Σ w_c θ_c over the clients that took part."""
        return ServerState(mean)

    def update_clients(self, client_state: Any, sent: Array, before: Any, after: Any) -> Any:
        """Return the client state unchanged; this method keeps none."""
        return client_state


@dataclass(frozen=True, kw_only=True)
class FixedStepsMethod(BaseMethod):
    """A method whose clients all take the same number of local steps in every round, `local_steps`.

    Parameters
    ----------
    step_size
        γ > 0, the step size of the local steps.
    local_steps
        H ≥ 1, the number of local steps in a round.
    """

    local_steps: int

    def __post_init__(self) -> None:
        super().__post_init__()
        set_fields(self, local_steps=whole_number("local_steps", self.local_steps, least=1, most=MOST_LOCAL_STEPS))

    def local_step_counts(self, n_clients: int, round_uniform: Array) -> IntArray:
        """H, the same for all clients, shape (1, 1)."""
        return same_for_all(self.local_steps)


@dataclass(frozen=True, kw_only=True)
class CohortMethod(BaseMethod):
    """A method whose rounds may take a cohort of the clients, drawn from the run's seed.

    Parameters
    ----------
    participation
        Share of the clients that takes part in a round, in (0, 1].
    cohort
        Number of clients that take part in a round, instead of a share.
    """

    participation: float = 1.0
    cohort: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        set_fields(self, participation=positive("participation", self.participation))
        if self.participation > 1.0:
            raise InvalidInput(f"participation is a share of the clients, at most 1; got {self.participation!r}")
        if self.cohort is not None:
            set_fields(self, cohort=whole_number("cohort", self.cohort, least=1))
            if self.participation != 1.0:
                raise InvalidInput("give participation (a share) or cohort (a number), not both")

    def participants(self, n_clients: int) -> int:
        """Return the number of clients in a round: `cohort`, or the share rounded, at least one."""
        if self.cohort is None:
            return max(1, round(self.participation * n_clients))
        if self.cohort > n_clients:
            raise InvalidInput(f"cohort={self.cohort}, but there are {n_clients} clients")
        return self.cohort


@dataclass(frozen=True, kw_only=True)
class FixedStepsCohortMethod(FixedStepsMethod, CohortMethod):
    """A method with rounds of `local_steps` local steps, on all clients or on a cohort of them.

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
    """


def same_for_all(local_steps: int) -> IntArray:
    """Return the same number of local steps for all clients and repetitions, shape (1, 1)."""
    return np.array([[local_steps]], dtype=np.int64)


class ControlVariates(NamedTuple):
    """Client state: the control variate ξ_c of each client."""

    xi: Array  # (repetitions, clients, dim)


class KeepsControlVariates:
    """For methods whose clients keep a control variate ξ_c, add it to their gradients, and change it by θ⁺."""

    clients_receive_new_theta: ClassVar[bool] = True

    def init_clients(
        self, repetitions: int, weights: Array, dim: int, control_variates: ArrayLike | None
    ) -> ControlVariates:
        """ξ_c = 0, or given values with Σ w_c ξ_c = 0."""
        return ControlVariates(xi=initial_control_variates(repetitions, weights, dim, control_variates))

    def correction(
        self, client_state: ControlVariates, server: ServerState, exchanged: ExchangedGradients | None
    ) -> Array:
        """ξ_c, which each client adds to its gradients."""
        return client_state.xi


class KeepsOwnModels:
    """For methods whose clients continue from their own models, which are `apart` from the server's θ."""

    clients_receive_new_theta: ClassVar[bool] = True

    def start(self, client_state: Any, server: ServerState) -> Array:
        """Return the start of the local steps: each client's own model."""
        return server.theta[:, None, :] + client_state.apart


def initial_control_variates(
    repetitions: int, weights: Array, dim: int, control_variates: ArrayLike | None
) -> Array:
    """ξ_c = 0, or given values with Σ w_c ξ_c = 0; shape (repetitions, clients, dim)."""
    shape = (repetitions, weights.size, dim)
    if control_variates is None:
        return np.zeros(shape)
    try:
        values = numbers(control_variates)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"control_variates0 must hold numbers: {error}") from None
    try:
        xi = np.broadcast_to(values, shape)
    except ValueError:
        raise InvalidInput(
            f"control_variates0 must have shape {shape[1:]} or {shape}, got {values.shape}"
        ) from None
    if not np.isfinite(xi).all():
        raise InvalidInput("control_variates0 holds NaN or infinite values")
    drift = np.abs(np.einsum("c,rcj->rj", weights, xi)).max()
    if drift > 1e-9 * max(1.0, np.abs(xi).max()):  # thousands of times the rounding of a sum over clients
        raise InvalidInput(
            f"control variates must sum to zero over clients (weighted), but the sum has an entry of "
            f"size {drift:.3g}; subtract their weighted mean"
        )
    return xi.copy()
