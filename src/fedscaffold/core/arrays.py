"""Small functions about the numbering of clients and of their records."""

from collections.abc import Sequence

import numpy as np

from fedscaffold.core.types import IntArray


def evenly_spaced_clients(n_clients: int, count: int) -> IntArray:
    """Numbers of `count` clients of 0, ..., n_clients − 1, as far apart from each other as possible.

    Examples
    --------
    >>> from fedscaffold.core.arrays import evenly_spaced_clients
    >>> evenly_spaced_clients(100, 4).tolist()
    [0, 33, 66, 99]
    """
    return np.linspace(0, n_clients - 1, count).round().astype(np.int64)


def offsets_of(sizes: Sequence[int] | IntArray) -> IntArray:
    """Offsets 0, n_0, n_0 + n_1, ..., shape (N + 1,), from the clients' numbers of records n_c.

    Client c's records are rows offsets[c] to offsets[c + 1] - 1.
    """
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
