"""The messages between server and clients, which are all that travels.

Down go the server state, θ first, and the last round in which the client's update was counted, that is, entered
the server's mean. Up comes one vector. Client states, such as control variates, stay with their clients, with one
exception: a client that lost its own receives the server's backup of it.
"""

from dataclasses import dataclass
from typing import Any, Literal

from fedscaffold.core.types import Array
from fedscaffold.federation.run_config import RunConfig

NEVER = -1  # in place of the number of a round


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainRequest:
    """What the server asks of one client in one round.

    Parameters
    ----------
    config
        The run's configuration.
    client
        Index of the client that is asked, 0, ..., N − 1.
    resets
        How often all client states of the run were reset so far.
    round
        Index of the round, 0, 1, ...
    phase
        "train" for local steps, or "gradient" for a gradient at θ, which a method such as FedLin exchanges first.
    server
        The server state, a named tuple of arrays (1, dim), θ first.
    last_counted
        The last round since the last reset in which the client's update was counted, or NEVER.
    server_after
        The server state after round `last_counted`; None where `server` is that state, or there is no such round.
    client_state
        For a client that lost its state: the state it had after round `last_counted`, arrays (1, 1, dim).
    mean_gradient
        ḡ(θ), shape (dim,), in the "train" phase of a method that exchanges gradients.

    Examples
    --------
    >>> import numpy as np
    >>> import fedscaffold as fs
    >>> from fedscaffold.federation import RunConfig, TrainRequest
    >>> method = fs.Scaffold(step_size=0.1, local_steps=5)
    >>> config = RunConfig(name="demo", method=method, n_clients=4, dim=3)
    >>> server = method.init_server(np.zeros((1, 3)))
    >>> request = TrainRequest(config=config, client=2, resets=0, round=0, server=server)
    >>> request.phase
    'train'
    """

    config: RunConfig
    client: int
    resets: int
    round: int
    phase: Literal["train", "gradient"] = "train"
    server: Any
    last_counted: int = NEVER
    server_after: Any = None
    client_state: Any = None
    mean_gradient: Array | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class ClientUpdate:
    """A client's reply to a request: the method's message after local steps, or a gradient.

    Parameters
    ----------
    client, resets, round, phase
        As in the request that it answers; see `TrainRequest`.
    vector
        What the client sends, shape (dim,).

    Examples
    --------
    >>> import numpy as np
    >>> from fedscaffold.federation import ClientUpdate
    >>> ClientUpdate(client=2, resets=0, round=0, phase="train", vector=np.zeros(3)).client
    2
    """

    client: int
    resets: int
    round: int
    phase: str
    vector: Array


@dataclass(frozen=True, kw_only=True)
class StateLost:
    """A client's reply when it does not have the state that the request's `last_counted` implies.

    Parameters
    ----------
    client, resets, round
        As in the request; see `TrainRequest`.

    Examples
    --------
    >>> from fedscaffold.federation import StateLost
    >>> StateLost(client=2, resets=0, round=7)
    StateLost(client=2, resets=0, round=7)
    """

    client: int
    resets: int
    round: int


@dataclass(frozen=True, kw_only=True)
class ClientFailed:
    """What a transport reports in place of a client's reply that did not come or cannot be read.

    Parameters
    ----------
    client
        Index of the client.
    reason
        One sentence for the server's log.

    Examples
    --------
    >>> from fedscaffold.federation import ClientFailed
    >>> ClientFailed(client=2, reason="it is not online").reason
    'it is not online'
    """

    client: int
    reason: str


Reply = ClientUpdate | StateLost | ClientFailed


@dataclass(frozen=True, kw_only=True)
class ClientHello:
    """How a client introduces itself: its index, the number of its rows n_c, and its number of parameters."""

    client: int
    n_rows: int
    dim: int
