"""The server's state between rounds: the method's server state, and whose update of which round was counted."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedscaffold.core.sums import partial_sums, partial_sums_of_cohort, total
from fedscaffold.core.types import Array, IntArray, WorstClient
from fedscaffold.federation.messages import NEVER, TrainRequest
from fedscaffold.federation.run_config import RunConfig
from fedscaffold.simulation.divergence import diverged, has_diverged


class Ledger(NamedTuple):
    """Everything that the next round depends on, on the server's side.

    Parameters
    ----------
    round
        Number of rounds that are complete.
    resets
        How often all client states were reset.
    server
        The method's server state, a named tuple of arrays (1, dim), θ first.
    last_counted
        (n_clients,): the last round since the last reset in which a client's update was counted, or NEVER.
    earlier_states
        The server states after those rounds of `last_counted` that are not the latest, by round.
    distance_scale
        The largest lower median of ‖sent − θ‖ of any round so far; see `checks`.

    Examples
    --------
    >>> import numpy as np
    >>> import fedscaffold as fs
    >>> from fedscaffold.federation import RunConfig, initial_ledger
    >>> method = fs.Scaffold(step_size=0.1, local_steps=5)
    >>> ledger = initial_ledger(RunConfig(name="demo", method=method, n_clients=3, dim=2), np.zeros(2))
    >>> ledger.round, ledger.last_counted
    (0, array([-1, -1, -1]))
    """

    round: int
    resets: int
    server: Any
    last_counted: IntArray
    earlier_states: Mapping[int, Any]
    distance_scale: float


def initial_ledger(config: RunConfig, theta: Array) -> Ledger:
    """The server's state before the first round.

    Parameters
    ----------
    config
        The run's configuration.
    theta
        The initial model, shape (dim,).

    Examples
    --------
    >>> import numpy as np
    >>> import fedscaffold as fs
    >>> from fedscaffold.federation import RunConfig, initial_ledger
    >>> config = RunConfig(name="demo", method=fs.FedAvg(step_size=0.1, local_steps=5), n_clients=3, dim=2)
    >>> initial_ledger(config, np.zeros(2)).server.theta
    array([[0., 0.]])
    """
    never = np.full(config.n_clients, NEVER, dtype=np.int64)
    return Ledger(0, 0, config.method.init_server(theta[None, :].copy()), never, {}, 0.0)


def train_request(
    config: RunConfig, ledger: Ledger, client: int, *, client_state: Any = None, mean_gradient: Array | None = None
) -> TrainRequest:
    """The request for local steps from θ.

    A client whose update was not counted in the latest round also receives the server state after the last round
    in which it was, since the method's rule for the client state needs it; unless it receives its state itself.
    """
    counted = int(ledger.last_counted[client])
    latest = counted in (NEVER, ledger.round - 1) or not config.has_client_state
    return TrainRequest(
        config=config,
        client=client,
        resets=ledger.resets,
        round=ledger.round,
        server=ledger.server,
        last_counted=counted,
        server_after=None if latest or client_state is not None else ledger.earlier_states[counted],
        client_state=client_state,
        mean_gradient=mean_gradient,
    )


def gradient_request(config: RunConfig, ledger: Ledger, client: int) -> TrainRequest:
    """The request for the gradient at θ, for methods that exchange gradients before local steps."""
    return TrainRequest(
        config=config, client=client, resets=ledger.resets, round=ledger.round, server=ledger.server,
        phase="gradient",
    )  # fmt: skip


def weighted_mean(vectors: Mapping[int, Array], weights: Array) -> tuple[Array, Array]:
    """Σ w_c v_c over the clients that sent a vector, with weights scaled to sum to one, and their weight's share.

    Shapes (1, dim) and (1,). The order of additions is the simulator's.
    """
    clients = np.array([sorted(vectors)])
    values = np.stack([vectors[client] for client in clients[0]])[None]
    if clients.size == weights.size:
        return total(partial_sums(values, weights)), np.ones(1)
    share = weights[clients].sum(axis=1)
    scaled = weights[clients] / share[:, None]
    return total(partial_sums_of_cohort(values, scaled, clients, first=0, last=weights.size)), share


def close_round(
    config: RunConfig, ledger: Ledger, sent: Mapping[int, Array], weights: Array, *, limit: float
) -> Ledger:
    """The ledger one round later, from the vectors that count; raises `Diverged` when θ leaves the limit.

    Clients that sent none keep their state, as those outside a cohort do, so that Σ w_c ξ_c = 0 all the same.
    """
    mean, share = weighted_mean(sent, weights)
    server = config.method.aggregate(ledger.server, mean, share)
    if has_diverged(server, limit):
        sizes = [WorstClient(float(np.abs(vector).max()), client) for client, vector in sorted(sent.items())]
        raise diverged(config.method, ledger.round + 1, max(sizes, key=lambda client: client.size))
    last_counted = ledger.last_counted.copy()
    last_counted[sorted(sent)] = ledger.round
    states = {**ledger.earlier_states, ledger.round - 1: ledger.server}
    needed = set(last_counted.tolist()) - {NEVER, ledger.round} if config.has_client_state else set[int]()
    return Ledger(
        round=ledger.round + 1,
        resets=ledger.resets,
        server=server,
        last_counted=last_counted,
        earlier_states={round: states[round] for round in sorted(needed)},
        distance_scale=max(ledger.distance_scale, lower_median([distance(ledger, v) for v in sent.values()])),
    )


def reset_client_states(config: RunConfig, ledger: Ledger) -> Ledger:
    """The ledger after all client states were reset to 0, which keeps Σ w_c ξ_c = 0; θ stays.

    The clients have to learn their control variates again, which takes some rounds, as at the start of the run.
    """
    return ledger._replace(
        resets=ledger.resets + 1,
        server=config.method.init_server(ledger.server.theta),
        last_counted=np.full(config.n_clients, NEVER, dtype=np.int64),
        earlier_states={},
    )


def lower_median(values: Sequence[float]) -> float:
    """The median, of an even number of values the smaller middle one: a minority cannot raise it at will."""
    return sorted(values)[(len(values) - 1) // 2]


def distance(ledger: Ledger, vector: Array) -> float:
    """‖v − θ‖."""
    return norm(vector - ledger.server.theta[0])


def norm(vector: Array) -> float:
    """‖v‖, infinite where it is beyond float64."""
    with np.errstate(over="ignore"):
        return float(np.linalg.norm(vector))
