"""Which step size, local steps and rounds reach a target at the least cost, by the sharp predictor.

The linear model, which is fast, proposes γ and H; the sharp predictor says how many rounds they need, and what it
finds corrects the next proposal (`tries`). The cheapest is verified by the prediction that `theory.predict`
makes of it; where that says more than the search did, the search begins again with a smaller aim.
"""

import math

from fedscaffold.core.display.progress import Advance
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.threads import one_blas_thread
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
COPIES_TRIED, EQUAL, MOST_COPIES = (
    4,
    0.03,
    30.0,
)  # predictions, how equal in logarithms, and the most log of copies


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

    Were the bias the same for any number of clients, N var/bias² would be it; but a part of it falls as 1/N. So
    the equation is solved by predictions for copies of all clients: log(var/bias²) is nearly linear in log N.
    """
    N, variance, bias = request.problem.n_clients, found.variance, found.bias
    if is_quadratic(request.problem) or not bias > 0.0:
        return math.inf
    if variance <= MANY_COPIES * bias:
        return N * variance / bias
    seen: list[tuple[float, float]] = []  # log of copies, log(var/bias²)
    copies = 1.0
    for _ in range(COPIES_TRIED):
        known = copies == 1.0 and not model.exact
        parts = (variance, bias) if known else model.plateau_parts(best.gamma, best.H, copies)
        if parts is None or not min(parts) > 0.0:
            return math.inf
        seen.append((math.log(copies), math.log(parts[0] / parts[1])))
        (x, ratio), slope = seen[-1], -1.0
        if abs(ratio) < EQUAL:
            break
        if len(seen) > 1 and x != seen[-2][0]:
            slope = min((ratio - seen[-2][1]) / (x - seen[-2][0]), -0.1)
        copies = math.exp(min(x - ratio / slope, MOST_COPIES))
    return N * copies
