"""Which limit keeps a plan from its target, found by running the predictor with the limits lifted."""

import math
from dataclasses import replace

from fedscaffold.core.errors import OutOfReach
from fedscaffold.theory.planning.linear_model import LinearModel
from fedscaffold.theory.planning.request import PlanRequest
from fedscaffold.theory.planning.search import LinearSearch

MORE_ROUNDS, MORE_STEPS = 64, 1024  # times a limit: what it is lifted to
SPARE = 1.25  # times the rounds that the sample of clients needs, so that the advice holds for all of them
FIRST_ROUNDS = 32
COUNTED = 20_000  # rounds: up to so many are counted along the curve, more are extrapolated


def out_of_reach(model: LinearModel, request: PlanRequest, aim: float) -> OutOfReach:
    """The refusal when no step size reaches the aim within the limits: which one binds, and what would do."""
    most_steps, most_rounds = request.most_local_steps, request.most_rounds
    rounds = _rounds_needed(model, request, aim, most_steps)
    steps = _steps_needed(model, request, aim)
    if rounds is not None and steps is not None:
        why = (
            f"the two limits bind together, and lifting either is enough; allow about {rounds:,} rounds, or about "
            f"{steps:,} local steps"
        )
    elif rounds is not None:
        why = f"the rounds bind, and more local steps would not help; allow about {rounds:,} rounds"
    elif steps is not None:
        why = (
            f"the local steps bind, and {MORE_ROUNDS} times as many rounds would not be enough; allow about "
            f"{steps:,} local steps"
        )
    else:
        why = _both(model, request, aim)
    limits = f"{most_rounds:,} rounds of {most_steps:,} local steps"
    return OutOfReach(f"a squared error of {request.target:g} is out of reach within {limits}: {why}")


def _both(model: LinearModel, request: PlanRequest, aim: float) -> str:
    """The end of the message when lifting one limit is not enough."""
    steps = MORE_STEPS * request.most_local_steps
    rounds = _rounds_needed(model, request, aim, steps)
    if rounds is not None:
        return (
            f"both limits bind, and both must be lifted; allow about {rounds:,} rounds and {steps:,} local steps"
        )
    return (
        f"noise binds, as a step size small enough for it needs more than {MORE_ROUNDS} times as many rounds of "
        f"{MORE_STEPS:,} times as many local steps; take larger batches or ask for a larger error"
    )


def _rounds_needed(model: LinearModel, request: PlanRequest, aim: float, H: int) -> int | None:
    """About how many rounds of H local steps reach the aim, if MORE_ROUNDS times the limit are enough."""
    gamma, rounds = LinearSearch(model, replace(request, most_rounds=FIRST_ROUNDS), aim).best_step_size(H)
    if rounds > MORE_ROUNDS * request.most_rounds:
        return None
    enough = math.ceil(SPARE * rounds)
    if enough <= COUNTED:
        enough = math.ceil(SPARE * model.outcome(gamma, H, aim, enough)[0])
    return _rounded_up(max(enough, 1))


def _steps_needed(model: LinearModel, request: PlanRequest, aim: float) -> int | None:
    """About how many local steps reach the aim in the allowed rounds, if MORE_STEPS times the limit are enough."""
    search = LinearSearch(model, request, aim)

    def enough(H: int) -> bool:
        return search.best_step_size(H)[1] <= request.most_rounds

    low, high = request.most_local_steps, MORE_STEPS * request.most_local_steps
    if not enough(high):
        return None
    while high > 1.5 * low:
        middle = math.ceil(math.sqrt(low * high))
        low, high = (low, middle) if enough(middle) else (middle, high)
    return _rounded_up(math.ceil(SPARE * high))


def _rounded_up(number: int) -> int:
    """A whole number rounded up to its two leading digits."""
    unit = 10 ** max(0, len(str(number)) - 2)
    return -(-number // unit) * unit
