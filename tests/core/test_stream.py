"""The index stream: Philox's published values, and what draws from it look like.

Statistical checks refuse at p < FALSE_ALARM: a right stream would fail each with probability 1e-6 at a new seed.
"""

from itertools import combinations, permutations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import chisquare

from fedscaffold.core.random.stream import Batches, Stream, batch, philox, scaled, words
from tests import naive

FALSE_ALARM = 1e-6
HOME = Stream(seed=11, repetition=3, round=7, client=5)
NEIGHBOURS = [
    HOME._replace(seed=12),
    HOME._replace(seed=11 + 2**32),
    HOME._replace(repetition=4),
    HOME._replace(round=8),
    HOME._replace(client=6),
    HOME._replace(round=5, client=7),
]


def assert_uniform(cells: NDArray[np.int64], n_cells: int) -> None:
    counts = np.bincount(cells, minlength=n_cells)
    assert counts.size == n_cells
    assert counts.sum() >= 10 * n_cells  # enough for the chi-square
    assert chisquare(counts).pvalue > FALSE_ALARM
    assert chisquare(counts).pvalue < 1 - FALSE_ALARM  # nor too even


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)
def test_known_answers_of_random123(counter: str, key: str, expected: str) -> None:
    c, k, e = ([int(word, 16) for word in text.split()] for text in (counter, key, expected))
    assert philox(np.array([c], np.uint32), (k[0], k[1]))[0].tolist() == e
    assert naive.philox(c, k) == e


def test_words_are_where_the_layout_says() -> None:
    key = (11, 0)
    block = philox(np.array([[2, 7, 5, 3]], np.uint32), key)[0]  # position // 4, round, client, repetition
    assert words(HOME, 8, 4).tolist() == block.tolist()
    long = words(HOME, 0, 40)
    for first in range(9):
        for count in range(1, 9):
            assert words(HOME, first, count).tolist() == long[first : first + count].tolist()


def test_scaled_reaches_both_ends() -> None:
    ends = np.array([0, 2**32 - 1], np.uint32)
    for n in (1, 2, 200, 2**31):
        assert scaled(ends, n).tolist() == [0, n - 1]


@pytest.mark.parametrize("n", [2, 7, 200])
def test_indices_are_uniform(n: int) -> None:
    assert_uniform(scaled(words(HOME, 0, 40_000), n), n)


@pytest.mark.parametrize("lag", [1, 2, 3, 4, 10])
def test_successive_draws_are_jointly_uniform(lag: int) -> None:
    drawn = scaled(words(HOME, 0, 40_000 + lag), 10)
    assert_uniform(10 * drawn[:-lag] + drawn[lag:], 100)


@pytest.mark.parametrize("other", NEIGHBOURS)
def test_neighbouring_streams_are_independent(other: Stream) -> None:
    here, there = (scaled(words(stream, 0, 40_000), 10) for stream in (HOME, other))
    assert_uniform(10 * here + there, 100)
    correlation = np.corrcoef(here, there)[0, 1] * np.sqrt(here.size)
    assert abs(correlation) < 4.9  # normal; false alarm 1e-6


@pytest.mark.parametrize("field", ["seed", "repetition", "round", "client"])
def test_first_draws_are_uniform_over_each_coordinate(field: str) -> None:
    first = [words(HOME._replace(**{field: k}), 0, 1)[0] for k in range(2000)]
    assert_uniform(scaled(np.array(first), 20), 20)


def test_without_replacement_is_distinct_and_within_range() -> None:
    for step in range(200):
        drawn = batch(HOME, step, Batches(8, "without_replacement"), 11)
        assert len(set(drawn.tolist())) == 8
        assert drawn.min() >= 0
        assert drawn.max() < 11


def test_every_subset_is_equally_likely() -> None:
    subsets = {subset: i for i, subset in enumerate(combinations(range(6), 3))}
    batches = Batches(3, "without_replacement")
    drawn = [subsets[tuple(sorted(batch(HOME, h, batches, 6).tolist()))] for h in range(4000)]
    assert_uniform(np.array(drawn), 20)


def test_a_batch_of_all_records_is_a_uniform_permutation() -> None:
    orders = {order: i for i, order in enumerate(permutations(range(4)))}
    batches = Batches(4, "without_replacement")
    assert_uniform(np.array([orders[tuple(batch(HOME, h, batches, 4).tolist())] for h in range(4000)]), 24)


def test_full_gradients_use_each_record_once() -> None:
    assert batch(HOME, 5, Batches(), 6).tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.slow
@pytest.mark.parametrize("other", NEIGHBOURS)
def test_a_million_draws(other: Stream) -> None:
    here, there = (scaled(words(stream, 0, 1_000_000), 50) for stream in (HOME, other))
    assert_uniform(50 * here[:-1] + here[1:], 2500)
    assert_uniform(50 * here + there, 2500)
