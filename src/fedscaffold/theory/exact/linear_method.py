"""A method as coefficients: how its correction, message, server step and client update combine their inputs.

The functions of a method act on every coordinate alike. If they are linear, one number for each input describes
them, and these numbers are found by calling them with zeros and ones. So methods from outside the library are
covered too.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.protocols import Method
from fedscaffold.core.types import Array, ExchangedGradients, IntArray

ROUNDING = 1e-9  # relative difference of a linear function from its coefficients


@dataclass(frozen=True, eq=False)
class LinearMethod:
    """The coefficients of a method; K server fields, θ first, and J fields of each client."""

    gamma: float
    positions: Array  # 1 for server fields that are models, as θ is, 0 for others such as momentum, (K,)
    # ξ_c from server fields (K,), client fields (J,), the client's exchanged gradient and the mean of them
    correction_server: Array
    correction_client: Array
    correction_own: float
    correction_mean: float
    # client c sends θ + a_c (θ_c − θ) plus a combination of its fields: a_c, (N,), and coefficients, (J,)
    message_local: Array
    message_client: Array
    # server fields after the round, from those before (K, K) and from the mean message (K,)
    aggregate_server: Array
    aggregate_mean: Array
    # client fields after the round, from those before (J, J), the message (J,), server fields before, after (J, K)
    update_client: Array
    update_sent: Array
    update_before: Array
    update_after: Array
    steps: IntArray  # numbers of local steps of a round, (k,), or of each client, (N,), if not random
    probabilities: Array | None  # how often they are taken, (k,)
    participants: int  # clients in a round
    noisy_exchange: bool  # whether the exchanged gradients are of minibatches
    pull: float  # λ: local steps add λ(θ_c − θ) to their gradients
    anchored: bool  # whether local steps subtract the gradients at θ on the same records

    @property
    def n_server(self) -> int:
        """K, the number of server fields."""
        return self.positions.size

    @property
    def n_client(self) -> int:
        """J, the number of fields of a client."""
        return self.update_sent.size


def linear_method(method: Method, weights: Array) -> LinearMethod:
    """Return the coefficients of a method for clients with these weights.

    Raises
    ------
    InvalidInput
        If the method is not linear, or takes cohorts of clients of unequal weight or with exchanged gradients.
    """
    N = weights.size
    clients, server = method.init_clients(1, np.ones(1), 1, None), method.init_server(np.ones((1, 1)))
    anchor = method.anchor(clients, server)
    if method.compressor is not None or method.start(clients, server).ndim > 2:
        raise not_linear(method)
    if anchor is not None and not np.array_equal(anchor, server.theta):
        raise not_linear(method)
    participants = method.participants(N)
    if participants < N and (np.ptp(weights) > 1e-12 or method.exchange is not None):
        raise InvalidInput(
            "cohorts have an exact law only if all clients have the same weight and exchange no gradients; "
            "simulate with fedscaffold.run"
        )
    steps, probabilities = _step_distribution(method, N)
    probe = _Probe(method, weights, steps if probabilities is None else steps[:1], participants / N)
    return LinearMethod(
        gamma=method.step_size,
        steps=steps,
        probabilities=probabilities,
        participants=participants,
        noisy_exchange=method.exchange == "minibatch",
        pull=method.pull,
        anchored=anchor is not None,
        **probe.coefficients(),
    )


def _step_distribution(method: Method, n_clients: int) -> tuple[IntArray, Array | None]:
    """Return the local steps of each client, or the numbers that a round may have and their probabilities."""
    fixed = method.local_step_counts(n_clients, np.full(1, 0.5))
    if fixed.shape[1] > 1:
        return fixed[0], None
    quantiles = (np.arange(20_000) + 0.5) / 20_000  # each stands for a probability of 5e-5
    counts = method.local_step_counts(n_clients, quantiles)
    if counts.shape[0] == 1:
        return np.full(n_clients, int(fixed[0, 0]), dtype=np.int64), None
    values, often = np.unique(counts[:, 0], return_counts=True)
    return values.astype(np.int64), often / quantiles.size


class _Probe:
    """A method's functions, called with given numbers, one repetition for each combination of inputs."""

    def __init__(self, method: Method, weights: Array, steps: IntArray, share: float) -> None:
        self.method, self.weights, self.share = method, weights, share
        self.counts = np.broadcast_to(steps, (weights.size,))[None, :]
        one = method.init_server(np.ones((1, 1)))
        self.server_type, self.positions = one, np.array([float(np.ravel(field)[0]) for field in one])
        if any(np.shape(field) != (1, 1) for field in one) or not np.isin(self.positions, (0.0, 1.0)).all():
            raise not_linear(method)
        self.K = len(one)
        self.client_type = method.init_clients(1, weights, 1, None)
        self.J = len(self.client_type)

    def server(self, values: Array) -> Any:
        """Return the server state from values (repetitions, K)."""
        state = self.method.init_server(values[:, :1].copy())
        return state._replace(**{name: values[:, k : k + 1].copy() for k, name in enumerate(state._fields)})

    def clients(self, values: Array) -> Any:
        """Return the client state from values (repetitions, J), the same for all clients."""
        kind = type(self.client_type)
        shape = (len(values), self.weights.size, 1)
        return kind(*(np.broadcast_to(values[:, None, j : j + 1], shape).copy() for j in range(self.J)))

    def correction(self, inputs: Array) -> Array:
        """Return ξ from (server, client, own, mean), (repetitions,)."""
        K, J = self.K, self.J
        own = np.broadcast_to(inputs[:, None, K + J : K + J + 1], (len(inputs), self.weights.size, 1))
        exchanged = None
        if self.method.exchange is not None:
            exchanged = ExchangedGradients(own.copy(), inputs[:, K + J + 1 :].copy())
        found = self.method.correction(self.clients(inputs[:, K : K + J]), self.server(inputs[:, :K]), exchanged)
        return np.broadcast_to(found, (len(inputs), self.weights.size, 1))[:, 0, 0]

    def message(self, inputs: Array) -> Array:
        """Return messages from (server, local, client), (repetitions, N)."""
        shape = (len(inputs), self.weights.size, 1)
        local = np.broadcast_to(inputs[:, None, self.K : self.K + 1], shape).copy()
        clients = self.clients(inputs[:, self.K + 1 :])
        sent = self.method.message(clients, local, self.server(inputs[:, : self.K]), self.counts)
        return np.broadcast_to(sent, shape)[:, :, 0]

    def aggregate(self, inputs: Array) -> Array:
        """Return server fields from (server, mean), (repetitions, K)."""
        share = np.full(len(inputs), self.share)
        after = self.method.aggregate(self.server(inputs[:, : self.K]), inputs[:, self.K :].copy(), share)
        return np.concatenate([np.asarray(field, dtype=np.float64) for field in after], axis=1)

    def update(self, inputs: Array) -> Array:
        """Return client fields from (client, sent, before, after), (repetitions, J)."""
        K, J = self.K, self.J
        sent = np.broadcast_to(inputs[:, None, J : J + 1], (len(inputs), self.weights.size, 1)).copy()
        before, after = self.server(inputs[:, J + 1 : J + 1 + K]), self.server(inputs[:, J + 1 + K :])
        found = self.method.update_clients(self.clients(inputs[:, :J]), sent, before, after)
        return np.concatenate([field[:, 0] for field in found], axis=1) if J else np.zeros((len(inputs), 0))

    def coefficients(self) -> dict[str, Any]:
        """Return the values of each function at unit inputs.

        Raises
        ------
        InvalidInput
            If functions differ from their coefficients at random inputs, or do not follow a shift of θ.
        """
        K, J, rng = self.K, self.J, np.random.default_rng(0)

        def matrix(function: Callable[[Array], Array], n: int) -> Array:
            found, inputs = function(np.eye(n)).reshape(n, -1), rng.normal(size=(3, n))
            near = ROUNDING * (1.0 + np.abs(found).max(initial=0.0))
            if not np.allclose(function(inputs).reshape(3, -1), inputs @ found, rtol=ROUNDING, atol=near):
                raise not_linear(self.method)
            return found

        correction, message = matrix(self.correction, K + J + 2)[:, 0], matrix(self.message, K + 1 + J)
        aggregate, update = matrix(self.aggregate, K + 1).T, matrix(self.update, J + 1 + 2 * K).T
        sent, before, after = update[:, J], update[:, J + 1 : J + 1 + K], update[:, J + 1 + K :]
        expected = np.vstack([np.eye(K)[:, :1] * (1.0 - message[K]), message[K:]])  # of θ, and no other field
        expected[K + 1 :] = message[K + 1 :, :1]  # the same for all clients
        followed = sent + (before + after) @ self.positions
        if not (
            np.allclose(message, expected, rtol=ROUNDING, atol=ROUNDING)
            and np.allclose(aggregate[:, :K] @ self.positions + aggregate[:, K], self.positions, atol=ROUNDING)
            and abs(correction[:K] @ self.positions) < ROUNDING
            and np.allclose(followed, 0.0, atol=ROUNDING * (1.0 + np.abs(sent).max(initial=0.0)))
        ):
            raise not_linear(self.method)
        return {
            "positions": self.positions,
            "correction_server": correction[:K],
            "correction_client": correction[K : K + J],
            "correction_own": float(correction[K + J]),
            "correction_mean": float(correction[K + J + 1]),
            "message_local": message[K],
            "message_client": message[K + 1 :, 0],
            "aggregate_server": aggregate[:, :K],
            "aggregate_mean": aggregate[:, K],
            "update_client": update[:, :J],
            "update_sent": sent,
            "update_before": before,
            "update_after": after,
        }


def not_linear(method: Method) -> InvalidInput:
    """Return the error of a method whose rounds are not linear in its state."""
    return InvalidInput(
        f"{method.kind} has no exact law: its server and clients do not combine models linearly; simulate it with "
        "fedscaffold.run"
    )
