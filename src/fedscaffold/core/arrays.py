"""Small functions of arrays that several rooms use."""

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
