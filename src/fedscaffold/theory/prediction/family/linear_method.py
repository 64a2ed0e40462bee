"""A method as coefficients: how its correction, message, server step and client update combine their inputs.

The functions of a method act on every coordinate alike. Those of the methods that can be foreseen are linear, with
one number for each input, and these numbers are found by calling them with zeros and ones. A method that is not
linear (Adam on the server, for example) shows it there, and is refused. So a method of one's own is predicted too.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.protocols import Method
from fedscaffold.core.types import Array, ExchangedGradients, IntArray

QUANTILES = 20_000  # of the round's uniform number, for methods that draw their number of local steps
MOST_COUNTS, SINGLY = (
    400,
    50.0,
)  # numbers of local steps from which on neighbours go together, and how near they are
PROBES, ROUNDING = 3, 1e-9


@dataclass(frozen=True, eq=False)
class LinearMethod:
    """The coefficients of a method; K server fields, θ first, and J fields of each client.

    Attributes
    ----------
    positions
        1 for server fields that are models, as θ is, 0 for others such as momentum, (K,).
    correction_server, correction_client, correction_own, correction_mean
        ξ_c from server fields (K,), client fields (J,), the client's exchanged gradient and the mean of them.
    message_local
        a_c of what client c sends, θ + a_c (θ_c − θ), (N,).
    aggregate_server, aggregate_mean
        Server fields after the round, from those before (K, K) and from the mean message (K,).
    update_client, update_sent, update_before, update_after
        A client's fields after the round, from its fields (J, J), its message (J,), and the server's fields before
        and after (J, K) each.
    steps, probabilities
        Numbers of local steps of a round and how often they are taken, (k,); or those of each client, (N,), with
        no probabilities.
    participants
        Clients in a round.
    """

    gamma: float
    positions: Array
    correction_server: Array
    correction_client: Array
    correction_own: float
    correction_mean: float
    message_local: Array
    aggregate_server: Array
    aggregate_mean: Array
    update_client: Array
    update_sent: Array
    update_before: Array
    update_after: Array
    steps: IntArray
    probabilities: Array | None
    participants: int
    noisy_exchange: bool

    @property
    def n_server(self) -> int:
        """K, the number of server fields."""
        return self.positions.size

    @property
    def n_client(self) -> int:
        """J, the number of fields of a client."""
        return self.update_sent.size


def linear_method(method: Method, weights: Array) -> LinearMethod:
    """The coefficients of a method for clients of given weights; refuses one that is not linear."""
    N = weights.size
    _check_plain_steps(method)
    participants = method.participants(N)
    if participants < N and np.ptp(weights) > 1e-12:
        raise InvalidInput(
            "cohorts of clients of unequal weight are not predicted, since the weight of a cohort varies; give "
            "the clients equal weights, or simulate with fedscaffold.run"
        )
    steps, probabilities = _step_distribution(method, N)
    probe = _Probe(method, weights, steps if probabilities is None else steps[:1], participants / N)
    found = probe.coefficients()
    probe.check_linear(found)
    return LinearMethod(
        gamma=method.step_size,
        steps=steps,
        probabilities=probabilities,
        participants=participants,
        noisy_exchange=method.exchange == "minibatch",
        **found,
    )


def _check_plain_steps(method: Method) -> None:
    """Refuse methods whose local steps have more terms than gradient and correction."""
    clients, server = method.init_clients(1, np.ones(1), 1, None), method.init_server(np.zeros((1, 1)))
    own_start = method.start(clients, server).ndim > 2
    if method.pull or own_start or method.anchor(clients, server) is not None or method.compressor is not None:
        raise InvalidInput(
            "theory predicts local steps of gradient and correction alone, which begin at the server's model; "
            f"{method.kind} pulls to a model, subtracts gradients at an anchor, begins at clients' own models, or "
            "compresses what it sends; simulate it with fedscaffold.run"
        )


def _step_distribution(method: Method, n_clients: int) -> tuple[IntArray, Array | None]:
    """Numbers of local steps: each client's own, or those that a round may have, with probabilities."""
    fixed = method.local_step_counts(n_clients, np.full(1, 0.5))
    uniforms = (np.arange(QUANTILES) + 0.5) / QUANTILES
    if fixed.shape[1] > 1:
        return fixed[0], None
    counts = method.local_step_counts(n_clients, uniforms)
    if counts.shape[0] == 1:
        return np.full(n_clients, int(fixed[0, 0]), dtype=np.int64), None
    values, often = np.unique(counts[:, 0], return_counts=True)
    return grouped_counts(values.astype(np.int64), often / QUANTILES)


def grouped_counts(values: IntArray, probabilities: Array) -> tuple[IntArray, Array]:
    """The same numbers and probabilities, or where there are many, fewer: neighbours of about h/50 go together.

    A group stands at the two whole numbers around its mean, so that the mean stays as it is.
    """
    if values.size <= MOST_COUNTS:
        return values, probabilities
    group = np.floor(SINGLY * np.log1p(values / SINGLY)).astype(np.int64)
    total = np.bincount(group, probabilities)
    mean = np.bincount(group, probabilities * values)[total > 0] / total[total > 0]
    below = np.floor(mean).astype(np.int64)
    places = np.concatenate([below, below + 1])
    shares = total[total > 0] * np.stack([below + 1 - mean, mean - below])
    found = np.bincount(places, shares.ravel()).astype(np.float64)
    kept = np.flatnonzero(found).astype(np.int64)
    return kept, found[kept]


