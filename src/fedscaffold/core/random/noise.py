"""Noise that protects records and clients: of a simulation from its stream, otherwise from the operating system.

The noise of a simulation is, as all its draws, a function of (seed, repetition, round, client, step). Its words
have keys of their own, those of the seed and a constant, so that no batch reads them. Step h of a round takes the
normal numbers h·d to h·d + d − 1.
"""

import os

import numpy as np

from fedscaffold.core.random.normals import normals, normals_of
from fedscaffold.core.random.stream import Stream
from fedscaffold.core.types import Array, IntArray

RECORD_KEY, CLIENT_KEY = 0x9E3779B97F4A7C15, 0x3C6EF372FE94F82A  # the seed's other keys, by exclusive or


def step_noise(stream: Stream, step: int, dim: int) -> Array:
    """Standard normal numbers for one local step of a client, (dim,)."""
    own = stream._replace(seed=stream.seed ^ RECORD_KEY)
    return normals(own, step * dim, dim)


def message_noise(seed: int, first_client: int, round: int, clients: IntArray, dim: int) -> Array:
    """Standard normal numbers for the messages of a round, (repetitions, clients, dim), of a simulation."""
    streams = [Stream(seed ^ CLIENT_KEY, r, round, 0) for r in range(len(clients))]
    return np.stack([
        normals_of(stream, first_client + row, dim) for stream, row in zip(streams, clients, strict=True)
    ])  # fmt: skip


def secret_normals(count: int) -> Array:
    """Standard normal numbers from the operating system's generator of secrets: nobody can draw them again.

    They are made of 53 random bits each by the transform of Box and Muller, and end at 8.7 standard deviations.
    """
    words = np.frombuffer(os.urandom(16 * ((count + 1) // 2)), dtype=np.uint64).reshape(2, -1)
    u, v = ((words >> np.uint64(11)).astype(np.float64) + 0.5) / 2.0**53
    radius = np.sqrt(-2.0 * np.log(u))
    return np.concatenate([radius * np.cos(2.0 * np.pi * v), radius * np.sin(2.0 * np.pi * v)])[:count]
