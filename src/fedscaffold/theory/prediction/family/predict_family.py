"""Predictions for methods beyond Scaffold and FedAvg with all clients: plateau, bias, covariance and curve."""

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import numpy as np

from fedscaffold.core.capabilities import SmoothProblem
from fedscaffold.core.checks import check_problem_and_method
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.protocols import Method
from fedscaffold.core.random.batches import Batches
from fedscaffold.core.types import Array
from fedscaffold.theory.prediction.family.family_setting import FamilySetting, family_setting
from fedscaffold.theory.prediction.family.local_law import Linearisation
from fedscaffold.theory.prediction.family.round_map import round_map
from fedscaffold.theory.prediction.family.stationary_law import laws_of_rounds, stationary_law
from fedscaffold.theory.supported import PLAIN


class FamilyPrediction(NamedTuple):
    """What `theory.predict` says of a method, as in `theory.Prediction`."""

    cov_theta: Array
    bias: Array
    bias_xi: Array
    curve: Array | None


def is_plain(problem: SmoothProblem, method: Method) -> bool:
    """Whether a method is Scaffold or FedAvg with all clients and one number of local steps."""
    check_problem_and_method(problem, method)
    if method.kind not in PLAIN or method.participants(problem.n_clients) < problem.n_clients:
        return False
    return method.local_step_counts(problem.n_clients, np.full(1, 0.5)).size == 1


def predict_family(
    problem: SmoothProblem, method: Method, batches: Batches, rounds: int | None = None
) -> FamilyPrediction:
    """Mean and covariance of the stationary law of any method that is linear in its state; exact for ridge."""
    s = family_setting(problem, method, batches)
    law = stationary_law(s)
    d = problem.dim
    return FamilyPrediction(
        cov_theta=law.cov[:d, :d],
        bias=law.mean[:d],
        bias_xi=_corrections(s, law.linearisation, np.concatenate([[1.0], law.mean])),
        curve=None if rounds is None else error_curve(s, rounds),
    )


def error_curve(s: FamilySetting, rounds: int) -> Array:
    """E‖θ_t − θ*‖² for t = 0, ..., rounds from θ_0 = 0, (rounds + 1,)."""
    return np.fromiter(islice(error_rounds(s), rounds + 1), np.float64, rounds + 1)


def error_rounds(s: FamilySetting) -> Iterator[float]:
    """E‖θ_t − θ*‖² for t = 0, 1, ... from θ_0 = 0, as long as it is asked for."""
    at = s.server(0)
    for second in laws_of_rounds(s):
        error = float(np.trace(second[at, at]))
        if not np.isfinite(error):
            raise InvalidInput("the error grows without end on its way; take a smaller step_size")
        yield error


def _corrections(s: FamilySetting, lin: Linearisation, mean: Array) -> Array:
    """E ξ_c − ξ*_c on the plateau, (N, d)."""
    pulled = (round_map(s, lin).inputs[1] @ mean).reshape(s.gradients.shape)
    return -np.einsum("kij,kj->ki", lin.cur.U, pulled) / s.linear.gamma
