"""Sums over clients: right, and the same bits however the clients are divided."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedscaffold.core.sums import LEAF, PartialSum, partial_sums, partial_sums_of_cohort, total


def numbers(n: int, dim: int, repetitions: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng([n, dim, repetitions])
    return rng.standard_normal((repetitions, n, dim)) * 10.0 ** rng.integers(-9, 9, (n, 1)), rng.random(n)


@pytest.mark.parametrize("n", [1, LEAF - 1, LEAF, LEAF + 1, 5 * LEAF, 13 * LEAF + 7])
def test_the_sum_is_right(n: int) -> None:
    values, weights = numbers(n, 3, 2)
    exact = np.einsum("c,rcj->rj", weights.astype(np.longdouble), values.astype(np.longdouble))
    np.testing.assert_allclose(total(partial_sums(values, weights)), exact.astype(float), rtol=1e-9)


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(1, 40 * LEAF),
    dim=st.sampled_from([1, 2, 20]),
    repetitions=st.sampled_from([1, 3]),
    data=st.data(),
)
def test_blocks_give_the_same_bits(n: int, dim: int, repetitions: int, data: st.DataObject) -> None:
    values, weights = numbers(n, dim, repetitions)
    leaves = -(-n // LEAF)
    cuts = data.draw(st.sets(st.integers(1, leaves), max_size=6))
    ends = sorted({0, n} | {min(n, LEAF * cut) for cut in cuts})
    blocks = [
        part
        for a, b in pairwise(ends)
        for part in partial_sums(np.ascontiguousarray(values[:, a:b]), weights[a:b], first=a)
    ]
    np.testing.assert_array_equal(total(blocks), total(partial_sums(values, weights)))


@settings(max_examples=60, deadline=None)
@given(n=st.integers(2, 20 * LEAF), dim=st.sampled_from([1, 20]), data=st.data())
def test_blocks_of_some_clients_give_the_same_bits(n: int, dim: int, data: st.DataObject) -> None:
    values, weights = numbers(n, dim, 1)
    count = data.draw(st.integers(1, n))
    chosen = np.sort(np.random.default_rng(count).permutation(n)[:count])
    cut = LEAF * data.draw(st.integers(0, -(-n // LEAF)))

    def of(first: int, last: int) -> list[PartialSum]:
        part = chosen[(chosen >= first) & (chosen < last)]
        return partial_sums_of_cohort(values[:, part], weights[None, part], part[None], first=first, last=last)

    whole = total(of(0, n))
    exact = (weights[chosen, None].astype(np.longdouble) * values[0, chosen]).sum(axis=0)
    np.testing.assert_allclose(whole[0], exact.astype(float), rtol=1e-9, atol=1e-9)
    if 0 < cut < n:
        np.testing.assert_array_equal(total([*of(0, cut), *of(cut, n)]), whole)
