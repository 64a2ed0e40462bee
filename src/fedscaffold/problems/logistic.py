"""Logistic regression with an l2 penalty."""

import numpy as np
from numpy.typing import NDArray

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array
from fedscaffold.problems.glm import Glm
from fedscaffold.problems.record_weights import WEIGHT, of_records
from fedscaffold.problems.special import expit

LOGISTIC_DERIVATIVE_BOUNDS = (1.0 / (6.0 * float(np.sqrt(3.0))), 1.0 / 8.0)  # of |ℓ'''| and |ℓ''''|


class Logistic(Glm):
    """f_c(θ) = mean of log(1 + exp(−y xᵀθ)) over client c's records, plus l2/2 ‖θ‖²: logistic regression.

    Labels y are {0, 1} or {−1, 1}; they are kept as ±1.

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
    >>> problem = fs.problems.Logistic(X, X[:, :, 0] > 0, l2=0.1)
    >>> problem
    Logistic(n_clients=4, dim=3, n_records=200, l2=0.1)
    >>> bool(problem.loss(problem.optimum()) < problem.loss(np.zeros(3)))
    True
    """

    kind = "logistic"
    curvature = 0.25
    loss_derivative_bounds = LOGISTIC_DERIVATIVE_BOUNDS

    @staticmethod
    def check_targets(targets: Array, offsets: NDArray[np.int64]) -> Array:
        """Labels as ±1; other labels than {0, 1} and {−1, 1} are refused."""
        labels = np.unique(targets)
        if np.isin(labels, (-1.0, 1.0)).all():
            return targets
        if np.isin(labels, (0.0, 1.0)).all():
            return 2.0 * targets - 1.0
        row = int(np.flatnonzero(~np.isin(targets, (0.0, 1.0) if 0.0 in labels else (-1.0, 1.0)))[0])
        client = int(np.searchsorted(offsets, row, side="right")) - 1
        raise InvalidInput(
            f"labels must be 0 and 1, or -1 and 1; client {client}, record {row - offsets[client]} "
            f"has {targets[row]:g}"
        )

    @staticmethod
    def value(z: Array, y: Array) -> Array:
        """ℓ(z, y) = log(1 + exp(−y z))."""
        return np.logaddexp(0.0, -y * z)

    @staticmethod
    def d1(z: Array, y: Array) -> Array:
        """ℓ'(z, y) = −y σ(−y z)."""
        return -y * expit(-y * z)

    @staticmethod
    def margin_of_slope(slope: Array, y: Array) -> Array:
        """The z with ℓ'(z, y) = slope; −∞ or ∞ where ℓ' is above or below it everywhere."""
        share = np.clip(-y * slope, 0.0, 1.0)  # σ(−y z)
        with np.errstate(divide="ignore"):
            return -y * (np.log(share) - np.log1p(-share))

    @staticmethod
    @np.errstate(over="ignore")  # of large margins, whose ℓ' is then 0 as it should be
    def d1_of_many(z: Array, y: Array) -> Array:
        """ℓ'(z, y) = −y/(1 + exp(y z)), in place and with NumPy's vectorised exp: last bits differ from `d1`."""
        found = np.atleast_1d(y * z)
        np.exp(found, out=found)
        found += 1.0
        return np.divide(-y, found, out=found)

    @staticmethod
    def d2(z: Array, y: Array) -> Array:
        """ℓ''(z, y) = σ(z) σ(−z)."""
        return expit(z) * expit(-z)

    @staticmethod
    def d3(z: Array, y: Array) -> Array:
        """ℓ'''(z, y) = σ(z) σ(−z) (σ(−z) − σ(z))."""
        p, q = expit(z), expit(-z)
        return p * q * (q - p)

    def accuracy(self, theta: Array) -> float:
        """Return the share of all records, sample weights counted, whose label is the sign of the margin at θ."""
        right = of_records(lambda z, y: (z > 0.0) == (y > 0.0), self.x @ theta, self.y)
        return float(right.mean() if self.y.ndim == 1 else right.sum() / self.y[:, WEIGHT].sum())
