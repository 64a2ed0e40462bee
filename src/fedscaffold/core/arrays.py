"""Small functions about the numbering of clients and of their records."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedscaffold.core.checks import given
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import IntArray


def evenly_spaced_clients(n_clients: int, count: int) -> IntArray:
    """Return the numbers of `count` clients of 0, ..., n_clients − 1, as far apart from each other as possible.

    Examples
    --------
    >>> from fedscaffold.core.arrays import evenly_spaced_clients
    >>> evenly_spaced_clients(100, 4).tolist()
    [0, 33, 66, 99]
    """
    return np.linspace(0, n_clients - 1, count).round().astype(np.int64)


def offsets_of(sizes: Sequence[int] | IntArray) -> IntArray:
    """Return offsets 0, n_0, n_0 + n_1, ..., shape (N + 1,), for clients with n_c records.

    Client c's records are rows offsets[c] to offsets[c + 1] - 1.
    """
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def chosen_clients(clients: Any, n_clients: int) -> IntArray:
    """Return numbers of some clients as an array; raise unless they are whole numbers below `n_clients`.

    Negative ones count from the last client, as in NumPy.

    Examples
    --------
    >>> from fedscaffold.core.arrays import chosen_clients
    >>> chosen_clients([0, -1], 10)
    array([0, 9])
    """
    try:
        found = np.asarray(clients)
    except ValueError:  # a list of lists of different lengths
        found = np.zeros(0)
    if found.ndim != 1 or found.size == 0 or found.dtype.kind not in "iu":
        raise InvalidInput(
            f"clients must be a list of whole numbers, one per client to take; got {given(clients)}"
        )
    if found.min() < -n_clients or found.max() >= n_clients:
        raise InvalidInput(f"clients must be numbers from 0 to {n_clients - 1}, got {given(clients)}")
    return np.asarray(found, dtype=np.int64) % n_clients
