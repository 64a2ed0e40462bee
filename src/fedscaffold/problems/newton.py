"""Newton's method for a smooth convex function of moderate dimension."""

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.threads import one_blas_thread
from fedscaffold.core.types import Array

TOLERANCE = 1e-12
MOST_STEPS = 100
SINGULAR = 1e-13
SETTLED = 1e-6  # of θ: the last step must be that small, which it never is where no minimiser exists
PENALISE = "pass a positive penalty l2=..."
ROUNDING = 1e-15  # of the loss: what Newton's step would gain when rounding stops it


class NoMinimiser(InvalidInput):
    """A function that has no minimiser, or many; `theta` is where the search for it was given up."""

    def __init__(self, what: str, theta: Array) -> None:
        super().__init__(f"{what}; {PENALISE}")
        self.theta = theta


class SmoothFunction(Protocol):
    """A function of θ with its first two derivatives, as Newton's method needs it."""

    dim: int

    def loss(self, theta: Array) -> float: ...
    def gradient(self, theta: Array) -> Array: ...
    def hessian(self, theta: Array) -> Array: ...


@one_blas_thread
def minimise(f: SmoothFunction, start: Array | None = None) -> Array:
    """Argmin f, until the gradient's norm is 1e-12 of the sizes that cancel in it; from `start`, or from 0.

    Steps are halved until the loss falls; near the end, where rounding hides the fall, full steps are
    taken as long as the gradient shrinks.
    """
    theta = np.zeros(f.dim)
    gradient = f.gradient(theta)
    norm = np.linalg.norm(gradient)
    if start is not None:
        theta, gradient = start, f.gradient(start)
    for _ in range(MOST_STEPS):
        hessian = f.hessian(theta)
        if _is_singular(hessian):
            raise NoMinimiser("the minimiser is not unique or does not exist", theta)
        step = np.linalg.solve(hessian, gradient)
        settled = np.linalg.norm(step) <= SETTLED * np.linalg.norm(theta)
        if settled and np.linalg.norm(gradient) <= TOLERANCE * norm:
            return _polished(f, theta, gradient, hessian)
        before = theta
        theta, gradient = _descended(f, theta, gradient, step)
        if theta is before and gradient @ step <= ROUNDING * abs(f.loss(theta)):
            return theta
    raise NoMinimiser(f"no minimiser found in {MOST_STEPS} Newton steps; labels may be separable", theta)


def _is_singular(hessian: Array) -> bool:
    """Whether some direction has no curvature, with coordinates scaled to curvatures of one.

    Coordinates of very different curvature, such as an intercept beside strongly penalised features, are none.
    """
    diagonal = np.diagonal(hessian)
    if not (diagonal > 0.0).all():
        return True
    scale = 1.0 / np.sqrt(diagonal)
    eigenvalues = np.linalg.eigvalsh(hessian * scale * scale[:, None])
    return bool(eigenvalues[0] <= SINGULAR * eigenvalues[-1])


def _descended(
    f: SmoothFunction, theta: Array, gradient: Array, step: NDArray[np.floating[Any]]
) -> tuple[Array, Array]:
    """θ after the longest of the steps 1, 1/2, 1/4, ... that helps."""
    norm, loss = np.linalg.norm(gradient), f.loss(theta)
    for halvings in range(60):
        candidate = theta - step * 0.5**halvings
        there = f.gradient(candidate)
        if np.linalg.norm(there) < norm or f.loss(candidate) < loss:
            return candidate, there
    return theta, gradient


def _polished(f: SmoothFunction, theta: Array, gradient: Array, hessian: Array) -> Array:
    """One more full step where it still shrinks the gradient."""
    candidate = theta - np.linalg.solve(hessian, gradient)
    return candidate if np.linalg.norm(f.gradient(candidate)) < np.linalg.norm(gradient) else theta
