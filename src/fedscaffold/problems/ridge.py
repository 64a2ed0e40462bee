"""Linear regression with an l2 penalty."""

import numpy as np

from fedscaffold.core.types import Array
from fedscaffold.problems.glm import Glm


class Ridge(Glm):
    """f_c(θ) = mean of ½(xᵀθ − y)² over client c's records, plus l2/2 ‖θ‖²: linear regression.

    Parameters
    ----------
    X
        Features: an array of shape (N, n, d), or a sequence of N arrays of shape (n_c, d), one per client.
    y
        Targets: an array of shape (N, n), or a sequence of N arrays of shape (n_c,).
    l2
        Strength of the penalty l2/2 ‖θ‖², which every client's f_c includes.
    weights
        One positive weight per client, scaled to sum to one; uniform by default.
    n_unpenalised
        Number of last features without a penalty; 1 if the last one is an intercept's column of ones.
    sample_weight
        Factors s ≥ 0 of the records' losses, in the form of y; 1 by default.
    offset
        Numbers added to the margins xᵀθ, in the form of y; 0 by default.

    Examples
    --------
    >>> import numpy as np
    >>> import fedscaffold as fs
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(4, 50, 3))  # 4 clients with 50 records of 3 features each
    >>> problem = fs.problems.Ridge(X, X @ np.array([1.0, 2.0, 3.0]), l2=0.01)
    >>> problem
    Ridge(n_clients=4, dim=3, n_records=200, l2=0.01)
    >>> problem.optimum().round(1)
    array([1., 2., 3.])
    """

    kind = "ridge"
    curvature = 1.0
    loss_derivative_bounds = (0.0, 0.0)

    @staticmethod
    def value(z: Array, y: Array) -> Array:
        """ℓ(z, y) = ½(z − y)²."""
        return 0.5 * (z - y) ** 2

    @staticmethod
    def d1(z: Array, y: Array) -> Array:
        """ℓ'(z, y) = z − y."""
        return z - y

    @staticmethod
    def d2(z: Array, y: Array) -> Array:
        """ℓ''(z, y) = 1."""
        return np.ones_like(z)

    @staticmethod
    def d3(z: Array, y: Array) -> Array:
        """ℓ'''(z, y) = 0."""
        return np.zeros_like(z)

    def strong_convexity(self) -> float:
        """The smallest eigenvalue of any client's Hessian."""
        hessians = self._client_hessians(np.zeros(self.dim))
        return max(0.0, min(float(np.linalg.eigvalsh(hessian)[0]) for hessian in hessians))
