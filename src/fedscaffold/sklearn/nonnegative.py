"""Least squares with coefficients that may not be negative, from sums over clients."""

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cholesky, solve_triangular
from scipy.optimize import nnls

from fedscaffold.core.types import Array
from fedscaffold.inference import ClosingSums


def nonnegative_minimiser(sums: ClosingSums, penalty: Array, bound: NDArray[np.bool_]) -> Array:
    """The θ with the least penalised squares and θ_j ≥ 0 for the coefficients in `bound`, (dim,).

    With A the Hessian and g the gradient at θ̂, the loss is ½ θᵀAθ − rᵀθ up to a constant, r = Aθ̂ − g. Free
    coefficients follow the others at their best; for these, Lawson and Hanson's active sets are exact.

    Parameters
    ----------
    sums
        Closing sums of least squares, at any θ̂.
    penalty
        Second derivatives of the penalty in units of the sums, (dim,).
    bound
        Which coefficients may not be negative, (dim,).
    """
    A = sums.hessian + np.diag(penalty)
    r = A @ sums.theta - (sums.gradient + penalty * sums.theta)
    free = ~bound
    followed = np.linalg.solve(A[np.ix_(free, free)], np.column_stack([A[np.ix_(free, bound)], r[free]]))
    S = A[np.ix_(bound, bound)] - A[np.ix_(bound, free)] @ followed[:, :-1]
    right = r[bound] - A[np.ix_(bound, free)] @ followed[:, -1]
    scale = 1.0 / np.sqrt(np.diagonal(S))
    S, right = S * scale * scale[:, None], right * scale
    root = cholesky(S, lower=True)
    found, _ = nnls(root.T, solve_triangular(root, right, lower=True), maxiter=30 * right.size)
    above = found > 0.0
    if above.any():  # the same set, solved without the rounding of the steps that led to it
        exact = np.linalg.solve(S[np.ix_(above, above)], right[above])
        found[above] = np.maximum(exact, 0.0)
    theta = np.zeros(bound.size)
    theta[bound] = found * scale
    theta[free] = followed[:, -1] - followed[:, :-1] @ theta[bound]
    return theta
