"""What the paper proves in Section 4, with explicit constants: upper bounds, and the conditions they need.

Every function takes the constants of a problem and a setting, and returns a `Bound`: the number, and each
condition of the statement with what it is here. A bound whose conditions fail is a number without a proof;
`holds` says so. The paper has clients of equal weight; here weights may differ, and 1/N becomes Σ w_c².

Where the text of "Scaffold with Stochastic Gradients: New Analysis with Linear Speed-Up" and its proofs differ,
these functions follow what can be proved; each says how it differs from the printed statement.
"""

from fedscaffold.theory.bounds.conditions import Bound, Condition
from fedscaffold.theory.bounds.covariances import CovarianceSystem, covariance_system
from fedscaffold.theory.bounds.crude import (
    contraction,
    control_variates,
    crude_mse,
    drift,
    initial_distance2,
    local_iterates,
    mean_local_iterates,
    stationary_mse,
    wasserstein_decay,
    wasserstein_from_start,
)
from fedscaffold.theory.bounds.moments import local_moment, stationary_moment
from fedscaffold.theory.bounds.speed_up import Complexity, complexity, finite_time_mse, stationary_covariance

__all__ = [
    "Bound",
    "Complexity",
    "Condition",
    "CovarianceSystem",
    "complexity",
    "contraction",
    "control_variates",
    "covariance_system",
    "crude_mse",
    "drift",
    "finite_time_mse",
    "initial_distance2",
    "local_iterates",
    "local_moment",
    "mean_local_iterates",
    "stationary_covariance",
    "stationary_moment",
    "stationary_mse",
    "wasserstein_decay",
    "wasserstein_from_start",
]
