"""The problem of a table with its optimum, for plans, comparisons and `fedscaffold inspect`."""

from dataclasses import dataclass

import numpy as np

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array
from fedscaffold.data.encoded import EncodedProblem
from fedscaffold.inference.sums import MOST_COEFFICIENTS, client_intercept, slope_length
from fedscaffold.inference.training import RELATIVE_TOLERANCE, parse_tolerance
from fedscaffold.models.coding import standardize_target
from fedscaffold.models.fit import FitSettings, fit, without_intercept
from fedscaffold.problems.base import OFFSET, plain_columns


@dataclass(frozen=True, kw_only=True, eq=False)
class PreparedProblem:
    """A table's problem with a standardised target, its optimum, and a squared distance to aim for.

    Attributes
    ----------
    problem
        With intercepts of clients, if there are any, in the offsets of their rows.
    optimum
        θ*, (dim,).
    target_mse
        Squared distance to the optimum that a run should reach.
    loss_scale
        Factor that turns a loss of this problem into one in the target's own units.
    """

    problem: EncodedProblem
    optimum: Array
    target_mse: float
    loss_scale: float

    @property
    def aim(self) -> float:
        """The distance that a run should reach, relative to the norm of the slopes."""
        return float(np.sqrt(self.target_mse)) / slope_length(self.problem, self.optimum)

    def relative_distance(self, theta: Array) -> float:
        """Return ‖β − β*‖ / ‖β*‖ of the slopes β of a θ."""
        return slope_length(self.problem, theta - self.optimum) / slope_length(self.problem, self.optimum)


def prepare_problem(problem: EncodedProblem, settings: FitSettings) -> PreparedProblem:
    """Standardise a numeric target, find θ*, and choose the squared distance that a run should reach.

    Raises
    ------
    InvalidInput
        If the table does not determine the coefficients, or the best slopes are all 0.
    """
    standardized, _, scale = standardize_target(problem)
    if settings.client_intercepts:
        standardized = with_intercepts(standardized, settings)
    elif problem.dim <= MOST_COEFFICIENTS:
        fit(problem, settings=settings)  # names columns that the data do not determine
    optimum = standardized.optimum()
    unit, value = parse_tolerance(settings.tolerance)
    length = slope_length(standardized, optimum)
    if length == 0.0:
        raise InvalidInput(
            "the features say nothing about the target: the best coefficients are all 0; choose other features"
        )
    aim = value if unit == "relative" else RELATIVE_TOLERANCE
    return PreparedProblem(
        problem=standardized, optimum=optimum, target_mse=(aim * length) ** 2, loss_scale=scale**2
    )


def with_intercepts(problem: EncodedProblem, settings: FitSettings) -> EncodedProblem:
    """Return the problem of slopes alone, with the intercepts that fit clients best in the offsets of their rows.

    Clients whose target never varies, which an infinite intercept fits, are left out.
    """
    slopes = without_intercept(problem)
    zero = np.zeros(slopes.dim)
    kept = [c for c in range(slopes.n_clients) if client_intercept(slopes, c, zero) is not None]
    slopes = slopes.subset(kept)
    theta = fit(problem, settings=settings).theta
    y = np.array(plain_columns(slopes.y))
    for c in range(slopes.n_clients):
        alpha = client_intercept(slopes, c, theta)
        assert alpha is not None  # as for θ = 0
        y[slopes.offsets[c] : slopes.offsets[c + 1], OFFSET] += alpha
    return slopes.with_records(y=y)
