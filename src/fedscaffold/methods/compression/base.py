"""Parts that compressors share."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedscaffold.core.checks import positive
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array, IntArray

BITS = 64.0  # of one number as it is


class SameLength:
    """For compressors whose messages are as long as the vectors."""

    def message_length(self, dim: int) -> int:
        """Return how many numbers the server receives: as many as the vector has."""
        return dim


def checked_share(value: Any) -> float:
    """Return a share as a float; raise unless it lies in (0, 1]."""
    share = positive("share", value)
    if share > 1.0:
        raise InvalidInput(f"share is a share of the coordinates, at most 1; got {share!r}")
    return share


def kept_entries(share: float, dim: int) -> int:
    """Return how many of `dim` numbers are kept: the share, rounded up, so that dim/kept ≤ 1/share."""
    return min(dim, max(1, int(np.ceil(share * dim - 1e-9))))


def largest_first(keys: Array, count: int) -> Array:
    """1 where one of the `count` largest keys of the last axis is, 0 elsewhere; of equal ones the first."""
    chosen = np.argsort(-keys, axis=-1, kind="stable")[..., :count]
    mask = np.zeros(keys.shape)
    np.put_along_axis(mask, chosen, 1.0, axis=-1)
    return mask


def halves(message: Array) -> tuple[Array, Array]:
    """Return the two vectors of a message that has one after the other along its last axis."""
    dim = message.shape[-1] // 2
    return message[..., :dim], message[..., dim:]


def ranks(keys: NDArray[Any]) -> IntArray:
    """Return the rank of each key of the last axis, from 0 on; of equal ones the first is first."""
    order = np.argsort(keys, axis=-1, kind="stable")
    found = np.empty_like(order)
    np.put_along_axis(found, order, np.arange(keys.shape[-1]), axis=-1)
    return found
