"""Variates c_i of the clients and c of the server, for methods with ξ_i = c − c_i."""

from typing import NamedTuple

from numpy.typing import ArrayLike

from fedscaffold.core.types import Array, ExchangedGradients
from fedscaffold.methods.base import initial_control_variates


class ClientVariates(NamedTuple):
    """Client state: the variate c_i of each client."""

    own: Array  # (repetitions, clients, dim)


class VariateServerState(NamedTuple):
    """Server state: the model θ, and the server's variate c = Σ w_i c_i."""

    theta: Array  # (repetitions, dim)
    variate: Array  # (repetitions, dim)


class KeepsVariatesOnBothSides:
    """For methods whose clients keep c_i and whose server keeps c, and that correct gradients by c − c_i."""

    def init_clients(
        self, repetitions: int, weights: Array, dim: int, control_variates: ArrayLike | None
    ) -> ClientVariates:
        """c_i = −ξ_i: zero, or from given control variates with Σ w_i ξ_i = 0."""
        return ClientVariates(own=-initial_control_variates(repetitions, weights, dim, control_variates))

    def init_server(self, theta: Array) -> VariateServerState:
        """θ and c = Σ w_i c_i = 0."""
        return VariateServerState(theta, theta * 0.0)

    def correction(
        self, client_state: ClientVariates, server: VariateServerState, exchanged: ExchangedGradients | None
    ) -> Array:
        """ξ_i = c − c_i."""
        return server.variate[:, None, :] - client_state.own
