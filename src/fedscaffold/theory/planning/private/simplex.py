"""The least error over clip and step size, by Nelder and Mead's simplex of their logarithms."""

import math
from collections.abc import Callable

import numpy as np
from scipy.optimize import minimize

from fedscaffold.core.types import Array

NEAR, ALIKE = 0.03, 0.002  # where corners are so near to each other and log errors there so alike, it ends
NONE = 1e3  # counts as the logarithm of an error that is not finite


def least(
    ask: Callable[[float, float], float], clip: float, gamma: float, *, reach: float, tries: int
) -> tuple[float, float, float]:
    """The least error that was found, and its clip and step size.

    Parameters
    ----------
    ask
        The error of a clip and a step size; inf where there is none.
    clip, gamma
        Where to begin.
    reach
        How far away the first tries are, as a logarithm.
    tries
        Limit on their number.
    """
    known: list[tuple[float, float, float]] = []

    def value(logs: Array) -> float:
        at = math.exp(logs[0]), math.exp(logs[1])
        known.append((ask(*at), *at))
        error = known[-1][0]
        return math.log(error) if 0.0 < error < math.inf else NONE

    begin = np.log([clip, gamma])
    corners = begin + reach * np.array([[0.0, 0.0], [0.0, -1.0], [-1.0, 0.5]])
    options = {"maxfev": tries, "xatol": NEAR, "fatol": ALIKE, "initial_simplex": corners}
    minimize(value, begin, method="Nelder-Mead", options=options)
    return min(known)
