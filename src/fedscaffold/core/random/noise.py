"""Noise that protects records and clients: of a simulation from its stream, otherwise from the operating system.

The noise of a simulation is, as all its draws, a function of (seed, repetition, round, client, step). Its words
have other keys, made from the seed and a constant, so that no batch reads them. Step h of a round takes the
numbers h·d to h·d + d − 1. Dropout has a third key: with K numbers per record, record b of step h's batch takes
the words (h·B + b)·K to (h·B + b)·K + K − 1, divided by 2³².

Local steps take many of these numbers, so they are made of few operations, and of few bits each: a block of
four words, sixteen bytes b₀, ..., b₁₅ from the lowest of word 0 on, gives sixteen. With u = (b + ½)/2⁷ − 1,

    yⱼ = c₁u + c₃u³ + c₅u⁵ + c₇u⁷     and     number i of the block = ¼ Σⱼ ±yⱼ,

with the sign (−1)^(|i & j| + |i & i/2|); |·| counts bits that are 1. Number p of a round is number
(p // 8) % 16 of block 8 (p // 128) + p % 8, so that eight blocks side by side give 128 numbers in their order.

The four c are such that the means of y², y⁴, y⁶ and y⁸ equal a normal number's, and the signs are an
orthogonal matrix: sums of these numbers with any weights have the moments of such sums of independent normal
numbers up to the ninth. The distribution function of each number, a sum of sixteen, is within 4e-8 of the normal
one. It exceeds 4 standard deviations as often as a normal number to 2 parts in 100,000, 5 to 3 in 10,000 and 6 to
4 in 1,000, and ends at 12.6. |i & i/2| gives the signs of Rudin and Shapiro: with them a sum of the numbers that
one coordinate gets in consecutive steps is of many of the sixteen y again, and not of a few. Far from normal
are only sums of a block's sixteen numbers with the very signs of one j: they are yⱼ, which has 256 values.
"""

import os

import numpy as np
from numpy.typing import NDArray

from fedscaffold.core.random.normals import LANES, client_words, words_of_clients
from fedscaffold.core.random.stream import Stream
from fedscaffold.core.types import Array, IntArray

# the seed's other keys, by exclusive or
RECORD_KEY, CLIENT_KEY, DROPOUT_KEY = 0x9E3779B97F4A7C15, 0x3C6EF372FE94F82A, 0xDAA66D2C7DDF743F
MIXED = 16  # numbers of a block
NOISE_GROUP = MIXED * LANES
NEARLY_NORMAL = (-4.078134140713756, 54.78427992632026, -138.3078491904034, 91.16643292704707)  # c₁, c₃, c₅, c₇
SIGNS = np.array([
    [(-1) ** ((i & j).bit_count() + (i & i >> 1).bit_count()) for j in range(MIXED)] for i in range(MIXED)
])  # fmt: skip


def step_noise(stream: Stream, step: int, dim: int) -> Array:
    """Return numbers with mean 0 and variance 1 for one local step of a client, (dim,)."""
    return step_noises(stream, np.array([stream.client]), step, dim)[0]


def step_noises(stream: Stream, clients: NDArray[np.int64], step: int, dim: int) -> Array:
    """Return the same for several clients, (clients, dim)."""
    return _numbers(stream._replace(seed=stream.seed ^ RECORD_KEY), clients, step * dim, dim)


def dropout_numbers(stream: Stream, clients: NDArray[np.int64], step: int, records: int, numbers: int) -> Array:
    """Return uniform numbers in [0, 1) for the dropout of one local step, (clients, records, numbers)."""
    own, count = stream._replace(seed=stream.seed ^ DROPOUT_KEY), records * numbers
    return (client_words(own, clients, step * count, count) / 2.0**32).reshape(clients.size, records, numbers)


def message_noise(seed: int, first_client: int, round: int, clients: IntArray, dim: int) -> Array:
    """Return numbers with mean 0 and variance 1 for the messages of a round, (repetitions, clients, dim)."""
    streams = [Stream(seed ^ CLIENT_KEY, r, round, 0) for r in range(len(clients))]
    return np.stack([
        _numbers(stream, first_client + row, 0, dim) for stream, row in zip(streams, clients, strict=True)
    ])  # fmt: skip


def _numbers(stream: Stream, clients: NDArray[np.int64], first: int, count: int) -> Array:
    """Return numbers first, ..., first + count − 1 of the streams of some clients, (clients, count)."""
    low, high = first // NOISE_GROUP, (first + count + NOISE_GROUP - 1) // NOISE_GROUP
    words = words_of_clients(stream, clients, np.arange(low * LANES, high * LANES))
    u = (words.astype("<u4").view(np.uint8) + 0.5) / 2.0**7 - 1.0  # (clients, blocks, 16)
    y = u * np.polynomial.polynomial.polyval(u * u, NEARLY_NORMAL)
    groups = y.reshape(clients.size, -1, LANES, MIXED) @ SIGNS.T / 4.0
    return groups.swapaxes(2, 3).reshape(clients.size, -1)[:, first % NOISE_GROUP :][:, :count]


def secret_normals(count: int) -> Array:
    """Return standard normal numbers from the operating system's generator, which cannot be drawn again.

    They are made of 53 random bits each by the transform of Box and Muller, and end at 8.7 standard deviations.
    """
    words = np.frombuffer(os.urandom(16 * ((count + 1) // 2)), dtype=np.uint64).reshape(2, -1)
    u, v = ((words >> np.uint64(11)).astype(np.float64) + 0.5) / 2.0**53
    radius = np.sqrt(-2.0 * np.log(u))
    return np.concatenate([radius * np.cos(2.0 * np.pi * v), radius * np.sin(2.0 * np.pi * v)])[:count]
