"""Arrays, and the small named tuples that a round passes between server, clients and methods."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
IntArray = NDArray[np.int64]

GradientKind = Literal["minibatch", "full"]
Exchange = Literal["minibatch", "full", "own"]  # "own": full gradients, which clients keep for themselves


class ServerState(NamedTuple):
    """State that the server keeps and sends to clients: θ. A method may define more fields, θ first."""

    theta: Array  # (repetitions, dim)


class ExchangedGradients(NamedTuple):
    """Gradients at θ that the clients exchanged before their local steps."""

    own: Array  # (repetitions, clients, dim)
    mean: Array  # (repetitions, dim), weighted


class RoundInfo(NamedTuple):
    """Facts about a round that clients receive besides the server's state."""

    round: int
    round_uniform: Array  # (repetitions,), one uniform number per repetition, shared by all clients
    cohort: IntArray | None  # (repetitions, cohort size), ascending; None when all clients take part
    share: Array  # (repetitions,) or (1,): the cohort's share of the total weight


class WorstClient(NamedTuple):
    """The client whose local model holds the largest absolute value, to name it when a run diverges."""

    size: float
    client: int


def evenly_spaced_clients(n_clients: int, count: int) -> IntArray:
    """Return the numbers of `count` clients of 0, ..., n_clients − 1, as far apart from each other as possible.

    Examples
    --------
    >>> from fedscaffold.core.types import evenly_spaced_clients
    >>> evenly_spaced_clients(100, 4).tolist()
    [0, 33, 66, 99]
    """
    return np.linspace(0, n_clients - 1, count).round().astype(np.int64)


def offsets_of(sizes: Sequence[int] | IntArray) -> IntArray:
    """Return offsets 0, n_0, n_0 + n_1, ..., shape (N + 1,), for clients with n_c records.

    Client c's records are rows offsets[c] to offsets[c + 1] - 1.
    """
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