class _Probe:
    """Calls a method's functions with given numbers, one repetition for each combination of inputs."""

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
        """Server state from values (repetitions, K)."""
        state = self.method.init_server(values[:, :1].copy())
        return state._replace(**{name: values[:, k : k + 1].copy() for k, name in enumerate(state._fields)})

    def clients(self, values: Array) -> Any:
        """Client state from values (repetitions, J), the same for all clients."""
        kind = type(self.client_type)
        shape = (len(values), self.weights.size, 1)
        return kind(*(np.broadcast_to(values[:, None, j : j + 1], shape).copy() for j in range(self.J)))

    def correction(self, inputs: Array) -> Array:
        """ξ from (server, client, own, mean), (repetitions,)."""
        K, J = self.K, self.J
        own = np.broadcast_to(inputs[:, None, K + J : K + J + 1], (len(inputs), self.weights.size, 1))
        exchanged = None
        if self.method.exchange is not None:
            exchanged = ExchangedGradients(own.copy(), inputs[:, K + J + 1 :].copy())
        found = self.method.correction(self.clients(inputs[:, K : K + J]), self.server(inputs[:, :K]), exchanged)
        return np.broadcast_to(found, (len(inputs), self.weights.size, 1))[:, 0, 0]

    def message(self, inputs: Array) -> Array:
        """Messages from (server, local), (repetitions, N)."""
        shape = (len(inputs), self.weights.size, 1)
        local = np.broadcast_to(inputs[:, None, self.K :], shape).copy()
        clients = self.clients(np.zeros((len(inputs), self.J)))
        sent = self.method.message(clients, local, self.server(inputs[:, : self.K]), self.counts)
        return np.broadcast_to(sent, shape)[:, :, 0]

    def aggregate(self, inputs: Array) -> Array:
        """Server fields from (server, mean), (repetitions, K)."""
        share = np.full(len(inputs), self.share)
        after = self.method.aggregate(self.server(inputs[:, : self.K]), inputs[:, self.K :].copy(), share)
        return np.concatenate([np.asarray(field, dtype=np.float64) for field in after], axis=1)

    def update(self, inputs: Array) -> Array:
        """Client fields from (client, sent, before, after), (repetitions, J)."""
        K, J = self.K, self.J
        sent = np.broadcast_to(inputs[:, None, J : J + 1], (len(inputs), self.weights.size, 1)).copy()
        before, after = self.server(inputs[:, J + 1 : J + 1 + K]), self.server(inputs[:, J + 1 + K :])
        found = self.method.update_clients(self.clients(inputs[:, :J]), sent, before, after)
        return np.concatenate([field[:, 0] for field in found], axis=1) if J else np.zeros((len(inputs), 0))

    def coefficients(self) -> dict[str, Any]:
        """The values of each function at unit inputs."""
        K, J = self.K, self.J
        correction, message = self.correction(np.eye(K + J + 2)), self.message(np.eye(K + 1))
        aggregate, update = self.aggregate(np.eye(K + 1)).T, self.update(np.eye(J + 1 + 2 * K)).T
        return {
            "positions": self.positions,
            "correction_server": correction[:K],
            "correction_client": correction[K : K + J],
            "correction_own": float(correction[K + J]),
            "correction_mean": float(correction[K + J + 1]),
            "message_local": message[K],
            "aggregate_server": aggregate[:, :K],
            "aggregate_mean": aggregate[:, K],
            "update_client": update[:, :J],
            "update_sent": update[:, J],
            "update_before": update[:, J + 1 : J + 1 + K],
            "update_after": update[:, J + 1 + K :],
        }

    def check_linear(self, found: dict[str, Any]) -> None:
        """Refuse functions that differ from their coefficients at random inputs, or do not follow a shift of θ."""
        rng = np.random.default_rng(0)
        K, local = self.K, found["message_local"]
        exchanged = [found["correction_own"], found["correction_mean"]]
        correction = np.concatenate([found["correction_server"], found["correction_client"], exchanged])
        aggregate = np.vstack([found["aggregate_server"].T, found["aggregate_mean"]])
        update = [
            found["update_client"].T,
            found["update_sent"],
            found["update_before"].T,
            found["update_after"].T,
        ]
        matrices = (
            (self.correction, correction[:, None]),
            (self.aggregate, aggregate),
            (self.update, np.vstack(update)),
        )
        for function, matrix in matrices:
            inputs = rng.normal(size=(PROBES, len(matrix)))
            got, expected = function(inputs).reshape(PROBES, -1), inputs @ matrix
            near = ROUNDING * (1.0 + np.abs(matrix).max(initial=0.0))
            if not np.allclose(got, expected, rtol=ROUNDING, atol=near):
                raise not_linear(self.method)
        inputs = rng.normal(size=(PROBES, K + 1))
        spread = (1.0 - local)[None, :] * inputs[:, :1] + local[None, :] * inputs[:, K:]
        shifted = found["aggregate_server"] @ self.positions + found["aggregate_mean"]
        if not (
            np.allclose(self.message(inputs), spread, rtol=ROUNDING, atol=ROUNDING)
            and np.allclose(shifted, self.positions, atol=ROUNDING)
            and abs(found["correction_server"] @ self.positions) < ROUNDING
        ):
            raise not_linear(self.method)


def not_linear(method: Method) -> InvalidInput:
    """The refusal of a method whose rounds are not linear in its state."""
    return InvalidInput(
        f"theory predicts methods whose server and clients combine models linearly, which {method.kind} does not; "
        "simulate it with fedscaffold.run"
    )
