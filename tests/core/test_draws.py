"""Records by probability: intervals of words, and stretches of a chain."""

import numpy as np
import pytest
from scipy.stats import chisquare

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.random.draws import Draws, MarkovChain, drawn_batches, interval_ends, positions
from fedscaffold.core.random.stream import Batches, Stream, words

SHARES = np.array([0.2, 0.0, 0.5, 0.3, 0.0])
# Two states with two records each; records 0, 1 start in the first state, 2, 3 in the second.
KERNEL = np.array([[0.25, 0.75], [0.6, 0.4]])
FOLLOWS = np.array([0, 2, 2, 0], dtype=np.int32)  # to themselves or across
LAW = np.array([0.4 / 1.15, 0.75 / 1.15])  # μ₀·0.75 = μ₁·0.4


def chain() -> Draws:
    joint = (LAW[:, None] * KERNEL).reshape(-1)
    return Draws(interval_ends(joint), MarkovChain(interval_ends(KERNEL).reshape(-1), FOLLOWS, 2))


def test_intervals_are_as_long_as_the_shares() -> None:
    ends = interval_ends(SHARES)
    assert ends.tolist() == [round(0.2 * 2**32), round(0.2 * 2**32), round(0.7 * 2**32), 2**32, 2**32]
    assert interval_ends(np.full(3, 1 / 3))[-1] == 2**32
    assert interval_ends(np.array([0.5, 0.5 + 1e-12, 0.0])).tolist() == [2**31, 2**32, 2**32]


def test_each_word_draws_by_the_interval_that_it_falls_into() -> None:
    stream = Stream(1, 2, 3, 4)
    raw, found = words(stream, 5, 1000), positions(Draws(interval_ends(SHARES)), stream, 5, 1000, slice(0, 5))
    for word, row in zip(raw.tolist(), found.tolist(), strict=True):
        assert row == (0 if word < round(0.2 * 2**32) else 2 if word < round(0.7 * 2**32) else 3)


def test_a_chain_goes_where_it_can_and_is_stationary_from_its_first_record() -> None:
    draws, n = chain(), 20_000
    rows = np.stack([positions(draws, Stream(7, 0, t, 0), 0, 6, slice(0, 4)) for t in range(n)])
    assert (rows[:, 1:] // 2 == FOLLOWS[rows[:, :-1]] // 2).all()
    joint = (LAW[:, None] * KERNEL).reshape(-1)
    for position in (0, 1, 5):  # rounds are independent, so that counts are multinomial; false alarms 1e-4 each
        assert chisquare(np.bincount(rows[:, position], minlength=4), n * joint).pvalue > 1e-4
    pairs = np.bincount(4 * rows[:, 2] + rows[:, 3], minlength=16).reshape(4, 4)
    expected = joint[:, None] * np.where(np.arange(4) // 2 == FOLLOWS[:, None] // 2, KERNEL.reshape(-1), 0.0)
    seen = expected > 0
    assert pairs[~seen].sum() == 0
    assert chisquare(pairs[seen], n * expected[seen]).pvalue > 1e-4


@pytest.mark.parametrize("draws", [Draws(interval_ends(SHARES[:4] / 1.0)), chain()])
def test_later_positions_are_those_of_the_whole_stretch(draws: Draws) -> None:
    stream = Stream(1, 0, 5, 2)
    whole = positions(draws, stream, 0, 30, slice(0, 4))
    for first in (1, 4, 13):
        np.testing.assert_array_equal(positions(draws, stream, first, 30 - first, slice(0, 4)), whole[first:])
    batches = list(drawn_batches(draws, stream, range(2, 6), Batches(5), slice(0, 4)))
    np.testing.assert_array_equal(np.concatenate(batches), whole[10:30])


def test_full_gradients_draw_nothing() -> None:
    with pytest.raises(InvalidInput, match="mean field"):
        list(drawn_batches(chain(), Stream(0, 0, 0, 0), range(2), Batches(), slice(0, 4)))
