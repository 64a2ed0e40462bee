"""Averages over skewed clouds, and what curved gradients have in common with them, against quadrature."""

import numpy as np
import pytest

from fedscaffold import Scaffold
from fedscaffold.core.random.batches import Batches
from fedscaffold.core.types import Array
from fedscaffold.theory.prediction.moments.local_round import Cloud, Coefficients, LocalRound, Start
from fedscaffold.theory.prediction.moments.third_order import Third
from fedscaffold.theory.prediction.setting import setting
from tests.samples import make

SHAPE = 16.0  # of the gamma variables that deviations are made of: their skewness is 2/√SHAPE = 0.5


def skewed_law(mix: Array) -> tuple[Array, Array]:
    """Points (k, d) and weights of mix @ g, with g independent centred gamma variables of variance 1."""
    edges = np.linspace(-4.0, 8.0, 161)
    density = np.maximum(edges + SHAPE**0.5, 0.0) ** (SHAPE - 1.0) * np.exp(-(SHAPE**0.5) * edges)
    one = density / density.sum()
    grid = np.stack(np.meshgrid(*[edges] * len(mix), indexing="ij"), axis=-1).reshape(-1, len(mix))
    weights = np.prod(
        np.stack(np.meshgrid(*[one] * len(mix), indexing="ij"), axis=-1).reshape(-1, len(mix)), axis=1
    )
    return grid @ mix.T, weights


def looked_at(mix: Array) -> tuple[Coefficients, Array, Array]:
    """What the first local step sees of such a cloud around θ*; its covariance, and Cov(∇f, u) by quadrature."""
    d = len(mix)
    problem = make("logistic", (9,), d, seed=3)
    s = setting(problem, Scaffold(step_size=0.1, local_steps=2), Batches(1))
    cov, skew = np.zeros((1, 2 * d, 2 * d)), np.zeros((1, 2 * d, 2 * d, 2 * d))
    cov[0, :d, :d] = mix @ mix.T
    skew[0, :d, :d, :d] = 2.0 / SHAPE**0.5 * np.einsum("ai,bi,ci->abc", mix, mix, mix)
    start = Start(np.zeros(d), np.zeros((1, d)), cov, skew)
    B = np.concatenate([np.eye(d), np.zeros((d, d))], axis=1)[None]
    cloud = Cloud(np.zeros((1, d)), B, np.zeros((1, d, d)), Third.zero(1, d))
    found = LocalRound(s, skew=True).coefficients(cloud, start)
    points, weights = skewed_law(mix)
    gradients = np.stack([problem.client_gradients(s.optimum + point)[0] for point in points])
    common = (weights[:, None] * (gradients - weights @ gradients)).T @ points
    return found, cov[0, :d, :d], common


def test_narrow_skewed_clouds_have_another_curvature() -> None:
    """Three points of Gauss and Hermite's rule are zeros of the term by which a skewed law differs."""
    found, cov, common = looked_at(np.array([[0.35]]))
    assert found.averages.hessian[0, 0, 0] * cov[0, 0] == pytest.approx(common[0, 0], rel=4e-3)


def test_a_curved_gradient_follows_a_skewed_cloud_across_records_too() -> None:
    """In more dimensions than one, margins alone do not say what the gradient has in common with the model."""
    found, cov, common = looked_at(np.array([[0.5, 0.1], [-0.3, 0.25]]))
    assert found.bend is not None
    linear, own = found.averages.hessian[0] @ cov, found.bend.own[0]
    beyond = np.abs(common - linear).max()
    assert beyond > 5.0 * np.abs(common - linear - own).max()
    np.testing.assert_allclose(found.bend.start[0, :, :2] @ cov, own, atol=1e-3 * np.abs(own).max())
