"""Numbers and maxima as words whose sums are exact: against whole-number arithmetic and plain maxima."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.files import Fields
from fedscaffold.federation.study.measure import step_up
from fedscaffold.federation.study.secure.blocks import SumBlock, decode, encode, read_blocks, wider
from fedscaffold.federation.study.secure.exact import (
    SCALAR,
    SQUARE,
    exact_sum,
    exact_sum_of_squares,
    highest,
    ladder_size,
    reached,
)

SIZES = st.floats(min_value=-1e20, max_value=1e20, allow_subnormal=False).filter(
    lambda x: x == 0.0 or abs(x) > 1e-20
)


@given(arrays(np.float64, st.integers(0, 30), elements=SIZES))
def test_sums_and_sums_of_squares_have_no_rounding(values: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> None:
    exact = [Fraction(float(value)) for value in values]
    assert exact_sum(values) == sum(exact)
    assert exact_sum_of_squares(values) == sum(value**2 for value in exact)


@given(st.lists(st.lists(SIZES, min_size=2, max_size=2), min_size=1, max_size=8))
def test_sums_of_words_are_sums_of_numbers(sites: list[list[float]]) -> None:
    total = np.asarray(np.sum([SCALAR.encode(numbers) for numbers in sites], axis=0, dtype=np.uint64))
    for k, found in enumerate(SCALAR.decode(total)):
        expected = sum(Fraction(numbers[k]) for numbers in sites)
        assert abs(found - expected) <= Fraction(len(sites), 2**SCALAR.fraction_bits)


@pytest.mark.parametrize("value", [math.inf, math.nan, 1e60])
def test_numbers_beyond_the_range_are_refused(value: float) -> None:
    with pytest.raises(InvalidInput, match="nothing was sent"):
        SCALAR.encode([value])
    assert SQUARE.decode(SQUARE.encode([1e40]))[0] == Fraction(1e40)


@given(st.lists(st.floats(min_value=1e-10, max_value=1e20, allow_subnormal=False), min_size=1, max_size=6))
def test_the_largest_number_is_found_on_the_ladder_and_nothing_else_of_it(values: list[float]) -> None:
    total = np.asarray(np.sum([reached(value) for value in values], axis=0, dtype=np.uint64))
    found = highest(total)
    assert found == pytest.approx(max(step_up(value) for value in values), rel=1e-12)
    assert max(values) <= found * (1 + 1e-9)
    assert found <= max(values) * 2 ** (1 / 16) * (1 + 1e-9)
    steps = np.flatnonzero(total)
    assert steps.size == steps[-1] + 1  # everything below is reached, whoever else is there


def test_what_the_ladder_cannot_hold() -> None:
    assert not reached(0.0).any()
    assert highest(np.zeros(ladder_size(), np.uint64)) == 0.0
    assert highest(reached(1e-300)) == 2.0**-40
    with pytest.raises(InvalidInput, match="beyond the range"):
        reached(1e30)
    assert (step_up(0.0), step_up(1.0), step_up(2.0**0.5)) == (0.0, 1.0, 2.0**0.5)


def test_words_of_a_ladder_are_new_every_time() -> None:
    one, two = reached(3.0), reached(3.0)
    assert (one[one > 0] != two[two > 0]).all()


def test_blocks_follow_each_other_and_refuse_others() -> None:
    blocks = [SumBlock("counts", 2), SumBlock("numbers", 3, 10.0)]
    values = {"counts": np.array([1, 2], np.uint64), "numbers": np.array([1.5, -2.0, 9.0])}
    found = decode(encode(values, blocks, 4) + encode(values, blocks, 4), blocks, 4)
    assert found["counts"].tolist() == [2, 4]
    assert found["numbers"].tolist() == [3.0, -4.0, 18.0]
    assert wider(blocks, 4.0) == [blocks[0], blocks[1]._replace(limit=40.0)]
    with pytest.raises(InvalidInput, match="numbers up to 10"):
        encode({**values, "numbers": np.array([1.0, 2.0, 11.0])}, blocks, 4)
    with pytest.raises(InvalidInput, match="asks for 3 words of numbers"):
        encode({**values, "numbers": np.zeros(4)}, blocks, 4)
    with pytest.raises(InvalidInput, match="other numbers"):
        encode({"counts": values["counts"]}, blocks, 4)


@pytest.mark.parametrize("wrong", [[["a", 1]], [["a", 0, None]], [["a", 1, -1.0]], [[1, 1, None]], ["abc"], 7])
def test_blocks_from_a_wire_are_validated(wrong: object) -> None:
    with pytest.raises(InvalidInput):
        read_blocks(Fields({"blocks": wrong}, "the request"), "blocks")
