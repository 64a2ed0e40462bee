"""Which step size, local steps and rounds reach a target at the least cost, by the sharp predictor.

For H local steps, the number of rounds T(γ) that the predicted curve needs is large for small γ (slow) and for
large γ (the plateau comes near the target). A search over log γ finds the best, a search over H = 1, 4, 16, ...
the best H; then H is lowered as far as the same T allows. Where there are many clients the search looks at a
sample of them, with the noise of the mean scaled to all; the last steps look at all of them.
"""

import math

from fedscaffold.core.arrays import evenly_spaced_clients
from fedscaffold.core.capabilities import SmoothProblem
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.progress import Advance
from fedscaffold.core.threads import one_blas_thread
from fedscaffold.theory.planning.curve_model import CurveModel, best_step_size
from fedscaffold.theory.planning.out_of_reach import out_of_reach
from fedscaffold.theory.planning.plan import Plan
from fedscaffold.theory.planning.request import PlanRequest
from fedscaffold.theory.supported import is_quadratic

AIM = 0.9  # of the target, so that a few percent of error in the prediction do no harm
SAMPLE = 40  # clients that the search looks at
TRIES = 6
CLOSE, FINE = 0.85, 1.05  # of the aim: good enough to stop, and to keep


@one_blas_thread
def sharp_plan(request: PlanRequest, advance: Advance) -> Plan:
    """γ, H, T with the least cost whose predicted error is at most the target; `advance` reports the progress.

    Raises
    ------
    InvalidInput
        If nothing within the limits reaches the target; says which limit binds.
    """
    aim, longest, most_rounds = AIM * request.target, request.most_local_steps, request.most_rounds
    model = _sampled(request)
    start = float(model.base.optimum @ model.base.optimum)
    if start <= request.target:
        raise InvalidInput(
            f"θ = 0 is already within a squared error of {request.target:g} of the optimum ({start:.3g}): there "
            "is nothing to run"
        )
    grid = [H for H in (4**k for k in range(20)) if longest > H] + [longest]
    best: tuple[float, int, float, float] | None = None  # cost, H, γ, rounds
    rising = 0
    for k, H in enumerate(reversed(grid)):  # long rounds first: their curves are the shortest
        gamma, rounds = best_step_size(model, H, aim, most_rounds)
        advance(k + 1, len(grid) + 1)
        if rounds > most_rounds:
            continue
        now = request.cost(rounds, H)
        if best is None or now < best[0]:
            best, rising = (now, H, gamma, rounds), 0
        else:
            rising += 1
            if rising == 2:
                break
    if best is None:
        raise out_of_reach(model, request.target, aim, longest, most_rounds)
    whole = model if model.base.problem is request.problem else _of_all(request)
    found = _polished(whole, model, aim, best[1], best[2], max(1, math.ceil(best[3])), request)
    advance(len(grid) + 1, len(grid) + 1)
    return found


def _of_all(request: PlanRequest) -> CurveModel:
    return CurveModel.of(request.problem, request.batches, optimum=request.optimum)


def _sampled(request: PlanRequest) -> CurveModel:
    """The predictor on evenly spaced clients, with the noise of the mean as with all of them."""
    problem = request.problem
    if problem.n_clients <= 2 * SAMPLE:
        return _of_all(request)
    sample = problem.subset(evenly_spaced_clients(problem.n_clients, SAMPLE))
    return CurveModel.of(sample, request.batches, noise_scale=_spread(problem) / _spread(sample))


def _spread(problem: SmoothProblem) -> float:
    """Σ w_c²: the variance of a weighted mean of independent terms of variance one."""
    return float(problem.weights @ problem.weights)


def _polished(
    whole: CurveModel, model: CurveModel, aim: float, H: int, gamma: float, T: int, request: PlanRequest
) -> Plan:
    """The least H that reaches the aim in T rounds: by halving on the sample, then by secants on all clients."""
    low, high, step = H // 4, H, gamma
    while high - low > max(1, H // 32):
        middle = (low + high) // 2
        there, rounds = (
            best_step_size(model, middle, aim, request.most_rounds, step) if middle else (step, math.inf)
        )
        low, high, step = (low, middle, there) if rounds <= T else (middle, high, step)
    H, found = high, []
    for _ in range(TRIES):
        curve, plateau, variance = whole.curve(step, H, T)
        bias = 0.0 if is_quadratic(request.problem) else max(plateau - variance, 0.0)
        useful = request.problem.n_clients * variance / bias if bias else math.inf
        known = {"predicted_mse": float(curve[-1]), "curve": curve, "max_useful_clients": useful}
        found.append(request.plan("sharp", step, H, T, variance_part=variance, bias_part=bias, **known))
        if CLOSE * aim <= curve[T] <= aim:
            break
        if plateau > 0.98 * aim:  # noise alone: smaller steps, as many more of them, and one more round
            ratio = max(0.5, 0.9 * aim / plateau)
            step, H, T = (
                step * ratio,
                min(math.ceil(H / ratio), request.most_local_steps),
                min(T + 1, request.most_rounds),
            )
        else:
            other = math.ceil(1.2 * H) if curve[T] > aim else int(0.8 * H)
            if other == 0:
                break
            slope = math.log(model.curve(step, other, T)[0][T] / model.curve(step, H, T)[0][T]) / (other - H)
            wanted = H + math.log(0.95 * aim / curve[T]) / min(slope, -1e-9)
            before, H = H, max(1, min(2 * H, request.most_local_steps, max(H // 2, math.ceil(wanted))))
            if before == H and curve[T] > aim:
                T = min(T + math.ceil(T / 20), request.most_rounds)
    fine = [one for one in found if one.predicted_mse <= aim * FINE]
    if not fine:
        raise InvalidInput("no plan found that holds for all clients; ask for a larger target")
    return max(fine, key=lambda one: one.predicted_mse)
