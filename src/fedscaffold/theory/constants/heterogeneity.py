"""Clients' gradients and Hessians at θ*: how much they differ, ζ₁ and ζ₂ of A4, and their extreme curvatures."""

import numpy as np

from fedscaffold.core.capabilities import SmoothProblem
from fedscaffold.core.types import Array


def client_constants(problem: SmoothProblem, theta: Array) -> dict[str, float]:
    """ζ₁, ζ₂ and the smallest and largest eigenvalue of any ∇²f_c(θ), by their names in `theory.Constants`."""
    hessians = problem.client_hessians(theta)
    eigenvalues = np.linalg.eigvalsh(hessians)
    return {
        "zeta1": gradient_heterogeneity(problem.weights, problem.client_gradients(theta)),
        "zeta2": hessian_heterogeneity(problem.weights, hessians),
        "mu_at_optimum": float(eigenvalues[:, 0].min()),
        "L_at_optimum": float(eigenvalues[:, -1].max()),
    }


def gradient_heterogeneity(weights: Array, gradients: Array) -> float:
    """ζ₁ with ζ₁² = Σ w_c‖∇f_c(θ*)‖², from weights (n,) and gradients (n, d) of clients at θ*.

    Examples
    --------
    >>> import numpy as np
    >>> gradient_heterogeneity(np.array([0.5, 0.5]), np.array([[3.0, 4.0], [-3.0, -4.0]]))
    5.0
    """
    return float(np.sqrt(weights @ np.square(gradients).sum(axis=1)))


def hessian_heterogeneity(weights: Array, hessians: Array) -> float:
    """ζ₂ with ζ₂² = Σ w_c‖∇²f_c(θ*) − ∇²f(θ*)‖² in spectral norm, from weights (n,) and Hessians (n, d, d).

    Examples
    --------
    >>> import numpy as np
    >>> hessian_heterogeneity(np.array([0.5, 0.5]), np.array([[[1.0]], [[2.0]]]))
    0.5
    """
    spread = hessians - np.tensordot(weights, hessians, axes=1)
    return float(np.sqrt(weights @ np.abs(np.linalg.eigvalsh(spread)).max(axis=1) ** 2))
