"""The interval in which the squared error of a single run lies, from the mean and covariance of its model."""

import numpy as np

from fedscaffold.core.checks import positive
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array

DRAWS = 100_000


def error_interval(bias: Array, cov_theta: Array, level: float = 0.9) -> tuple[float, float]:
    """Quantiles (1 ∓ level)/2 of ‖θ − θ*‖² for θ − θ* ~ N(bias, cov_theta): where the error of one run lies.

    On the plateau models are nearly normal, as sums of many small noises. The quantiles are those of 100,000 fixed
    draws, right to about half a percent.

    Parameters
    ----------
    bias, cov_theta
        Of a `Prediction`, shapes (d,) and (d, d).
    level
        Probability that the interval holds the error of one run, in (0, 1).

    Examples
    --------
    >>> import fedscaffold as fs
    >>> problem = fs.problems.RidgeStream(n_clients=6, dim=3)
    >>> found = fs.theory.predict(problem, fs.FedLin(step_size=0.1, local_steps=10), batch_size=4)
    >>> low, high = fs.theory.error_interval(found.bias, found.cov_theta, level=0.9)
    >>> low < found.mse < high
    True
    """
    if positive("level", level) >= 1.0:
        raise InvalidInput(f"level is a probability below 1, got {level!r}")
    variances, U = np.linalg.eigh(cov_theta)
    draws = np.random.default_rng(0).normal(size=(DRAWS, variances.size))
    errors = np.square(U.T @ bias + np.sqrt(np.maximum(variances, 0.0)) * draws).sum(axis=1)
    low, high = np.quantile(errors, [(1.0 - level) / 2.0, (1.0 + level) / 2.0])
    return float(low), float(high)
