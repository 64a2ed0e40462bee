"""How far a model is from the pooled one: the relative distance of the coefficients, the intercept left out."""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedscaffold.core.protocols import Problem, Watch
from fedscaffold.core.types import Array
from fedscaffold.inference.coordinates import slope_mask
from fedscaffold.problems.base import TabularProblem


def slopes(problem: TabularProblem) -> NDArray[np.bool_]:
    """Which coordinates of θ belong to features, (dim,): all but the unpenalised last ones of each vector."""
    return slope_mask(problem.vectors, problem.n_features, problem.n_unpenalised)


def slope_length(problem: TabularProblem, theta: Array) -> float:
    """‖β‖ of the coefficients β of θ, without intercepts."""
    return float(np.linalg.norm(theta[slopes(problem)]))


def relative_distance(problem: TabularProblem, theta: Array, optimum: Array) -> Array:
    """‖β − β*‖ / ‖β*‖ of the coefficients of each θ, (..., dim) → (...), without intercepts.

    An intercept says how frequent an outcome is and where zero lies. In the norm of θ* it would hide what matters:
    with a rare outcome the coefficients may be far off while θ as a whole is close.
    """
    own = slopes(problem)
    return np.asarray(np.linalg.norm(theta[..., own] - optimum[own], axis=-1) / np.linalg.norm(optimum[own]))


@dataclass(frozen=True, eq=False)
class RelativeDistance:
    """Observer that records `relative_distance` to the optimum after every round."""

    optimum: Array = field(repr=False)
    name: str = field(default="relative_distance", init=False)
    keep: Literal["every"] = field(default="every", init=False)

    def watch(self, problem: Problem) -> Watch:
        """A function that computes the distance of every repetition."""
        assert isinstance(problem, TabularProblem)

        def distance(round: int, theta: Array, previous: Array | None) -> Array:
            return relative_distance(problem, theta, self.optimum)

        return distance
