"""The server's state between rounds: the method's server state, and the last counted round of each client."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedscaffold.core.sums import partial_sums, partial_sums_of_cohort, total
from fedscaffold.core.types import Array, IntArray, WorstClient
from fedscaffold.federation.messages import (
    NEVER,
    Phase,
    TrainRequest,
    extend_history,
    initial_history,
    new_run_id,
    reset_history,
)
from fedscaffold.federation.run_config import RunConfig
from fedscaffold.simulation.rounds import diverged, has_diverged


class Ledger(NamedTuple):
    """Everything that the next round depends on, on the server's side.

    Parameters
    ----------
    run
        The run's random identity.
    history
        Digest of the run's history so far.
    round
        Number of rounds that are complete.
    resets
        How often all client states were reset.
    server
        The method's server state, a named tuple of arrays (1, dim), θ first.
    last_counted
        (n_clients,): the last round since the last reset in which a client's update was counted, or NEVER.
    counted_scale
        (n_clients,): by how much that update was shortened, 1 if it was not, RESTATED if another vector counted
        instead, so that the server sends the client its state.
    earlier_states
        The server states after those rounds of `last_counted` that are not the latest, by round.
    histories
        Digest of the history after each round of `last_counted`, by round.
    first_distance
        The usual ‖sent − θ‖ of the first round, 0 before it; see `checks`.
    spread
        How far a usual control variate moves a client in a round, 0 if the server does not know control variates.

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

    run: str
    history: str
    round: int
    resets: int
    server: Any
    last_counted: IntArray
    counted_scale: Array
    earlier_states: Mapping[int, Any]
    histories: Mapping[int, str]
    first_distance: float
    spread: float


def initial_ledger(config: RunConfig, theta: Array, run: str | None = None) -> Ledger:
    """Return the server's state before the first round.

    Parameters
    ----------
    config
        The run's configuration.
    theta
        The initial model, shape (dim,).
    run
        The run's identity; by default a random one.

    Examples
    --------
    >>> import numpy as np
    >>> import fedscaffold as fs
    >>> from fedscaffold.federation import RunConfig, initial_ledger
    >>> config = RunConfig(name="demo", method=fs.FedAvg(step_size=0.1, local_steps=5), n_clients=3, dim=2)
    >>> initial_ledger(config, np.zeros(2)).server.theta
    array([[0., 0.]])
    """
    identity = new_run_id() if run is None else run
    return Ledger(
        run=identity, history=initial_history(identity, config, theta), round=0, resets=0,
        server=config.method.init_server(theta[None, :].copy()),
        last_counted=np.full(config.n_clients, NEVER, dtype=np.int64), counted_scale=np.ones(config.n_clients),
        earlier_states={}, histories={}, first_distance=0.0, spread=0.0,
    )  # fmt: skip


def train_request(
    config: RunConfig,
    ledger: Ledger,
    client: int,
    *,
    phase: Phase = "train",
    client_state: Any = None,
    mean_gradient: Array | None = None,
    return_state: bool = False,
) -> TrainRequest:
    """Return the request for local steps from θ, or for the gradient at θ that some methods exchange before.

    A client whose update was not counted in the latest round also receives the server state after the last round
    in which it was, since the method's rule for the client state needs it; unless it receives its state itself.

    Parameters
    ----------
    config
        The run's configuration.
    ledger
        The server's state before the round.
    client
        Index of the client.
    phase
        "train" for local steps, "gradient" for the gradient.
    client_state
        For a client that lost its state: the backup of it.
    mean_gradient
        ḡ(θ), shape (dim,), for a method that exchanges gradients.
    return_state
        Whether the client is asked for its client state, of which the server's backup is damaged.

    Examples
    --------
    >>> import numpy as np
    >>> import fedscaffold as fs
    >>> from fedscaffold.federation import RunConfig, initial_ledger, train_request
    >>> config = RunConfig(name="demo", method=fs.FedAvg(step_size=0.1, local_steps=5), n_clients=3, dim=2)
    >>> train_request(config, initial_ledger(config, np.zeros(2)), client=1).client
    1
    """
    counted = NEVER if phase == "gradient" else int(ledger.last_counted[client])
    latest = counted in (NEVER, ledger.round - 1) or not config.has_client_state
    return TrainRequest(
        config=config, run=ledger.run, history=ledger.history, client=client, resets=ledger.resets,
        round=ledger.round, phase=phase, server=ledger.server, last_counted=counted,
        counted_history=None if counted == NEVER else ledger.histories[counted],
        counted_scale=1.0 if counted == NEVER else float(ledger.counted_scale[client]),
        server_after=None if latest or client_state is not None else ledger.earlier_states[counted],
        client_state=client_state, mean_gradient=mean_gradient, return_state=return_state,
    )  # fmt: skip


