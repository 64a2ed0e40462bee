"""Minibatch noise and smoothness, by going through every batch there is."""

from collections.abc import Iterable
from itertools import combinations, product

import numpy as np
import pytest

from fedscaffold.core.random.stream import Batches, Sampling
from fedscaffold.core.types import Array
from fedscaffold.problems import Logistic, Ridge
from tests.samples import KINDS, Kind, make

SIZES, DIM = (4, 3), 3
CASES: list[tuple[int, Sampling]] = [
    (1, "with_replacement"), (2, "with_replacement"), (3, "with_replacement"), (4, "with_replacement"),
    (1, "without_replacement"), (2, "without_replacement"), (3, "without_replacement"),
]  # fmt: skip


def every_batch(n: int, size: int, sampling: Sampling) -> Iterable[tuple[int, ...]]:
    """All equally likely outcomes."""
    return product(range(n), repeat=size) if sampling == "with_replacement" else combinations(range(n), size)


def gradients(problem: Ridge | Logistic, c: int, theta: Array, size: int, sampling: Sampling) -> Array:
    every = every_batch(int(problem.sizes[c]), size, sampling)
    return np.array([problem.batch_gradient(c, theta, np.array(rows)) for rows in every])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("size", "sampling"), CASES)
def test_noise_covariance(kind: Kind, size: int, sampling: Sampling) -> None:
    problem = make(kind, SIZES, DIM)
    theta = np.array([0.4, -2.0, 1.0])
    found = problem.client_noise_covariances(theta, batch_size=size, sampling=sampling)
    for c in range(2):
        each = gradients(problem, c, theta, size, sampling)
        np.testing.assert_allclose(each.mean(axis=0), problem.client_gradients(theta)[c], rtol=1e-12)
        np.testing.assert_allclose(found[c], np.cov(each.T, bias=True), rtol=1e-11, atol=1e-15)


def test_no_noise_without_sampling() -> None:
    theta = np.ones(DIM)
    assert np.all(make("ridge", SIZES, DIM).client_noise_covariances(theta, batch_size=None) == 0)
    everything = make("ridge", (4, 4), DIM).client_noise_covariances(
        theta, batch_size=4, sampling="without_replacement"
    )
    assert np.all(everything == 0)
    alone = make("ridge", (1, 1), DIM).client_noise_covariances(
        theta, batch_size=1, sampling="without_replacement"
    )
    assert np.all(alone == 0)


def test_noise_of_batches_that_do_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="client 1 has 3 records"):
        make("ridge", SIZES, DIM).client_noise_covariances(
            np.ones(DIM), batch_size=5, sampling="without_replacement"
        )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("size", "sampling"), CASES)
def test_smoothness_holds_in_mean_square(kind: Kind, size: int, sampling: Sampling) -> None:
    """E‖g(a) − g(b)‖² ≤ L⟨∇f_c(a) − ∇f_c(b), a − b⟩ for every client, and it is no empty promise."""
    problem = make(kind, SIZES, DIM, l2=0.05)
    L = problem.smoothness(Batches(size, sampling))
    rng = np.random.default_rng(0)
    ratios = []
    for _ in range(20):
        a, b = rng.normal(size=(2, DIM)) * rng.choice([0.01, 1.0, 10.0])
        for c in range(2):
            apart = gradients(problem, c, a, size, sampling) - gradients(problem, c, b, size, sampling)
            inner = apart.mean(axis=0) @ (a - b)
            ratios.append(np.square(apart).sum(axis=1).mean() / inner)
    assert max(ratios) <= L * (1 + 1e-12)
    assert max(ratios) > L / 5


@pytest.mark.parametrize("kind", KINDS)
def test_smoothness_lies_between_full_and_single(kind: Kind) -> None:
    problem = make(kind, (8, 9), DIM, l2=0.05)
    kappa = 1.0 if kind == "ridge" else 0.25
    clients = np.split(problem.x, problem.offsets[1:-1])
    full = max(kappa * np.linalg.norm(x.T @ x / len(x), 2) for x in clients) + 0.05
    single = max(kappa * (np.linalg.norm(x, axis=1) ** 2).max() for x in clients) + 0.05
    assert problem.smoothness(Batches()) == pytest.approx(full, rel=1e-12)
    assert problem.smoothness(Batches(1)) == pytest.approx(single, rel=1e-12)
    for sampling in ("with_replacement", "without_replacement"):
        ladder = [problem.smoothness(Batches(size, sampling)) for size in (1, 2, 4, 8)]
        assert ladder == sorted(ladder, reverse=True)
        assert full <= ladder[-1] < ladder[0] <= single * (1 + 1e-12)
