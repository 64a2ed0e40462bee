"""The benchmark of predictions on a few problems."""

import pytest

from benchmarks.predictions import logistic_case, measure, ridge_case


@pytest.mark.slow
def test_a_few_random_problems() -> None:
    ridge = measure("ridge", 0, 2, ridge_case)
    assert ridge["crashed"] == 0
    assert ridge["plateaus_within"] == 1.0
    logistic = measure("logistic", 0, 1, logistic_case)
    assert logistic["crashed"] == 0
    assert set(logistic) == set(ridge)
