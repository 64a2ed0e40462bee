"""A table's problem with its margins standardised, so that a run can start at θ = 0."""

import math

import numpy as np

from fedscaffold.core.errors import InvalidInput
from fedscaffold.data.encoded import EncodedProblem
from fedscaffold.problems.base import OFFSET, TARGET, WEIGHT


def standardize_target(problem: EncodedProblem) -> tuple[EncodedProblem, float, float]:
    """The same problem with margins (z − shift)/scale in place of z, so that θ = 0 is a sensible start.

    Of numbers these are the mean and the deviation: relative distances then do not depend on where the target's
    zero lies. Of counts and amounts the logarithm of the mean rate, which becomes a part of the offsets, and 1.
    Of classes 0 and 1.
    """
    family = problem.encoding.family
    if family.classes:
        return problem, 0.0, 1.0
    shift, scale = _mean_rate(problem) if family.log_link else _mean_and_deviation(problem)
    # in memory, even where the rows lie in a file
    return problem.with_records(y=family.standardized(problem.y, shift, scale)), shift, scale


def _mean_rate(problem: EncodedProblem) -> tuple[float, float]:
    total = exposure = 0.0
    for rows, share in problem.shares(problem.y):
        y = problem.y[rows]
        own = share * y[:, WEIGHT]
        total, exposure = total + float(own @ y[:, TARGET]), exposure + float(own @ np.exp(y[:, OFFSET]))
    return math.log(total / exposure), 1.0


def _mean_and_deviation(problem: EncodedProblem) -> tuple[float, float]:
    targets = problem.targets
    mean = sum(float(share @ targets[rows]) for rows, share in problem.shares(problem.y))
    square = sum(float(share @ (targets[rows] - mean) ** 2) for rows, share in problem.shares(problem.y))
    deviation = float(np.sqrt(square))
    if deviation <= 1e-12 * abs(mean):
        raise InvalidInput(
            f"the target {problem.encoding.target!r} is the same in all rows; choose a column that varies"
        )
    return mean, deviation
