"""Numbers drawn from the words of the stream: where they lie, and that they are what they should be."""

import numpy as np
import pytest
from scipy import stats

from fedscaffold.core.random.normals import GROUP, normals, of_clients, uniforms
from fedscaffold.core.random.stream import Stream, words

STREAM = Stream(seed=2**40 + 7, repetition=2, round=5, client=9)


def word(p: int, begin: int = 0) -> tuple[int, int]:
    """The block and the word of number p, as the module's docstring says."""
    return begin + 8 * (p // 32) + p % 8, (p // 8) % 4


@pytest.mark.parametrize("p", [0, 7, 8, 31, 32, 100, 12345])
def test_a_uniform_number_is_its_word(p: int) -> None:
    block, k = word(p, 2**31)
    expected = (float(words(STREAM, 4 * block, 4)[k]) + 0.5) / 2.0**32
    assert uniforms(STREAM, p, 1)[0] == expected


@pytest.mark.parametrize("aside", [False, True])
@pytest.mark.parametrize("p", [0, 7, 8, 31, 32, 100, 12345])
def test_a_normal_number_is_made_of_its_block(p: int, aside: bool) -> None:
    block, k = word(p, 2**31 if aside else 0)
    w = words(STREAM, 4 * block, 4).astype(np.float64)
    radius = np.sqrt(-2.0 * np.log((w[k // 2 * 2] + 0.5) / 2.0**32))
    turn = np.sin if k % 2 else np.cos
    expected = radius * turn(2.0 * np.pi * w[k // 2 * 2 + 1] / 2.0**32)
    assert normals(STREAM, p, 1, aside=aside)[0] == pytest.approx(expected, abs=1e-14)


def test_any_stretch_is_part_of_the_whole() -> None:
    whole = normals(STREAM, 0, 5 * GROUP)
    for first, count in ((0, 1), (31, 2), (33, 64), (100, 60)):
        np.testing.assert_array_equal(normals(STREAM, first, count), whole[first : first + count])


def test_clients_numbers_are_those_of_their_own_streams() -> None:
    ids = np.array([4, 0, 2**32 - 2])
    normal, uniform = of_clients(11, ids, 40)
    for k, client in enumerate(ids):
        own = Stream(11, 2**32 - 1, 2**32 - 1, int(client))
        np.testing.assert_array_equal(normal[k], normals(own, 0, 40))
        assert uniform[k] == uniforms(own, 0, 1)[0]


def test_they_are_normal_and_independent() -> None:
    """200,000 numbers; each check fails by chance in less than one of 1,000 seeds, and the seed is fixed."""
    x = normals(STREAM, 0, 200_000)
    assert stats.kstest(x, "norm").pvalue > 1e-3
    n = x.size
    for power, expected, variance in ((1, 0.0, 1.0), (2, 1.0, 2.0), (3, 0.0, 15.0), (4, 3.0, 96.0)):
        assert abs((x**power).mean() - expected) < 3.5 * np.sqrt(variance / n)
    for lag in (1, 8, 16, 24, 32):
        assert abs((x[lag:] * x[:-lag]).mean()) < 3.5 / np.sqrt(n)
        squares = x**2 - 1.0
        assert abs((squares[lag:] * squares[:-lag]).mean()) < 3.5 * 2.0 / np.sqrt(n)
