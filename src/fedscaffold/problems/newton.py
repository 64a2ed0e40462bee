"""Newton's method for a smooth convex function of moderate dimension."""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.machine import one_blas_thread
from fedscaffold.core.types import Array

PENALISE = "pass a positive penalty l2=..."


class NoMinimiser(InvalidInput):
    """A function without a minimiser, or with many; `theta` is the last one tried."""

    def __init__(self, what: str, theta: Array) -> None:
        super().__init__(f"{what}; {PENALISE}")
        self.theta = theta


@runtime_checkable
class SmoothFunction(Protocol):
    """A function of θ with its first two derivatives, as Newton's method needs it."""

    dim: int

    def loss(self, theta: Array) -> float: ...
    def gradient(self, theta: Array) -> Array: ...
    def hessian(self, theta: Array) -> Array: ...


@one_blas_thread
def minimise(
    f: SmoothFunction, start: Array | None = None, visit: Callable[[Array], object] | None = None
) -> Array:
    """Return argmin f of a convex f, to a gradient whose norm is 1e-12 of the sizes that cancel in it.

    Steps are halved until the loss falls; near the end, when rounding hides the fall, full steps are taken as
    long as the gradient shrinks. `visit` is called with every θ that is tried after the first. If a Hessian is
    singular, or if 100 steps do not settle, raise NoMinimiser.
    """
    theta = np.zeros(f.dim)
    gradient = f.gradient(theta)
    norm = np.linalg.norm(gradient)
    if start is not None:
        theta, gradient = start, f.gradient(start)
    most, tolerance = 100, 1e-12  # steps, of which about ten are taken; a thousand times the rounding of sums
    for _ in range(most):
        hessian = f.hessian(theta)
        if _is_singular(hessian):
            raise NoMinimiser("the minimiser is not unique or does not exist", theta)
        step = np.linalg.solve(hessian, gradient)
        settled = np.linalg.norm(step) <= 1e-6 * np.linalg.norm(theta)  # never if no minimiser exists
        if settled and np.linalg.norm(gradient) <= tolerance * norm:
            return _polished(f, theta, gradient, hessian)
        before = theta
        theta, gradient = _descended(f, theta, gradient, step, visit)
        if theta is before and gradient @ step <= 1e-15 * abs(f.loss(theta)):
            return theta  # the gain cannot be seen in float64
    raise NoMinimiser(f"no minimiser found in {most} Newton steps; labels may be separable", theta)


def _is_singular(hessian: Array) -> bool:
    """Return whether some direction has no curvature, with coordinates scaled to curvatures of one.

    So coordinates of very different curvature, such as an intercept beside strongly penalised features, are fine.
    """
    diagonal = np.diagonal(hessian)
    if not (diagonal > 0.0).all():
        return True
    scale = 1.0 / np.sqrt(diagonal)
    eigenvalues = np.linalg.eigvalsh(hessian * scale * scale[:, None])
    return bool(eigenvalues[0] <= 1e-13 * eigenvalues[-1])  # a hundred times the rounding of eigenvalues


def _descended(
    f: SmoothFunction,
    theta: Array,
    gradient: Array,
    step: NDArray[np.floating[Any]],
    visit: Callable[[Array], object] | None,
) -> tuple[Array, Array]:
    """Return θ and its gradient after the longest of the steps 1, 1/2, 1/4, ... that helps, if one does."""
    norm, loss = np.linalg.norm(gradient), f.loss(theta)
    for halvings in range(60):
        candidate = theta - step * 0.5**halvings
        if visit is not None:
            visit(candidate)
        there = f.gradient(candidate)
        if np.linalg.norm(there) < norm or f.loss(candidate) < loss:
            return candidate, there
    return theta, gradient


def _polished(f: SmoothFunction, theta: Array, gradient: Array, hessian: Array) -> Array:
    """Return θ after one more full step if that shrinks the gradient, otherwise θ."""
    candidate = theta - np.linalg.solve(hessian, gradient)
    return candidate if np.linalg.norm(f.gradient(candidate)) < np.linalg.norm(gradient) else theta
