"""The pairs of client and repetition of one call of the hot loop, for engines that run them side by side."""

from typing import NamedTuple

import numpy as np

from fedscaffold.core.types import Array, IntArray


class ClientPairs(NamedTuple):
    """Starts and corrections (repetitions, clients, dim), and one entry per pair in the others."""

    begun: Array
    xi: Array
    repetition: IntArray
    place: IntArray  # in begun and ξ
    who: IntArray  # the client
    steps: IntArray


def client_pairs(
    theta: Array, correction: Array, clients: IntArray | None, *, n_clients: int, local_steps: int | IntArray
) -> ClientPairs:
    """Return all pairs of a call, the repetitions of a client side by side, so that they share its records."""
    chosen = np.arange(n_clients)[None, :] if clients is None else np.atleast_2d(clients)
    shape = (theta.shape[0], chosen.shape[1])
    begun, xi = (
        np.broadcast_to(values, (*shape, theta.shape[-1]))
        for values in (theta if theta.ndim == 3 else theta[:, None, :], correction)
    )
    repetition, place = (grid.T.ravel() for grid in np.indices(shape))
    who, steps = (np.broadcast_to(values, shape)[repetition, place] for values in (chosen, local_steps))
    return ClientPairs(begun, xi, repetition, place, who, steps)
