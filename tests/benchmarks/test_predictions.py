"""The benchmark of predictions on a few problems."""

from pathlib import Path

import pytest

from benchmarks.predictions import logistic_case, measure, ridge_case
from benchmarks.random_problems import Case
from fedscaffold.core.errors import InvalidInput


@pytest.mark.slow
def test_a_few_random_problems() -> None:
    ridge = measure("ridge", 0, 2, ridge_case)
    assert ridge["crashed"] == 0
    assert ridge["plateaus_within"] == 1.0
    logistic = measure("logistic", 0, 1, logistic_case)
    assert logistic["crashed"] == 0
    assert set(logistic) > set(ridge)


def test_a_stopped_run_goes_on_from_the_rows_that_are_done(tmp_path: Path) -> None:
    seen: list[int] = []

    def of(case: Case) -> dict[str, float]:
        seen.append(case.seed)
        if case.seed == 6:
            raise InvalidInput("no plateau")
        return {"plateau": 0.01 * case.seed, "curve": 0.0}

    first = measure("ridge", 4, 3, of, tmp_path / "rows.jsonl")
    again = measure("ridge", 4, 4, of, tmp_path / "rows.jsonl")
    assert seen == [4, 5, 6, 7]
    assert (first["refused"], again["refused"], again["problems"]) == (1, 1, 4)
    assert again["worst_plateau"] == pytest.approx(0.07)
