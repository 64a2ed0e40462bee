"""Which limit keeps a plan from its target, found by running the predictor with the limits lifted."""

import math

from fedscaffold.core.errors import InvalidInput
from fedscaffold.theory.planning.linear_model import LinearModel
from fedscaffold.theory.planning.search import best_step_size

MORE_ROUNDS, MORE_STEPS = 64, 1024  # times a limit: what it is lifted to
SPARE = 1.25  # times the rounds that the sample of clients needs, so that the advice holds for all of them
FIRST_ROUNDS = 32
COUNTED = 20_000  # rounds: up to so many are counted along the curve, more are extrapolated


def out_of_reach(
    model: LinearModel, target: float, aim: float, most_local_steps: int, most_rounds: int
) -> InvalidInput:
    """The refusal when no step size reaches the aim within the limits: which one binds, and what would do."""
    rounds = _rounds_needed(model, most_local_steps, aim, MORE_ROUNDS * most_rounds)
    steps = _steps_needed(model, most_local_steps, aim, most_rounds)
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
        why = _both(model, aim, MORE_STEPS * most_local_steps, MORE_ROUNDS * most_rounds)
    limits = f"{most_rounds:,} rounds of {most_local_steps:,} local steps"
    return InvalidInput(f"a squared error of {target:g} is out of reach within {limits}: {why}")


def _both(model: LinearModel, aim: float, steps: int, most_rounds: int) -> str:
    """The end of the message when lifting one limit is not enough."""
    rounds = _rounds_needed(model, steps, aim, most_rounds)
    if rounds is not None:
        return (
            f"both limits bind, and both must be lifted; allow about {rounds:,} rounds and {steps:,} local steps"
        )
    return (
        f"noise binds, as a step size small enough for it needs more than {MORE_ROUNDS} times as many rounds of "
        f"{MORE_STEPS:,} times as many local steps; take larger batches or ask for a larger error"
    )


def _rounds_needed(model: LinearModel, H: int, aim: float, most: int) -> int | None:
    """About how many rounds of H local steps reach the aim, if `most` are enough."""
    gamma, rounds = best_step_size(model, H, aim, FIRST_ROUNDS)
    if rounds > most:
        return None
    enough = math.ceil(SPARE * rounds)
    if enough <= COUNTED:
        enough = math.ceil(SPARE * model.outcome(gamma, H, aim, enough)[0])
    return _rounded_up(max(enough, 1))


def _steps_needed(model: LinearModel, most_local_steps: int, aim: float, most_rounds: int) -> int | None:
    """About how many local steps reach the aim in the allowed rounds, if MORE_STEPS times the limit are enough."""

    def enough(H: int) -> bool:
        return best_step_size(model, H, aim, most_rounds)[1] <= most_rounds

    low, high = most_local_steps, MORE_STEPS * most_local_steps
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
