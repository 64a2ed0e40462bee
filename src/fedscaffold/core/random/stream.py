"""One random stream for all engines: Philox4x32-10 (Salmon, Moraes, Dror & Shaw, SC 2011).

Counter-based: a word is a pure function of (seed, repetition, round, client, position), so every engine
reads the same indices in any order, on any number of threads or machines. The seed is the key; the
counter's four words are (position // 4, round, client, repetition), and position % 4 picks one of the
four words that come out. Local step h reads positions h·B to h·B + B − 1. The server has a stream of its
own, that of client 2³² − 1: position 0 is the round's uniform number, those from 4 on choose the cohort.
Where records are drawn and not kept (`core.random.normals`), step h reads instead the numbers h·B·d to
h·B·d + B·d − 1 for its features, and h·B to h·B + B − 1 of those from position 2³³ on for its targets; the
clients' distributions are drawn with the problem's seed, in round and repetition 2³² − 1.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from fedscaffold.core.checks import choice, set_fields, whole_number
from fedscaffold.core.errors import InvalidInput

Sampling = Literal["with_replacement", "without_replacement"]

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
PHILOX_ROUNDS = 10
LOW = np.uint64(0xFFFFFFFF)
HALF = np.uint64(32)
FACTORS = np.array(MULTIPLIERS, dtype=np.uint64)[:, None]
ROUND_KEYS = np.arange(PHILOX_ROUNDS, dtype=np.uint64)[:, None] * np.array(WEYL, dtype=np.uint64)
SERVER = 0xFFFFFFFF
WORDS_PER_ROUND = 2**34  # of one client: four in each of the counter's 2³² blocks
COHORT = 4  # the position from which the server's words choose who takes part


@dataclass(frozen=True)
class Batches:
    """How a stochastic gradient picks its records.

    Parameters
    ----------
    size
        B, the number of records in a batch; None for all of a client's records.
    sampling
        "with_replacement" or "without_replacement", within a batch.
    """

    size: int | None = None
    sampling: Sampling = "with_replacement"

    def __post_init__(self) -> None:
        if self.size is not None:
            set_fields(self, size=whole_number("batch_size", self.size, least=1, most=2**31 - 1))
        choice("sampling", self.sampling, get_args(Sampling))

    def check_fits(self, sizes: NDArray[np.int64]) -> None:
        """Raise if a batch without replacement is larger than a client."""
        if self.size is None or self.sampling == "with_replacement" or self.size <= sizes.min():
            return
        client = int(sizes.argmin())
        raise InvalidInput(
            f"batch_size={self.size} without replacement, but client {client} has {sizes[client]} records; "
            "take a smaller batch or sampling='with_replacement'"
        )

    def noise_factor(self, n: int) -> float:
        """Return the variance of a batch mean over that of one record: 1/B, (n−B)/(B(n−1)) without replacement."""
        if self.size is None:
            return 0.0
        if self.sampling == "with_replacement":
            return 1.0 / self.size
        return (n - self.size) / (self.size * max(n - 1, 1))


class Stream(NamedTuple):
    """The random words of one client in one round of one repetition."""

    seed: int
    repetition: int
    round: int
    client: int


def philox(counter: NDArray[np.uint32], key: tuple[int, int]) -> NDArray[np.uint32]:
    """Philox4x32-10 of each row of an (m, 4) array of counters."""
    keys = (np.array(key, dtype=np.uint64) + ROUND_KEYS) & LOW
    first, second = (np.ascontiguousarray(counter.T[i::2], dtype=np.uint64) for i in range(2))
    product = np.empty_like(first)
    swapped = product[::-1]  # each word goes on with the other one's product
    for round_key in keys:
        np.multiply(first, FACTORS, out=product)
        np.right_shift(swapped, HALF, out=first)
        first ^= second
        first ^= round_key[:, None]
        np.bitwise_and(swapped, LOW, out=second)
    found = np.empty((len(counter), 4), dtype=np.uint32)
    found[:, ::2], found[:, 1::2] = first.T, second.T
    return found


def words(stream: Stream, first: int, count: int) -> NDArray[np.uint32]:
    """Words first, ..., first + count − 1 of a stream."""
    blocks = np.arange(first // 4, (first + count + 3) // 4, dtype=np.uint64)
    counter = np.empty((blocks.size, 4), dtype=np.uint32)
    counter[:, 0] = blocks & LOW
    counter[:, 1:] = (stream.round, stream.client, stream.repetition)
    flat = philox(counter, (stream.seed & 0xFFFFFFFF, stream.seed >> 32)).ravel()
    return flat[first % 4 : first % 4 + count]


def scaled(word: NDArray[np.uint32], n: NDArray[np.int64] | int) -> NDArray[np.int64]:
    """floor(n · word / 2³²): an index below n, uniform but for n/2³²."""
    product = word.astype(np.uint64) * np.asarray(n, dtype=np.uint64)
    return (product >> HALF).astype(np.int64)


def batch(stream: Stream, step: int, batches: Batches, n: int) -> NDArray[np.int64]:
    """Return indices in 0..n−1 of the records that one local step uses."""
    if batches.size is None:
        return np.arange(n)
    first = step * batches.size
    if batches.sampling == "with_replacement":
        return scaled(words(stream, first, batches.size), n)
    return distinct(stream, first, batches.size, n)


def distinct(stream: Stream, first: int, count: int, n: int) -> NDArray[np.int64]:
    """`count` different indices in 0..n−1: the first draws of a Fisher–Yates shuffle."""
    return shuffled(scaled(words(stream, first, count), n - np.arange(count)))


def shuffled(jumps: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the first draws of a Fisher–Yates shuffle: draw b takes what lies jumps[b] places after place b."""
    chosen, moved = [], dict[int, int]()  # moved holds the places of the shuffled row that are not as at first
    for b, jump in enumerate(jumps.tolist()):
        chosen.append(moved.get(b + jump, b + jump))
        moved[b + jump] = moved.get(b, b)
    return np.array(chosen, dtype=np.int64)


def cohorts(seed: int, repetitions: int, round: int, count: int, n_clients: int) -> NDArray[np.int64]:
    """Return the cohort of a round: different clients, ascending, shape (repetitions, count)."""
    rows = [
        np.sort(distinct(Stream(seed, r, round, SERVER), COHORT, count, n_clients)) for r in range(repetitions)
    ]
    return np.stack(rows)


def round_uniforms(seed: int, repetitions: int, rounds: range) -> NDArray[np.float64]:
    """One number per repetition and round, uniform in (0, 1), shape (repetitions, rounds)."""
    counter = np.zeros((repetitions, len(rounds), 4), dtype=np.uint32)
    counter[..., 1] = np.arange(rounds.start, rounds.stop)
    counter[..., 2] = SERVER
    counter[..., 3] = np.arange(repetitions)[:, None]
    word = philox(counter.reshape(-1, 4), (seed & 0xFFFFFFFF, seed >> 32))[:, 0]
    return ((word.astype(np.float64) + 0.5) / 2.0**32).reshape(repetitions, len(rounds))
