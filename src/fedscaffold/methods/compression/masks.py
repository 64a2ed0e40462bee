"""Which clients send which coordinates, so that each coordinate comes from the same number of them."""

from dataclasses import dataclass

import numpy as np

from fedscaffold.core.random.draws import MessageDraws
from fedscaffold.core.types import Array
from fedscaffold.methods.compression.base import BITS, kept_entries, largest_first, ranks


@dataclass(frozen=True)
class CoordinateMasks:
    """Each coordinate is sent by s of the round's c clients, drawn at random; each client sends sd/c of them.

    A message is χ times (m v, m), with m the client's mask of zeros and ones, known to the server: the ratio of
    the two halves' means over clients is the mean of v over a coordinate's owners, also with weights. χ =
    n(s−1)/(s(n−1)) with n clients in all, by which control variates are to move more slowly (Condat et al.
    2022). None for `owners` are all of the round's clients.
    """

    owners: int | None

    def of(self, participants: int) -> int:
        """s, at most all of the round's participants."""
        return participants if self.owners is None else min(self.owners, participants)

    def bits(self, dim: int, participants: int) -> float:
        """Return the bits of a message: 64 for each coordinate that the busiest client sends."""
        return BITS * -(-dim * self.of(participants) // participants)

    def message_length(self, dim: int) -> int:
        """Return how many numbers the server receives: values and mask."""
        return 2 * dim

    def compress(self, values: Array, draws: MessageDraws) -> Array:
        """χ (m v, m), (repetitions, clients, 2 d); columns sj, ..., sj + s − 1 modulo c own coordinate j."""
        c, n, dim = draws.participants, draws.n_clients, values.shape[-1]
        s = self.of(c)
        turn = ranks(draws.shared_words(c))
        column = np.take_along_axis(turn, draws.places, axis=-1)
        after = column[..., None] - s * np.arange(dim) % c  # columns after the coordinate's first owner, modulo c
        scale = n * (s - 1.0) / (s * (n - 1.0)) if n > 1 else 1.0
        sent = np.empty((*values.shape[:-1], 2 * dim))
        np.multiply((after < s) & (after >= 0) | (after < s - c), scale, out=sent[..., dim:])
        np.multiply(values, sent[..., dim:], out=sent[..., :dim])
        return sent


@dataclass(frozen=True)
class SharedCoordinates:
    """k coordinates drawn at random, the same for all clients of a round; k is `share` of d, rounded up.

    A message is (v, m), with m the mask of the coordinates that are sent: what the server takes of the rest is
    nothing, and the client needs it.
    """

    share: float

    def kept(self, dim: int) -> int:
        """k, the number of coordinates that are sent."""
        return kept_entries(self.share, dim)

    def bits(self, dim: int, participants: int) -> float:
        """Return the bits of a message: 64 for each coordinate that is sent."""
        return BITS * self.kept(dim)

    def message_length(self, dim: int) -> int:
        """Return how many numbers the server receives: values and mask."""
        return 2 * dim

    def compress(self, values: Array, draws: MessageDraws) -> Array:
        """(v, m), (repetitions, clients, 2 d): the coordinates with the smallest of the round's words."""
        dim = values.shape[-1]
        sent = np.empty((*values.shape[:-1], 2 * dim))
        sent[..., :dim] = values
        sent[..., dim:] = largest_first(-draws.shared_words(dim).astype(np.float64), self.kept(dim))[:, None, :]
        return sent
