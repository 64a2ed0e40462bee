"""The paper's data."""

from typing import Any, Literal

import numpy as np
import pytest
from sklearn.datasets import make_classification, make_regression

from fedscaffold.core.errors import InvalidInput
from fedscaffold.problems import Logistic, Ridge, paper


def test_regression_is_make_regression_with_two_and_ten_informative_features() -> None:
    problem = paper("regression", n_clients=6, seed=4)
    assert isinstance(problem, Ridge)
    assert (problem.n_clients, problem.dim, problem.l2) == (6, 20, 0.01)
    assert problem.sizes.tolist() == [200] * 6
    for half, informative in enumerate((2, 10)):
        x, y = make_regression(600, 20, n_informative=informative, random_state=8 + half)
        np.testing.assert_array_equal(problem.x[600 * half : 600 * (half + 1)], x)
        np.testing.assert_array_equal(problem.y[600 * half : 600 * (half + 1)], y)


@pytest.mark.parametrize("informative", [(2, 10), (2, 2), (18, 3)])
def test_classification_is_make_classification(informative: tuple[int, int]) -> None:
    problem = paper("classification", n_clients=4, seed=1, l2=0.5, informative=informative)
    assert isinstance(problem, Logistic)
    assert (problem.n_clients, problem.dim, problem.l2) == (4, 20, 0.5)
    assert (problem.fingerprint() == paper("classification", n_clients=4, seed=1, l2=0.5).fingerprint()) == (
        informative == (2, 10)
    )
    for half in range(2):
        x, y = make_classification(400, 20, n_informative=informative[half], random_state=2 + half)
        np.testing.assert_array_equal(problem.x[400 * half : 400 * (half + 1)], x)
        np.testing.assert_array_equal(problem.y[400 * half : 400 * (half + 1)], 2 * y - 1)


@pytest.mark.parametrize("kind", ["regression", "classification"])
def test_halves_disagree_and_seeds_differ(kind: Literal["regression", "classification"]) -> None:
    problem = paper(kind, n_clients=4)
    gradients = problem.client_gradients(problem.optimum())
    between = np.linalg.norm(gradients[:2].mean(axis=0) - gradients[2:].mean(axis=0))
    within = np.linalg.norm(gradients[0] - gradients[1])
    assert between > within
    assert problem.fingerprint() == paper(kind, n_clients=4).fingerprint()
    assert problem.fingerprint() != paper(kind, n_clients=4, seed=1).fingerprint()


def test_records_start_on_a_cache_line() -> None:
    assert paper("regression", n_clients=2).x.ctypes.data % 64 == 0


@pytest.mark.parametrize(
    ("kind", "n_clients", "seed", "message"),
    [
        ("regression", 3, 0, "must be even"),
        ("regression", 0, 0, "n_clients"),
        ("ridge", 2, 0, "kind must be"),
        ("regression", 2, -1, "seed"),
    ],
)
def test_bad_input(kind: Literal["regression"], n_clients: int, seed: int, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        paper(kind, n_clients=n_clients, seed=seed)


@pytest.mark.parametrize(
    ("kind", "informative"),
    [("regression", (0, 10)), ("regression", (2, 21)), ("classification", (1, 10)), ("classification", (2, 19))],
)
def test_informative_features_that_the_generators_cannot_make(kind: Any, informative: tuple[int, int]) -> None:
    with pytest.raises(InvalidInput, match="informative must be"):
        paper(kind, n_clients=2, informative=informative)
