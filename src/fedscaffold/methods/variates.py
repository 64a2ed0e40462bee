"""The control variates ξ_c that clients keep between rounds, and their initial values."""

from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedscaffold.core.checks import numbers
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array, ExchangedGradients, ServerState

SUM_TOLERANCE = 1e-9  # of the largest ξ_c: thousands of times the rounding of a sum over clients


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
    if drift > SUM_TOLERANCE * max(1.0, np.abs(xi).max()):
        raise InvalidInput(
            f"control variates must sum to zero over clients (weighted), but the sum has an entry of "
            f"size {drift:.3g}; subtract their weighted mean"
        )
    return xi.copy()
