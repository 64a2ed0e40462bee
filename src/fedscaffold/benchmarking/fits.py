"""Plateaus of runs, and the laws fitted to several of them: a line, and plateau = a/N + floor."""

from typing import NamedTuple

import numpy as np

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.imports import load_optional
from fedscaffold.core.types import Array
from fedscaffold.simulation import Trace
from fedscaffold.simulation.stages.stationarity import Plateau, plateau


class ReachedPlateau(NamedTuple):
    """Mean squared error at the end of a run, and whether the run was stationary there."""

    plateau: Plateau
    stationary: bool


def reached_plateau(trace: Trace) -> ReachedPlateau:
    """Return the plateau of a trace's squared errors, or the mean of its last quarter if it was still moving."""
    found = trace.plateau()
    if found is not None:
        return ReachedPlateau(found, True)
    return ReachedPlateau(plateau(trace.mse, trace.rounds * 3 // 4), False)


class LineFit(NamedTuple):
    """A line y = intercept + slope·x fitted by least squares."""

    intercept: float
    slope: float
    low: float  # of a 95 % Student interval of the slope
    high: float  # its other end
    misfit: float  # root mean square of the residuals


def fit_line(x: Array, y: Array, weights: Array | None = None) -> LineFit:
    """Fit y = intercept + slope·x by least squares.

    Parameters
    ----------
    x, y
        Three points or more, (points,).
    weights
        Factors of the residuals, (points,); None for equal weights.

    Returns
    -------
    The line with a 95 % interval of its slope.

    Raises
    ------
    InvalidInput
        If there are fewer than three points.

    Examples
    --------
    >>> import numpy as np
    >>> from fedscaffold.benchmarking import fit_line
    >>> N = np.array([10.0, 100.0, 1000.0])
    >>> round(fit_line(np.log(N), np.log(5.0 / N)).slope, 6)  # 5/N falls as 1/N
    -1.0
    """
    stats = load_optional("scipy.stats", "intervals of slopes need SciPy", extra="reproduce")

    if x.size < 3:
        raise InvalidInput(f"a fit with an interval needs three points, got {x.size}")
    w = np.ones(x.size) if weights is None else weights
    design = np.stack([w, w * x], axis=1)
    (intercept, slope), *_ = np.linalg.lstsq(design, w * y, rcond=None)
    residuals = w * y - design @ np.array([intercept, slope])
    freedom = x.size - 2
    covariance = np.linalg.inv(design.T @ design) * float(residuals @ residuals) / freedom
    half = float(stats.t.ppf(0.975, freedom)) * float(np.sqrt(covariance[1, 1]))
    misfit = float(np.sqrt(np.mean(residuals**2)))
    return LineFit(float(intercept), float(slope), float(slope) - half, float(slope) + half, misfit)


class Saturation(NamedTuple):
    """The fitted curve plateau = a/N + floor, and the N at which both parts are equal.

    Attributes
    ----------
    a, floor, floor_error
        The two parts, and the standard error of the floor.
    largest
        Largest N that was measured.
    n_clients, standard_error
        N = a/floor and its standard error; None if no floor is seen, or if N lies beyond `largest`: a saturation
        that was not reached is not a measurement.
    """

    a: float
    floor: float
    floor_error: float
    largest: float
    n_clients: float | None
    standard_error: float | None

    def __str__(self) -> str:
        if self.n_clients is None:
            return f"not reached up to N = {self.largest:,.0f}"
        return f"N = {self.n_clients:,.0f} ± {self.standard_error:,.2g}"


def fit_saturation(clients: Array, plateau: Array, error: Array) -> Saturation | None:
    """Fit plateau = a/N + floor by least squares, weighted with the standard errors.

    If points lie further from the curve than their errors allow (as happens for few clients, whose mean problem is
    not quite that of all clients), the standard errors of the fit grow accordingly.

    Parameters
    ----------
    clients
        Numbers of clients N, (points,).
    plateau, error
        Mean squared errors on the plateaus and their standard errors, (points,).

    Returns
    -------
    The fit, or None for fewer than three points or errors that are not positive.

    Examples
    --------
    >>> import numpy as np
    >>> from fedscaffold.benchmarking import fit_saturation
    >>> N = np.array([10.0, 100.0, 1000.0, 10_000.0])
    >>> plateau = 2.0 / N + 0.004
    >>> round(fit_saturation(N, plateau, 0.01 * plateau).n_clients)
    500
    """
    if clients.size < 3 or not (error > 0).all():
        return None
    X = np.stack([1.0 / clients, np.ones_like(clients)], axis=1) / error[:, None]
    y = plateau / error
    scale = np.abs(X).max(axis=0)
    inverse = np.linalg.inv((X / scale).T @ (X / scale))
    a, floor = (float(part) for part in inverse @ ((X / scale).T @ y) / scale)
    misfit = float(np.square(y - X @ np.array([a, floor])).sum()) / (clients.size - 2)
    cov = max(1.0, misfit) * inverse / np.outer(scale, scale)
    floor_error, largest = float(np.sqrt(cov[1, 1])), float(clients.max())
    seen = a > 0 and floor >= 3.0 * floor_error  # three standard errors above zero
    if not seen or a / floor > largest:
        return Saturation(a, floor, floor_error, largest, None, None)
    relative = cov[0, 0] / a**2 + cov[1, 1] / floor**2 - 2.0 * cov[0, 1] / (a * floor)
    return Saturation(a, floor, floor_error, largest, a / floor, a / floor * float(np.sqrt(relative)))
