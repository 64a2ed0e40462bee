"""How close to the pooled model a fit should come, and whether there is one."""

import math
from typing import Any, Literal

import numpy as np

from fedscaffold.core.checks import positive
from fedscaffold.core.errors import InvalidInput, Option
from fedscaffold.core.types import Array
from fedscaffold.data.encoded import EncodedProblem
from fedscaffold.inference import closing_sums
from fedscaffold.inference.covariance import covariance
from fedscaffold.inference.diagnosis import refuse_undetermined
from fedscaffold.models.planning.distance import slope_length
from fedscaffold.problems.newton import NoMinimiser

RELATIVE_TOLERANCE = 0.005  # what a run aims for that Newton steps will close


def parse_tolerance(tolerance: Any) -> tuple[Literal["se", "relative"], float]:
    """The unit and the number of a tolerance such as "se:0.05" or 0.005."""
    if isinstance(tolerance, str):
        unit, _, number = tolerance.partition(":")
        try:
            value = float(number)
        except ValueError:
            value = math.nan
        if unit.strip() != "se" or not 0.0 < value < math.inf:
            raise InvalidInput(
                Option("tolerance"), f" must be a number below 1, or such as 'se:0.05', got {tolerance!r}"
            )
        return "se", value
    if not positive("tolerance", tolerance) < 1.0:
        raise InvalidInput(Option("tolerance"), f" must be below 1, got {tolerance!r}")
    return "relative", float(tolerance)


def squared_aim(problem: EncodedProblem, optimum: Array, tolerance: float | str, *, close: bool) -> float:
    """The ‖θ − θ*‖² that a run aims for: tolerance² ‖β*‖², with β* the coefficients of θ* without the intercept.

    For a tolerance in standard errors, either what Newton steps can close, or where none follow the square of that
    many times the smallest standard error of a coordinate.
    """
    unit, value = parse_tolerance(tolerance)
    if unit == "relative" or close:
        value = value if unit == "relative" else RELATIVE_TOLERANCE
        return (value * slope_length(problem, optimum)) ** 2
    sums = closing_sums(problem, optimum, scores=False)
    variances = np.diagonal(covariance(sums, problem.n_records * problem.penalty))
    return float(value**2 * variances.min())


def determined_optimum(problem: EncodedProblem) -> Array:
    """θ*; where columns depend on each other or separate the classes, a refusal that names them."""
    try:
        return problem.optimum()
    except NoMinimiser as error:
        sums = closing_sums(problem, error.theta, scores=False)
        refuse_undetermined(sums, problem.n_records * problem.penalty, problem.encoding.names)
        raise
