"""The JAX engine draws what core.stream draws, in 32- and in 64-bit mode."""

import jax
import numpy as np
import pytest

from fedscaffold.core.random.stream import Stream, distinct, scaled
from fedscaffold.core.random.stream import words as true_words
from fedscaffold.engines.jax_ import steps

SEEDS = (0, 7, 2**32 - 1, 2**40 + 3, 2**64 - 1)


def place(seed: int, round: int, clients: list[int], repetitions: list[int]) -> steps.Place:
    key = np.array([seed & 0xFFFFFFFF, seed >> 32], dtype=np.uint32)
    return steps.Place(key, np.uint32(round), np.array(clients, np.int32), np.array(repetitions, np.int32))


@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize("seed", SEEDS)
def test_words(seed: int, wide: bool) -> None:
    clients, repetitions = [0, 5, 2**31 - 1], [2, 0, 9]
    with jax.enable_x64(wide):
        found = np.asarray(steps.words(place(seed, 11, clients, repetitions), np.uint32(3), 5))
    wanted = [true_words(Stream(seed, r, 11, c), 12, 20) for c, r in zip(clients, repetitions, strict=True)]
    np.testing.assert_array_equal(found, np.stack(wanted))


@pytest.mark.parametrize("wide", [True, False])
def test_high_half_of_a_product(wide: bool) -> None:
    rng = np.random.default_rng(0)
    edges = np.array([0, 1, 0xFFFF, 0x10000, 0xFFFFFFFF], dtype=np.uint64)
    a = np.concatenate([rng.integers(0, 2**32, 2000, dtype=np.uint64), np.repeat(edges, 5)])
    b = np.concatenate([rng.integers(0, 2**32, 2000, dtype=np.uint64), np.tile(edges, 5)])
    with jax.enable_x64(wide):
        found = np.asarray(steps.high(jax.numpy.asarray(a.astype(np.uint32)), b.astype(np.uint32)))
    np.testing.assert_array_equal(found, (a * b) >> np.uint64(32))


@pytest.mark.parametrize("batch", [1, 12])
def test_indices(batch: int) -> None:
    n = np.array([12, 13, 200])  # the first with as many draws as records: a whole shuffle
    streams = [Stream(5, 0, 1, c) for c in range(3)]
    word = np.stack([true_words(s, 0, 40 * batch).reshape(40, batch) for s in streams])
    given = jax.numpy.asarray(word)
    np.testing.assert_array_equal(steps.with_replacement(given, n), scaled(word, n[:, None, None]))
    wanted = [[distinct(s, h * batch, batch, int(k)) for h in range(40)] for s, k in zip(streams, n, strict=True)]
    np.testing.assert_array_equal(steps.without_replacement(given, n), wanted)
