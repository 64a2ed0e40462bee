"""Assumptions A1 to A6, checked by enumerating every batch of small clients."""

from itertools import combinations, product
from typing import Any

import numpy as np
import pytest

from fedscaffold import InvalidInput, theory
from fedscaffold.core.random.stream import Sampling
from fedscaffold.core.types import Array
from fedscaffold.problems import Logistic, Ridge
from tests.samples import KINDS, Kind, make, systems

SAMPLINGS: tuple[Sampling, Sampling] = ("with_replacement", "without_replacement")
SIZES = (4, 6, 5)


def every_batch(n: int, batch_size: int, sampling: Sampling) -> list[Array]:
    drawn = (
        product(range(n), repeat=batch_size) if sampling == SAMPLINGS[0] else combinations(range(n), batch_size)
    )
    return [np.array(rows) for rows in drawn]


def batch_gradients(problem: Ridge | Logistic, c: int, theta: Array, batch_size: int, sampling: Sampling) -> Array:
    rows = every_batch(int(problem.sizes[c]), batch_size, sampling)
    return np.stack([problem.batch_gradient(c, theta, batch.astype(np.int64)) for batch in rows])


def points(dim: int, n: int = 12) -> list[Array]:
    rng = np.random.default_rng(3)
    return [rng.normal(size=dim) * scale for scale in np.geomspace(0.01, 10, n)]


def sixth_moment_size(values: Array, p: int = 3) -> float:
    return float(np.mean((values**2).sum(axis=1) ** p) ** (1 / p))


@pytest.mark.parametrize("kind", KINDS)
def test_a1_a3_a6_hold_everywhere(kind: Kind) -> None:
    problem = make(kind, SIZES, 3, weights=(1, 2, 3))
    found = theory.constants(problem, batch_size=2)
    rng = np.random.default_rng(0)
    for theta in points(3, 40):
        u = rng.normal(size=3)
        u /= np.linalg.norm(u)
        assert np.linalg.eigvalsh(problem.client_hessians(theta)).min() >= found.mu - 1e-12
        third = problem.client_third_derivatives(theta, np.outer(u, u))
        assert np.linalg.norm(third, axis=1).max() <= found.Q
        step = 1e-4
        ahead, behind = (problem.client_third_derivatives(theta + k * step * u, np.outer(u, u)) for k in (1, -1))
        assert np.linalg.norm(ahead - behind, axis=1).max() / (2 * step) <= found.G + 1e-7
    assert (found.Q == 0) == (found.G == 0) == (kind == "ridge")


def test_third_and_fourth_derivative_bounds_are_reached_by_a_lone_record() -> None:
    problem = Logistic(np.array([[[2.0]], [[1.0]]]), np.array([[1.0], [0.0]]), l2=0.1)
    found = theory.constants(problem, batch_size=1)
    line = [np.array([t]) for t in np.linspace(-3, 3, 2001)]
    thirds = [np.abs(problem.client_third_derivatives(theta, np.eye(1))).max() for theta in line]
    np.testing.assert_allclose(max(thirds), found.Q, rtol=1e-4)
    step = line[1][0] - line[0][0]
    signed = np.array([problem.client_third_derivatives(theta, np.eye(1))[0, 0] for theta in line])
    np.testing.assert_allclose(np.abs(np.diff(signed)).max() / step, found.G, rtol=1e-3)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("kind", KINDS)
def test_a2_and_a5_hold_everywhere(kind: Kind, sampling: Sampling) -> None:
    problem = make(kind, SIZES, 3)
    found = theory.constants(problem, batch_size=2, sampling=sampling)
    optimum = problem.optimum()
    tighter = found.noise_bound(0.1)
    assert found.noise_bound(1.0) == (found.sigma_star2, found.beta)
    for c in range(3):
        at_optimum = batch_gradients(problem, c, optimum, 2, sampling)
        for u in points(3):
            there = batch_gradients(problem, c, optimum + u, 2, sampling)
            slope = (there - at_optimum).mean(axis=0) @ u
            assert ((there - at_optimum) ** 2).sum(axis=1).mean() <= found.L * slope * (1 + 1e-9)
            noise = there - there.mean(axis=0)
            for p in (1, 2, 3):
                size, u2 = sixth_moment_size(noise, p), float(u @ u)
                assert size <= found.sigma_star2 + found.beta * u2
                assert size <= tighter[0] + tighter[1] * u2
            change = noise - (at_optimum - at_optimum.mean(axis=0))
            assert sixth_moment_size(change) <= found.noise_lipschitz2 * float(u @ u)