def weighted_mean(vectors: Mapping[int, Array], weights: Array) -> tuple[Array, Array]:
    """Return Σ w_c v_c over the clients that sent a vector, weights scaled to sum to one, and their share.

    Shapes (1, dim) and (1,). The order of additions is the simulator's.
    """
    clients = np.array([sorted(vectors)])
    values = np.stack([vectors[client] for client in clients[0]])[None]
    if clients.size == weights.size:
        return total(partial_sums(values, weights)), np.ones(1)
    share = weights[clients].sum(axis=1)
    scaled = weights[clients] / share[:, None]
    return total(partial_sums_of_cohort(values, scaled, clients, first=0, last=weights.size)), share


def aggregate(config: RunConfig, ledger: Ledger, counted: Mapping[int, Array], weights: Array) -> Any:
    """Return the method's server state after a round that counts these vectors."""
    mean, share = weighted_mean(counted, weights)
    return config.method.aggregate(ledger.server, mean, share)


def stack_states(states: Sequence[Any]) -> Any:
    """Return client states, arrays (1, 1, dim) each, as one block, arrays (1, n, dim)."""
    return type(states[0])(*(np.concatenate(parts, axis=1) for parts in zip(*states, strict=True)))


def close_round(
    config: RunConfig,
    ledger: Ledger,
    counted: Mapping[int, Array],
    weights: Array,
    *,
    scales: Mapping[int, float],
    distance: float,
    spread: float,
    limit: float,
) -> Ledger:
    """Return the ledger one round later; raise `Diverged` if θ leaves the limit.

    `counted` has the vectors that count, already shortened, `scales` the scales of shortened ones, or RESTATED;
    `distance` and `spread` come from `checks`, and `limit` bounds the entries of θ. Clients whose updates do not
    count keep their state, as clients outside a cohort do, so that Σ w_c ξ_c stays 0.
    """
    server = aggregate(config, ledger, counted, weights)
    if has_diverged(server, limit):
        sizes = [WorstClient(float(np.abs(vector).max()), client) for client, vector in sorted(counted.items())]
        worst = max(sizes, key=lambda client: client.size)
        raise diverged(config.method, ledger.round + 1, worst)
    clients = sorted(counted)
    last_counted, counted_scale = ledger.last_counted.copy(), ledger.counted_scale.copy()
    last_counted[clients] = ledger.round
    counted_scale[clients] = [scales.get(client, 1.0) for client in clients]
    history = extend_history(ledger.history, ledger.round, server)
    states = {**ledger.earlier_states, ledger.round - 1: ledger.server}
    histories = {**ledger.histories, ledger.round: history}
    referred = set(last_counted.tolist()) - {NEVER}
    return ledger._replace(
        history=history,
        round=ledger.round + 1,
        server=server,
        last_counted=last_counted,
        counted_scale=counted_scale,
        earlier_states={round: states[round] for round in earlier_rounds(config, last_counted, ledger.round)},
        histories={round: histories[round] for round in sorted(referred)},
        first_distance=ledger.first_distance or distance,
        spread=spread,
    )


def earlier_rounds(config: RunConfig, last_counted: IntArray, latest: int) -> list[int]:
    """Return the rounds before the latest whose server states some client's state needs."""
    return sorted(set(last_counted.tolist()) - {NEVER, latest}) if config.has_client_state else []


def reset_client_states(config: RunConfig, ledger: Ledger) -> Ledger:
    """Return the ledger after a reset of all client states to 0, which keeps Σ w_c ξ_c = 0; θ stays.

    The clients have to learn their control variates again, which takes some rounds, as at the start of the run.
    """
    return ledger._replace(
        history=reset_history(ledger.history, ledger.resets + 1),
        resets=ledger.resets + 1,
        server=config.method.init_server(ledger.server.theta),
        last_counted=np.full(config.n_clients, NEVER, dtype=np.int64),
        counted_scale=np.ones(config.n_clients),
        earlier_states={},
        histories={},
    )
