"""Number of clients from which on more of them stop helping: plateau = a/N + floor, with both parts equal."""

from typing import NamedTuple

import numpy as np

from fedscaffold.core.types import Array

FEWEST = 3  # numbers of clients for a fit
SURE = 3.0  # standard errors above zero, from which a floor is one
BEYOND = 10.0  # times the largest N: a floor that far off is none


class Saturation(NamedTuple):
    """The fitted curve plateau = a/N + floor.

    Attributes
    ----------
    a, floor, floor_error
        The two parts, and the standard error of the floor.
    n_clients, standard_error
        The N at which both parts are equal, a/floor, and its standard error; None where no floor is seen.

    Examples
    --------
    >>> from fedscaffold.benchmarking import Saturation
    >>> Saturation(a=2.0, floor=0.004, floor_error=1e-4, n_clients=500.0, standard_error=10.0).n_clients
    500.0
    """

    a: float
    floor: float
    floor_error: float
    n_clients: float | None
    standard_error: float | None


def fit_saturation(clients: Array, plateau: Array, error: Array) -> Saturation | None:
    """Fit plateau = a/N + floor by least squares, weighted with the standard errors; None for fewer than three N.

    Where points lie further from the curve than their errors say, as at few clients, which are not quite like all
    clients, the errors of what is fitted grow accordingly.

    Parameters
    ----------
    clients
        Numbers of clients N, (points,).
    plateau, error
        Mean squared errors on the plateaus and their standard errors, (points,).

    Examples
    --------
    >>> import numpy as np
    >>> from fedscaffold.benchmarking import fit_saturation
    >>> N = np.array([10.0, 100.0, 1000.0, 10_000.0])
    >>> plateau = 2.0 / N + 0.004
    >>> round(fit_saturation(N, plateau, 0.01 * plateau).n_clients)
    500
    """
    if clients.size < FEWEST or not (error > 0).all():
        return None
    X = np.stack([1.0 / clients, np.ones_like(clients)], axis=1) / error[:, None]
    y = plateau / error
    scale = np.abs(X).max(axis=0)
    inverse = np.linalg.inv((X / scale).T @ (X / scale))
    a, floor = inverse @ ((X / scale).T @ y) / scale
    misfit = float(np.square(y - X @ np.array([a, floor])).sum()) / (clients.size - 2)
    cov = max(1.0, misfit) * inverse / np.outer(scale, scale)
    floor_error = float(np.sqrt(cov[1, 1]))
    if a <= 0 or floor < SURE * floor_error or a / floor > BEYOND * clients.max():
        return Saturation(float(a), float(floor), floor_error, None, None)
    relative = cov[0, 0] / a**2 + cov[1, 1] / floor**2 - 2.0 * cov[0, 1] / (a * floor)
    at = float(a / floor)
    return Saturation(float(a), float(floor), floor_error, at, at * float(np.sqrt(relative)))


def predict_saturation(clients: Array, variance: Array, bias: Array) -> float | None:
    """N tr Cov θ / ‖E θ − θ*‖² at the largest N for which there is a prediction; None where there is no floor.

    Parameters
    ----------
    clients
        Numbers of clients N, (points,).
    variance, bias
        Predicted tr Cov θ and ‖E θ − θ*‖², (points,); NaN where theory has no answer.

    Examples
    --------
    >>> import numpy as np
    >>> from fedscaffold.benchmarking import predict_saturation
    >>> N = np.array([10.0, 100.0, 1000.0])
    >>> predict_saturation(N, 2.0 / N, np.full(3, 0.004))
    500.0
    """
    known = np.flatnonzero(np.isfinite(variance) & np.isfinite(bias))
    if known.size == 0:
        return None
    last = known[clients[known].argmax()]
    if bias[last] <= 0.0:
        return None
    at = float(clients[last] * variance[last] / bias[last])
    return None if at > BEYOND * clients.max() else at
