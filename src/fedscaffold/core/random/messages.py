"""Random words for what clients send: those of each client's own, and those that a round's clients share.

Counter-based like the records' stream (`core.random.stream`), in a slot of its own: repetition r's words are
those of repetition 2³¹ + r. So compression draws the same in every engine, on any shard and at a site, and
reads nothing that local steps read.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedscaffold.core.random.stream import SERVER, philox
from fedscaffold.core.types import IntArray

SLOT = 1 << 31  # added to the repetition


class MessageDraws(NamedTuple):
    """What compressors draw from in one round: who sends, and the random words."""

    seed: int
    round: int
    clients: IntArray  # (repetitions, senders), indices among all n_clients
    places: IntArray  # (repetitions, senders), their places among the round's participants
    participants: int
    n_clients: int

    def own_words(self, count: int) -> NDArray[np.uint32]:
        """`count` words of each sender's own, shape (repetitions, senders, count)."""
        return self._words(self.clients, count)

    def shared_words(self, count: int) -> NDArray[np.uint32]:
        """`count` words that all participants of a repetition share, shape (repetitions, count)."""
        return self._words(np.full((len(self.clients), 1), SERVER), count)[:, 0]

    def _words(self, clients: IntArray, count: int) -> NDArray[np.uint32]:
        counter = np.empty((*clients.shape, (count + 3) // 4, 4), dtype=np.uint32)
        counter[..., 0] = np.arange((count + 3) // 4)
        counter[..., 1] = self.round
        counter[..., 2] = clients[..., None]
        counter[..., 3] = (SLOT + np.arange(len(clients)))[:, None, None]
        words = philox(counter.reshape(-1, 4), (self.seed & 0xFFFFFFFF, self.seed >> 32))
        return words.reshape(*clients.shape, 4 * counter.shape[-2])[..., :count]


def uniforms(words: NDArray[np.uint32]) -> NDArray[np.float64]:
    """Numbers in (0, 1), one of each word."""
    return (words.astype(np.float64) + 0.5) / 2.0**32
