"""Which step size needs the fewest rounds with given local steps, by the fast linear model."""

import math
from functools import cache

from fedscaffold.theory.planning.linear_model import LinearModel

GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0
GOLDEN_STEPS = 7


def best_step_size(model: LinearModel, H: int, aim: float, most_rounds: int) -> tuple[float, float]:
    """(γ, T) with the fewest rounds for H local steps; T > most_rounds is rough."""

    @cache
    def rounds(log_gamma: float) -> float:
        return model.outcome(math.exp(log_gamma), H, aim, most_rounds)[0]

    high = math.log(_largest_useful(model, H, aim))
    low = high - math.log(20.0)
    a, b = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
    for _ in range(GOLDEN_STEPS):
        if rounds(a) <= rounds(b):
            high, b = b, a
            a = high - GOLDEN * (high - low)
        else:
            low, a = a, b
            b = low + GOLDEN * (high - low)
    chosen = min((a, b), key=rounds)
    return math.exp(chosen), rounds(chosen)


def _largest_useful(model: LinearModel, H: int, aim: float) -> float:
    """About the largest γ whose plateau is below the aim: plateaus are nearly linear in γ."""
    gamma = 1.0 / model.largest
    for _ in range(40):
        _, plateau = model.outcome(gamma, H, 0.0, 1)
        if plateau <= aim:
            return gamma
        gamma *= max(0.1, min(0.7, aim / plateau)) if math.isfinite(plateau) else 0.5
    return gamma
