"""Draws from the words of the stream: records by probabilities or along a Markov chain, and words for messages.

A record's share of the words 0..2³² − 1 is an interval, so that one word draws one record by inverting the
cumulative distribution, with probabilities exact to 2⁻³². Along a chain, position 0 of a round is drawn by
itself and every later position among the records that may follow the one before: so a round is one stretch of a
stationary chain, and still a pure function of (seed, repetition, round, client, position).

Repetition r reads its words for messages from repetition 2³¹ + r: compression draws the same in every engine, on
any shard and at a site, and reads nothing that local steps read.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.random.stream import SERVER, Batches, Stream, philox, words
from fedscaffold.core.types import IntArray

WORDS = 2**32  # as many as there are different ones


class MarkovChain(NamedTuple):
    """Which records may follow which: `branching` consecutive ones, from follows[i] on, for record i.

    `ends` are the ends of a record's interval among the records that follow the same ones. Indices count from the
    client's first record; arrays hold all clients' records, client after client.
    """

    ends: NDArray[np.uint64]
    follows: NDArray[np.int32]
    branching: int


class Draws(NamedTuple):
    """A word w draws the client's first record i with w < ends[i]; along a chain, only at the round's first."""

    ends: NDArray[np.uint64]  # of all clients' records, client after client
    chain: MarkovChain | None = None


def interval_ends(probabilities: NDArray[np.float64]) -> NDArray[np.uint64]:
    """Return round(2³² (p₀ + ... + p_i)) along the last axis, the last one 2³²; p ≥ 0 sum to one."""
    ends = np.rint(np.minimum(np.cumsum(probabilities, axis=-1), 1.0) * WORDS).astype(np.uint64)
    ends[..., -1] = WORDS
    return ends


def positions(draws: Draws, stream: Stream, first: int, count: int, part: slice) -> NDArray[np.int64]:
    """Return records at positions first, ..., first + count − 1 of a round of the client with records `part`."""
    ends = draws.ends[part]
    if draws.chain is None:
        return np.searchsorted(ends, words(stream, first, count), side="right").astype(np.int64)
    chain_ends, follows, branching = draws.chain.ends[part], draws.chain.follows[part], draws.chain.branching
    rows = np.empty(first + count, dtype=np.int64)
    for position, word in enumerate(words(stream, 0, rows.size)):
        if position == 0:
            rows[0] = np.searchsorted(ends, word, side="right")
        else:
            begin = int(follows[rows[position - 1]])
            among = chain_ends[begin : begin + branching]
            rows[position] = begin + np.searchsorted(among, word, side="right")
    return rows[first:]


def drawn_batches(
    draws: Draws, stream: Stream, steps: range, batches: Batches, part: slice
) -> Iterator[NDArray[np.int64]]:
    """Yield the records of each of some consecutive local steps."""
    if batches.size is None:
        raise InvalidInput("full gradients draw nothing; open the problem's mean field instead")
    count = batches.size * len(steps)
    yield from positions(draws, stream, steps.start * batches.size, count, part).reshape(len(steps), batches.size)


def check_drawable(batches: Batches) -> None:
    """Raise for batches that records drawn by probability cannot give."""
    if batches.size is not None and batches.sampling != "with_replacement":
        raise InvalidInput(
            "this problem draws its records by their probabilities, so a batch may hold one twice; "
            "use sampling='with_replacement'"
        )


class MessageDraws(NamedTuple):
    """Source of the draws of compressors in one round: who sends, and the random words."""

    seed: int
    round: int
    clients: IntArray  # (repetitions, senders), indices among all n_clients
    places: IntArray  # (repetitions, senders), their places among the round's participants
    participants: int
    n_clients: int

    def own_words(self, count: int) -> NDArray[np.uint32]:
        """Return `count` words for each sender, shape (repetitions, senders, count)."""
        return self._words(self.clients, count)

    def shared_words(self, count: int) -> NDArray[np.uint32]:
        """Return `count` words that all participants of a repetition share, shape (repetitions, count)."""
        return self._words(np.full((len(self.clients), 1), SERVER), count)[:, 0]

    def _words(self, clients: IntArray, count: int) -> NDArray[np.uint32]:
        counter = np.empty((*clients.shape, (count + 3) // 4, 4), dtype=np.uint32)
        counter[..., 0] = np.arange((count + 3) // 4)
        counter[..., 1] = self.round
        counter[..., 2] = clients[..., None]
        counter[..., 3] = ((1 << 31) + np.arange(len(clients)))[:, None, None]
        words = philox(counter.reshape(-1, 4), (self.seed & 0xFFFFFFFF, self.seed >> 32))
        return words.reshape(*clients.shape, 4 * counter.shape[-2])[..., :count]


def uniforms(words: NDArray[np.uint32]) -> NDArray[np.float64]:
    """Return numbers in (0, 1), one for each word."""
    return (words.astype(np.float64) + 0.5) / WORDS
