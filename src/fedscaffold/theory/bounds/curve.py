"""Theorem 4.9 as a curve: a bound on the squared error after every round."""

from typing import Any, NamedTuple

import numpy as np

from fedscaffold.core.types import Array
from fedscaffold.methods import Scaffold
from fedscaffold.theory import bounds
from fedscaffold.theory.bounds.conditions import Condition
from fedscaffold.theory.problem_constants import constants


class BoundCurve(NamedTuple):
    """A bound on E‖θ_t − θ*‖² for t = 0, ..., T, or the condition that is missed by most.

    Attributes
    ----------
    values
        The bound, (rounds + 1,); None where the theorem does not apply.
    missed
        The condition that is missed by most; None where all hold, or where the theorem is not about this method.
    """

    values: Array | None
    missed: Condition | None


def bound_curve(problem: Any, method: Any, *, batch_size: int | None, rounds: int) -> BoundCurve:
    """`bounds.finite_time_mse` after every round from θ_0 = 0, for Scaffold with all clients and one H."""
    if not isinstance(method, Scaffold) or not isinstance(method.local_steps, int):
        return BoundCurve(None, None)
    if method.participants(problem.n_clients) < problem.n_clients:
        return BoundCurve(None, None)
    found = constants(problem, batch_size=batch_size)
    optimum = problem.optimum()
    setting: dict[str, Any] = {
        "step_size": method.step_size,
        "local_steps": method.local_steps,
        "n_clients": problem.n_clients,
    }
    start = bounds.initial_distance2(found, squared_error=float(optimum @ optimum), **setting)
    curve = [
        bounds.finite_time_mse(found, rounds=t, initial_distance2=start, **setting) for t in range(rounds + 1)
    ]
    if curve[0].holds:
        return BoundCurve(np.array([bound.value for bound in curve]), None)
    return BoundCurve(None, max(curve[0].conditions, key=lambda condition: condition.missed_by))
