"""Which step size, local steps and rounds reach a target at the least cost, by the sharp predictor.

The linear model, which is fast, proposes γ and H; the sharp predictor says how many rounds they need, and what it
finds corrects the next proposal (`tries`). The cheapest is verified by the prediction that `theory.predict`
makes of it; where that says more than the search did, the search begins again with a smaller aim.
"""

import math

from fedscaffold.core.display.progress import Advance
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.threads import one_blas_thread
from fedscaffold.core.types import Array
from fedscaffold.theory.planning.curve_model import CurveModel, Foreseen
from fedscaffold.theory.planning.linear_model import LinearModel
from fedscaffold.theory.planning.out_of_reach import out_of_reach
from fedscaffold.theory.planning.plan import Plan
from fedscaffold.theory.planning.request import PlanRequest
from fedscaffold.theory.planning.tries import Candidate, Tries
from fedscaffold.theory.supported import is_quadratic

AIM = 0.93  # of the target, so that a few percent of error in the prediction do no harm
VERIFIED = 0.97  # of the target: what the verified error may be at most
VERIFICATIONS = 4
MANY_COPIES = 1.5  # of all clients: with fewer, the bias is as good as the same
MOST_CLIENTS = 1e12  # above it their number is as good as infinite


@one_blas_thread
def sharp_plan(request: PlanRequest, advance: Advance) -> Plan:
    """γ, H, T with the least cost whose predicted error is at most the target; `advance` reports the progress.

    Raises
    ------
    OutOfReach
        If nothing within the limits reaches the target; says which limit binds.
    """
    start = float(request.optimum @ request.optimum)
    if start <= request.target:
        raise InvalidInput(
            f"θ = 0 is already within a squared error of {request.target:g} of the optimum ({start:.3g}): there "
            "is nothing to run"
        )
    model = CurveModel.of(request)
    linear = LinearModel.of(model.base)
    aim, verified = AIM * request.target, None
    tries = Tries(request, model, linear, aim)
    guess = tries.linear_search().cheapest(advance)
    for _ in range(VERIFICATIONS):
        best = tries.best_from(guess)
        if best is None:
            break
        found = model.predict(best.gamma, best.H, best.T)
        if found is not None and found.curve is not None:
            error = float(found.curve[-1])
            if error <= VERIFIED * request.target:
                verified = best, found
                break
            aim = min(0.9 * aim, AIM * request.target * best.reached / error)
        else:
            aim *= 0.7
        tries = Tries(request, model, linear, aim, correction=tries.correction, failed=tries.failed)
        guess = tries.linear_search().around(guess)
    if verified is None:
        raise out_of_reach(linear, request, aim)
    advance(1, 1)
    return _plan(request, model, *verified)


def _plan(request: PlanRequest, model: CurveModel, best: Candidate, found: Foreseen) -> Plan:
    """The plan of a candidate and its prediction."""
    assert found.curve is not None
    return request.plan(
        "sharp",
        best.gamma,
        best.H,
        best.T,
        variance_part=found.variance,
        bias_part=0.0 if is_quadratic(request.problem) else found.bias,
        predicted_mse=float(found.curve[-1]),
        curve=found.curve,
        max_useful_clients=_useful_clients(request, model, best, found),
    )


def _useful_clients(request: PlanRequest, model: CurveModel, best: Candidate, found: Foreseen) -> float:
    """How many clients make noise and bias equal.

    With k copies of all clients the variance is about v/k and the bias about b + c/k, where b is that of endlessly
    many, so that two predictions give k; a third, with so many copies, corrects it. Third cumulants are left out.
    """
    N = request.problem.n_clients
    if is_quadratic(request.problem) or not found.bias > 0.0:
        return math.inf
    if found.variance <= MANY_COPIES * found.bias:
        return N * found.variance / found.bias
    copies = 1.0
    endless = model.plateau_parts(best.gamma, best.H, math.inf)
    for _ in range(2):
        parts = model.plateau_parts(best.gamma, best.H, copies)
        if parts is None or endless is None:
            return math.inf
        copies = _where_equal(copies * parts[0], endless[1], copies * (parts[1] - endless[1]))
        if not N * copies < MOST_CLIENTS:
            return math.inf
    return N * copies


def _where_equal(v: float, b: Array, c: Array) -> float:
    """The largest k with v/k = ‖b + c/k‖², or where the two come nearest; inf if there is no bias b that stays."""
    square, middle = float(b @ b), v - 2.0 * float(b @ c)
    if square == 0.0:
        return math.inf
    return max(middle + math.sqrt(max(middle**2 - 4.0 * square * float(c @ c), 0.0)), 0.0) / (2.0 * square)