@pytest.mark.parametrize("batch_size", [1, 2, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_noise_at_the_optimum_is_exact_with_replacement(kind: Kind, batch_size: int) -> None:
    problem = make(kind, SIZES, 3)
    optimum = problem.optimum()
    found = theory.constants(problem, batch_size=batch_size)
    sixth, second = [], []
    for c in range(3):
        values = batch_gradients(problem, c, optimum, batch_size, "with_replacement")
        values = values - values.mean(axis=0)
        sixth.append(sixth_moment_size(values))
        second.append(sixth_moment_size(values, 1))
    np.testing.assert_allclose(found.noise_at_optimum, max(sixth), rtol=1e-10)
    np.testing.assert_allclose(found.noise_variance_at_optimum, max(second), rtol=1e-10)


@pytest.mark.parametrize("batch_size", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_the_slope_of_the_noise_is_at_most_a_few_times_too_large(kind: Kind, batch_size: int) -> None:
    """Against the largest that any of many directions has, by all batches."""
    problem = make(kind, SIZES, 2)
    found = theory.constants(problem, batch_size=batch_size)
    # curvature is largest where the margins are 0, so that logistic regression is as steep as the bound allows
    here, largest = np.zeros(2), 0.0
    for angle in np.linspace(0, np.pi, 12, endpoint=False):
        u = 1e-3 * np.array([np.cos(angle), np.sin(angle)])
        for c in range(3):
            there, back = (batch_gradients(problem, c, at, batch_size, SAMPLINGS[0]) for at in (here + u, here))
            change = (there - there.mean(axis=0)) - (back - back.mean(axis=0))
            largest = max(largest, sixth_moment_size(change) / float(u @ u))
    assert largest <= found.noise_lipschitz2 * (1 + 1e-6) <= 4 * largest


@pytest.mark.parametrize("kind", KINDS)
def test_heterogeneity_is_a4(kind: Kind) -> None:
    problem = make(kind, SIZES, 3, weights=(1, 2, 3))
    found = theory.constants(problem, batch_size=1)
    optimum, w = problem.optimum(), problem.weights
    gradients, hessians = problem.client_gradients(optimum), problem.client_hessians(optimum)
    mean = sum(w[c] * hessians[c] for c in range(3))
    zeta1 = sum(w[c] * gradients[c] @ gradients[c] for c in range(3)) ** 0.5
    zeta2 = sum(w[c] * np.linalg.norm(hessians[c] - mean, 2) ** 2 for c in range(3)) ** 0.5
    np.testing.assert_allclose([found.zeta1, found.zeta2], [zeta1, zeta2], rtol=1e-10)
    eigenvalues = np.linalg.eigvalsh(hessians)
    assert found.mu_at_optimum == pytest.approx(eigenvalues.min())
    assert found.L_at_optimum == pytest.approx(eigenvalues.max())
    assert found.mu <= found.mu_at_optimum <= found.L_at_optimum <= found.L <= found.L_record
    assert set(found.local) <= set(vars(found))


def test_full_gradients_have_no_noise() -> None:
    problem = make("logistic", (4, 4, 4), 3)
    for found in (
        theory.constants(problem, batch_size=None),
        theory.constants(problem, batch_size=4, sampling="without_replacement"),
    ):
        assert found.sigma_star2 == found.beta == found.noise_variance_at_optimum == 0.0


def test_refusals() -> None:
    problem = make("ridge")
    with pytest.raises(InvalidInput, match="slack"):
        theory.constants(problem, batch_size=1).noise_bound(0.0)
    with pytest.raises(InvalidInput, match="without replacement"):
        theory.constants(problem, batch_size=5, sampling="without_replacement")

    other: Any = systems()
    with pytest.raises(InvalidInput, match="ridge, logistic and losses with record_hessians, not for linear_sa"):
        theory.constants(other, batch_size=1)
    nothing: Any = np.eye(2)
    with pytest.raises(InvalidInput, match="problem must be a problem such as"):
        theory.constants(nothing, batch_size=1)
