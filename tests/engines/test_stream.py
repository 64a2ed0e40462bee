"""The compiled index stream against the NumPy one and against the oracle, word by word."""

from typing import Any

import numpy as np
import pytest
from numba import njit

from fedscaffold.core.random import stream as numpy_stream
from fedscaffold.core.random.stream import Batches, Sampling, Stream
from fedscaffold.engines.numba_ import stream as compiled
from tests import naive


@njit
def words(*arguments: Any) -> None:
    """These functions can be called by compiled ones alone."""
    compiled.words(*arguments)


@njit
def with_replacement(*arguments: Any) -> None:
    compiled.with_replacement(*arguments)


@njit
def without_replacement(*arguments: Any) -> None:
    compiled.without_replacement(*arguments)


STREAMS = [
    Stream(0, 0, 0, 0),
    Stream(1, 2, 3, 4),
    Stream(2**64 - 1, 2**31, 10**6, 10**5),
    Stream(2**32, 2**32 - 1, 2**32 - 1, 2**32 - 1),
]


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize(("first", "count"), [(0, 16), (8, 9), (400, 1), (4 * 10**6, 4)])
def test_words(stream: Stream, first: int, count: int) -> None:
    raw = np.zeros(-(-count // 4) * 4, np.uint32)
    key = (stream.seed & 0xFFFFFFFF, stream.seed >> 32)
    words(raw, first, count, key, (stream.round, stream.client, stream.repetition))
    expected = [naive.word(*stream, position) for position in range(first, first + count)]
    assert raw[:count].tolist() == expected
    assert numpy_stream.words(stream, first, count).tolist() == expected


@pytest.mark.parametrize(("n", "size"), [(1, 1), (7, 3), (7, 7), (200, 10)])
@pytest.mark.parametrize("sampling", ["with_replacement", "without_replacement"])
def test_batches(n: int, size: int, sampling: Sampling) -> None:
    stream, steps = Stream(5, 1, 2, 3), 12
    raw = np.zeros(steps * size, np.uint32)
    words(raw, 0, steps * size, (5, 0), (2, 3, 1))
    rows = np.full(steps * size, -1, np.int32)
    if sampling == "with_replacement":
        with_replacement(raw, rows, steps * size, n)
    else:
        order = np.arange(n, dtype=np.int32)
        without_replacement(raw, rows, steps * size, size, order)
        assert order.tolist() == list(range(n))
    draw = naive.drawing(5, [n] * 4, size, sampling)
    for h in range(steps):
        expected = draw(1, 2, 3, h)
        assert rows[h * size : (h + 1) * size].tolist() == expected
        assert numpy_stream.batch(stream, h, Batches(size, sampling), n).tolist() == expected
