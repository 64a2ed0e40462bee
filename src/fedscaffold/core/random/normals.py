"""Records that are drawn, not kept: uniform and normal numbers from the words of the stream.

Number p of a stream is made of word (p // 8) % 4 of block 8 (p // 32) + p % 8, so that eight blocks side by side
give 32 numbers in their order, without a shuffle. A uniform number is (word + ½)/2³². Normal numbers come in pairs
from words 0 and 1, and from words 2 and 3, of a block (Box & Muller 1958): with u and v the words over 2³²,

    √(−2 log(u + 2⁻³³)) cos 2πv     and     √(−2 log(u + 2⁻³³)) sin 2πv,

which ends at 6.76 standard deviations, beyond which one number in 10¹¹ would lie.

In a client's round, feature j of record i is normal number i·d + j, and records are counted from the round's first
step: step h has records h·B, ..., h·B + B − 1. What else a record needs, its noise or what decides its label, is
number i of the numbers that begin with block 2³¹, so that a client's round has room for 2³³ features. What a
client is like comes from streams of the problem's own seed, of round and repetition 2³² − 1, which no run reaches:
normal numbers from block 0, uniform ones from block 2³¹.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.random.draws import WORDS
from fedscaffold.core.random.draws import uniforms as uniforms_of
from fedscaffold.core.random.stream import Batches, Stream, philox
from fedscaffold.core.types import Array

LANES = 8  # blocks side by side
GROUP = 4 * LANES  # numbers that they give
ASIDE = 2**31  # the block from which noise and labels are drawn
NOBODY = 0xFFFFFFFF  # the round and the repetition of what clients are like


def uniforms(stream: Stream, first: int, count: int) -> Array:
    """Return uniform numbers first, ..., first + count − 1 of a stream, from block 2³¹ on."""
    return _some(uniforms_of(_groups(stream, np.array([stream.client]), first, count, ASIDE)), first, count)[0]


def normals(stream: Stream, first: int, count: int, *, aside: bool = False) -> Array:
    """Return normal numbers first, ..., first + count − 1 of a stream, from block 0 on, or aside from 2³¹ on."""
    words = _groups(stream, np.array([stream.client]), first, count, ASIDE if aside else 0)
    return _some(_normal(words), first, count)[0]


def of_clients(seed: int, clients: NDArray[np.int64], count: int) -> tuple[Array, Array]:
    """Return traits of clients: `count` normal numbers, (clients, count), and one uniform number, (clients,)."""
    own = Stream(seed, NOBODY, NOBODY, 0)
    normal = _some(_normal(_groups(own, clients, 0, count, 0)), 0, count)
    return normal, uniforms_of(words_of_clients(own, clients, np.array([ASIDE]))[:, 0, 0])


def check_streamed(batches: Batches) -> None:
    """Raise for batches that distributions cannot give."""
    if batches.size is None:
        raise InvalidInput(
            "this problem's clients are distributions, which have no last record, so there are no full gradients; "
            "give a batch_size (and to FedLin correction_gradients='minibatch')"
        )
    if batches.sampling != "with_replacement":
        raise InvalidInput(
            "this problem's clients are distributions: every record is a new one and none is put back; "
            "use sampling='with_replacement'"
        )


def words_of_clients(stream: Stream, clients: NDArray[np.int64], blocks: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Return the four words of some blocks of some clients, (clients, blocks, 4)."""
    counter = np.empty((clients.size, blocks.size, 4), dtype=np.uint32)
    counter[..., 0] = blocks & 0xFFFFFFFF
    counter[..., 1] = stream.round
    counter[..., 2] = clients[:, None]
    counter[..., 3] = stream.repetition
    flat = philox(counter.reshape(-1, 4), (stream.seed & 0xFFFFFFFF, stream.seed >> 32))
    return flat.reshape(clients.size, blocks.size, 4)


def client_words(stream: Stream, clients: NDArray[np.int64], first: int, count: int) -> NDArray[np.uint32]:
    """Return words first, ..., first + count − 1 of some clients, (clients, count)."""
    words = words_of_clients(stream, clients, np.arange(first // 4, (first + count + 3) // 4))
    return words.reshape(clients.size, -1)[:, first % 4 : first % 4 + count]


def _groups(stream: Stream, clients: NDArray[np.int64], first: int, count: int, begin: int) -> NDArray[np.uint32]:
    """Return the words of the groups that hold numbers first, ..., first + count − 1: (clients, groups, 4, 8)."""
    low, high = first // GROUP, (first + count + GROUP - 1) // GROUP
    blocks = begin + np.arange(low * LANES, high * LANES)
    return words_of_clients(stream, clients, blocks).reshape(clients.size, -1, LANES, 4).swapaxes(2, 3)


def _normal(words: NDArray[np.uint32]) -> Array:
    radius = np.sqrt(-2.0 * np.log(uniforms_of(words[:, :, ::2])))
    angle = words[:, :, 1::2] * (2.0 * np.pi / WORDS)
    out = np.empty(words.shape)
    out[:, :, ::2], out[:, :, 1::2] = radius * np.cos(angle), radius * np.sin(angle)
    return out


def _some(groups: Any, first: int, count: int) -> Array:
    """Return numbers first, ..., first + count − 1 of each client, out of whole groups."""
    flat: Array = groups.reshape(len(groups), -1)
    return flat[:, first % GROUP : first % GROUP + count]
