"""The noise of simulations: what it is made of, and how near to independent normal numbers it is."""

import numpy as np
import pytest
from scipy import stats

from fedscaffold.core.random.noise import (
    CLIENT_KEY,
    MIXED,
    NEARLY_NORMAL,
    NOISE_GROUP,
    RECORD_KEY,
    SIGNS,
    message_noise,
    step_noise,
)
from fedscaffold.core.random.normals import LANES
from fedscaffold.core.random.stream import Stream
from fedscaffold.core.types import Array
from tests.naive import noise_number

STREAM = Stream(seed=2**40 + 7, repetition=2, round=5, client=9)
U = (np.arange(256) + 0.5) / 128 - 1.0
Y = U * np.polynomial.polynomial.polyval(U * U, NEARLY_NORMAL)  # of all bytes


@pytest.mark.parametrize(("step", "dim"), [(0, 1), (3, 20), (1, 300), (6, 128), (10**6, 7)])
def test_the_noise_of_a_step_is_as_it_is_documented(step: int, dim: int) -> None:
    seed, repetition, round, client = STREAM._replace(seed=STREAM.seed ^ RECORD_KEY)
    expected = [noise_number(seed, repetition, round, client, step * dim + j) for j in range(dim)]
    np.testing.assert_allclose(step_noise(STREAM, step, dim), expected, rtol=0, atol=1e-13)


def test_the_noise_of_a_message_is_as_it_is_documented() -> None:
    found = message_noise(11, 100, 4, np.array([[0, 5], [2, 3]]), 9)
    for r, row in enumerate(([0, 5], [2, 3])):
        for k, client in enumerate(row):
            expected = [noise_number(11 ^ CLIENT_KEY, r, 4, 100 + client, j) for j in range(9)]
            np.testing.assert_allclose(found[r, k], expected, rtol=0, atol=1e-13)


def test_bytes_have_moments_of_a_normal_number_up_to_the_ninth() -> None:
    for power, expected in ((2, 1.0), (4, 3.0), (6, 15.0), (8, 105.0)):
        assert (Y**power).mean() == pytest.approx(expected, rel=1e-13)
    for power in (1, 3, 5, 7, 9):
        assert abs((Y**power).mean()) < 1e-12


def test_bytes_are_mixed_by_an_orthogonal_matrix() -> None:
    np.testing.assert_array_equal(SIGNS @ SIGNS.T, MIXED * np.eye(MIXED))


def test_sums_over_consecutive_steps_are_of_many_bytes() -> None:
    """With d = 8, 16, 32, 64 features a coordinate gets every first, second, fourth, eighth number of a block."""
    for stride in (1, 2, 4, 8):
        for first in range(stride):
            own = SIGNS[first::stride]
            for count in range(1, len(own) + 1):
                for begin in range(len(own) - count + 1):
                    weights = own[begin : begin + count].sum(axis=0) ** 2.0
                    assert weights.sum() == MIXED * count
                    assert weights.sum() ** 2 / (weights**2).sum() >= 5.0  # as of so many with equal weights


def law(x: Array, terms: int) -> tuple[Array, Array]:
    """P(X ≤ x) minus the normal one, and divided by P(N > x), X the sum of so many numbers y over its root.

    By the characteristic function; beyond 40 it is below 1e-9.
    """
    t = np.arange(0.002, 40.0, 0.004)
    difference = np.cos(np.outer(t / np.sqrt(terms), Y)).mean(axis=1) ** terms - np.exp(-0.5 * t**2)
    found = 0.004 * (difference / t * np.sin(np.outer(x, t))).sum(axis=1) / np.pi
    return found, np.abs(found) / stats.norm.sf(x)


def test_a_number_is_as_near_to_normal_as_is_documented() -> None:
    assert np.abs(law(np.linspace(0.0, 7.0, 200), MIXED)[0]).max() < 4e-8
    beyond = law(np.array([4.0, 5.0, 6.0]), MIXED)[1]
    assert (beyond < [2e-5, 3e-4, 4e-3]).all()
    assert np.abs(law(np.linspace(0.0, 7.0, 200), 8)[0]).max() < 2e-6  # a sum that is of eight bytes
    assert 12.6 < 4.0 * np.abs(Y).max() < 12.7


def drawn(count: int) -> Array:
    """Noise of `count` numbers, that of one step."""
    return step_noise(STREAM, 0, count)


def test_numbers_are_normal_and_independent() -> None:
    """A million numbers; each check fails by chance in less than one of 10,000 seeds, and the seed is fixed."""
    x = drawn(2**20)
    n, limit = x.size, 3.9
    assert stats.kstest(x, "norm").pvalue > 1e-4
    for power, expected, variance in (
        (1, 0.0, 1.0),
        (2, 1.0, 2.0),
        (3, 0.0, 15.0),
        (4, 3.0, 96.0),
        (6, 15.0, 10170.0),
    ):
        assert abs((x**power).mean() - expected) < limit * np.sqrt(variance / n)
    for size in (2.0, 3.0, 4.0):
        chance = 2.0 * stats.norm.sf(size)
        assert stats.binomtest(int((np.abs(x) > size).sum()), n, chance).pvalue > 1e-4
    squares = x**2 - 1.0
    for lag in (*range(1, 9), *range(16, NOISE_GROUP + 1, 8), 2 * NOISE_GROUP):  # the same block, and other ones
        assert abs((x[lag:] * x[:-lag]).mean()) < limit / np.sqrt(n - lag)
        assert abs((squares[lag:] * squares[:-lag]).mean()) < limit * 2.0 / np.sqrt(n - lag)
    groups = x.reshape(-1, MIXED, LANES)
    assert stats.kstest((groups**2).sum(axis=1).ravel(), "chi2", args=(MIXED,)).pvalue > 1e-4
    assert stats.kstest(groups.sum(axis=1).ravel() / 4.0, "norm").pvalue > 1e-4
    products = groups[:, 0] * groups[:, 1] * groups[:, 2] * groups[:, 3]  # 1 + 2 = 3, also of signs
    assert abs(products.mean()) < limit / np.sqrt(products.size)


@pytest.mark.parametrize("change", [{"client": 10}, {"round": 6}, {"repetition": 3}, {"seed": 2**40 + 8}])
def test_other_clients_rounds_repetitions_and_seeds_are_independent(change: dict[str, int]) -> None:
    """Each check fails by chance in less than one of 10,000 seeds, and the seed is fixed."""
    x, y = (step_noise(stream, 3, 2**17) for stream in (STREAM, STREAM._replace(**change)))
    assert not np.isin(x, y).any()
    for a, b, spread in ((x, y, 1.0), (x**2 - 1.0, y**2 - 1.0, 2.0)):
        for lag in (0, 1, 8, 20):
            assert abs((a[lag:] * b[: b.size - lag]).mean()) < 3.9 * spread / np.sqrt(b.size - lag)


def test_steps_are_stretches_of_one_sequence() -> None:
    whole = drawn(4 * 20 * 7)
    parts = [step_noise(STREAM, h, 20) for h in range(28)]
    np.testing.assert_allclose(np.concatenate(parts), whole, rtol=0, atol=1e-14)
