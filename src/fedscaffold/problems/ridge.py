"""Linear regression with an l2 penalty."""

import numpy as np

from fedscaffold.core.types import Array
from fedscaffold.problems.glm import Glm


class Ridge(Glm):
    """f_c(θ) = mean of ½(xᵀθ − y)² over client c's records, plus l2/2 ‖θ‖²."""

    kind = "ridge"
    curvature = 1.0
    margin_derivative_bounds = (0.0, 0.0)

    @staticmethod
    def value(z: Array, y: Array) -> Array:
        """½(z − y)²."""
        return 0.5 * (z - y) ** 2

    @staticmethod
    def d1(z: Array, y: Array) -> Array:
        """Z − y."""
        return z - y

    @staticmethod
    def d2(z: Array, y: Array) -> Array:
        """1."""
        return np.ones_like(z)

    @staticmethod
    def d3(z: Array, y: Array) -> Array:
        """0."""
        return np.zeros_like(z)

    def strong_convexity(self) -> float:
        """The smallest eigenvalue of any client's Hessian."""
        hessians = self._client_hessians(np.zeros(self.dim))
        return max(0.0, min(float(np.linalg.eigvalsh(hessian)[0]) for hessian in hessians))
