"""Numbers that are refused, at the ends of what is allowed; how much noise a batch has."""

from itertools import combinations

import numpy as np
import pytest

from fedscaffold import InvalidInput
from fedscaffold.core import checks
from fedscaffold.core.random.batches import Batches


def test_seeds_have_sixty_four_bits() -> None:
    assert checks.seed_number("seed", 2**64 - 1) == 2**64 - 1
    for refused in (2**64, -1, 1.5, True, "1"):
        with pytest.raises(InvalidInput, match="seed must be"):
            checks.seed_number("seed", refused)


@pytest.mark.parametrize("value", [0.0, -1.0, np.nan, np.inf, True, "1"])
def test_what_is_not_positive(value: object) -> None:
    with pytest.raises(InvalidInput, match="gamma must be a positive number"):
        checks.positive("gamma", value)


def test_zero_is_not_negative() -> None:
    assert checks.not_negative("l2", 0) == 0.0
    with pytest.raises(InvalidInput, match="at least 0"):
        checks.not_negative("l2", -1e-300)


@pytest.mark.parametrize("size", [1, 3, 7])
def test_the_noise_of_a_batch_is_that_of_all_batches(size: int) -> None:
    """The variance of the mean over all subsets of seven numbers, over that of one number."""
    values = np.random.default_rng(0).normal(size=7)
    subsets = np.array([np.mean(subset) for subset in combinations(values, size)])
    without = Batches(size, "without_replacement").noise_factor(7)
    assert without * values.var() == pytest.approx(subsets.var(), abs=1e-15)
    assert Batches(size).noise_factor(7) == pytest.approx(1.0 / size)
    assert Batches().noise_factor(7) == 0.0
