"""How close to the pooled model a fit should come, and whether there is one."""

import numpy as np

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array
from fedscaffold.data.encoded import EncodedProblem
from fedscaffold.inference import closing_sums
from fedscaffold.inference.covariance import covariance
from fedscaffold.inference.diagnosis import refuse_undetermined
from fedscaffold.inference.families import family_of
from fedscaffold.inference.per_client import MOST_COEFFICIENTS
from fedscaffold.inference.tolerance import parse_tolerance
from fedscaffold.models.planning.distance import slope_length
from fedscaffold.problems.newton import PENALISE, NoMinimiser

RELATIVE_TOLERANCE = 0.005  # what a run aims for that Newton steps will close


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
    """θ*; where columns depend on each other or separate the classes, a refusal that names them.

    Without a penalty, a table with no row to spare for the variance is refused too.
    """
    try:
        optimum = problem.optimum()
        if problem.l2 == 0.0 and problem.n_records <= problem.dim and family_of(problem.kind).dispersion:
            raise InvalidInput(
                f"there are {problem.n_records:,} rows for {problem.dim:,} coefficients, so nothing is left to "
                f"estimate the variance from; use fewer columns or more rows, or {PENALISE}"
            )
        if problem.l2 == 0.0:  # rounding may end the search where the loss falls for ever
            _refuse_undetermined(problem, optimum)
        return optimum
    except NoMinimiser as error:
        _refuse_undetermined(problem, error.theta)
        raise


def _refuse_undetermined(problem: EncodedProblem, theta: Array) -> None:
    if problem.dim <= MOST_COEFFICIENTS:
        sums = closing_sums(problem, theta, scores=False)
        refuse_undetermined(sums, problem.n_records * problem.penalty, problem.encoding.names)
