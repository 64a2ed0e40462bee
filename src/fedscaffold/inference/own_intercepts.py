"""Intercepts of single clients: fitted to the client's rows, and eliminated from its sums."""

import math
from dataclasses import replace
from typing import Any

import numpy as np

from fedscaffold.core.types import Array
from fedscaffold.inference.sums import ClosingSums, symmetric
from fedscaffold.problems.base import OFFSET, TARGET, WEIGHT
from fedscaffold.problems.glm import Glm

MOST_STEPS = 100  # of Newton's method for one intercept


def own_intercept(problem: Glm | type[Glm], z: Array, y: Array, a: Array) -> float | None:
    """Return α with Σ a ℓ'(z + α, y) = 0; None if the loss decreases without bound."""
    present = a > 0
    if not present.any():
        return None
    same = np.unique(y[present])
    if (problem.kind == "logistic" and same.size == 1) or (problem.kind == "poisson" and not same.any()):
        return None
    alpha = 0.0
    for _ in range(MOST_STEPS):
        slope, curvature = a @ problem.d1(z + alpha, y), a @ problem.d2(z + alpha, y)
        most = math.inf if problem.kind == "ridge" else 1.0
        step = float(np.clip(slope / curvature, -most, most))
        alpha -= step
        if abs(step) <= 1e-14 * max(1.0, abs(alpha)):
            break
    return alpha


def client_intercept(problem: Any, client: int, theta: Array) -> float | None:
    """Return the intercept of one client at θ; None if an infinite one fits its rows perfectly."""
    part = slice(int(problem.offsets[client]), int(problem.offsets[client + 1]))
    y, o, a = record_columns(problem.y[part])
    return own_intercept(problem, problem.x[part] @ theta + o, y, a)


def record_columns(y: Array) -> tuple[Array, Array, Array]:
    """Return targets, offsets and weights of records."""
    if y.ndim == 1:
        return y, np.zeros(len(y)), np.ones(len(y))
    return y[:, TARGET], y[:, OFFSET], y[:, WEIGHT]


def without_last(wide: ClosingSums, theta: Array) -> ClosingSums:
    """Return sums in which the last coefficient, the client's intercept, is the best one for the others.

    With A the Hessian and r = A_·l / A_ll, gradients become g − r g_l and matrices P M Pᵀ with P = [I, −r].
    """
    d = theta.size
    column = wide.hessian[:d, d] / wide.hessian[d, d]
    P = np.column_stack([np.eye(d), -column])
    bread = wide.hessian if wide.information is None else wide.information
    expected = np.column_stack([np.eye(d), -bread[:d, d] / bread[d, d]])
    gradient = P @ wide.gradient
    return replace(
        wide,
        theta=theta,
        intercepts=1,
        gradient=gradient,
        hessian=symmetric(P @ wide.hessian @ P.T),
        information=None if wide.information is None else symmetric(expected @ bread @ expected.T),
        score_products=symmetric(P @ wide.score_products @ P.T),
        cluster_products=np.outer(gradient, gradient),
    )
