"""Where each client's records begin in an array that holds all clients' records one after another."""

from collections.abc import Sequence

import numpy as np

from fedscaffold.core.types import IntArray


def offsets_of(sizes: Sequence[int] | IntArray) -> IntArray:
    """Offsets 0, n_0, n_0 + n_1, ..., shape (N + 1,), from the clients' numbers of records n_c.

    Client c's records are rows offsets[c] to offsets[c + 1] - 1.
    """
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
