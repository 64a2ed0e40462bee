"""Which step size, local steps and rounds reach a target at the least cost, by the sharp predictor.

For H local steps, the number of rounds T(γ) that the predicted curve needs is large for small γ (slow) and for
large γ (the plateau comes near the target). A search over log γ finds the best, a search over H = 1, 4, 16, ...
the best H; then H is lowered as far as the same T allows. Where there are many clients the search looks at a
sample of them, with the noise of the mean scaled to all; the last steps look at all of them.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import ClassVar

import numpy as np

from fedscaffold.core.batches import Batches
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.threads import one_blas_thread
from fedscaffold.core.types import Array
from fedscaffold.theory.clients import Glm
from fedscaffold.theory.curve import curve_parts
from fedscaffold.theory.plateau import SETTLED, STEPS, Setting, setting, settle
from fedscaffold.theory.steps import steps

AIM = 0.9  # of the target, so that a few percent of error in the prediction do no harm
SAMPLE = 40  # clients that the search looks at
COARSE = 1e-2  # of the interpolation
GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0
GOLDEN_STEPS = 7
TRIES = 6
CLOSE, FINE = 0.85, 1.05  # of the aim: good enough to stop, and to keep
FIRST_ROUNDS = 32


@dataclass(frozen=True)
class Scaffold:
    """The method, as this room knows it."""

    step_size: float
    local_steps: int
    kind: ClassVar[str] = "scaffold"


@dataclass(frozen=True)
class Outcome:
    """What γ and H give: rounds until the curve is below the aim (with a fraction), inf if never."""

    rounds: float
    plateau: float
    variance_part: float


@dataclass(frozen=True)
class Model:
    """The predictor on a problem, or on a sample of its clients whose noise counts `noise_scale` times."""

    base: Setting
    smallest: float  # curvature of any client in any direction
    largest: float
    noise_scale: float

    @classmethod
    def of(cls, problem: Glm, batches: Batches, *, noise_scale: float = 1.0) -> "Model":
        """Everything that does not depend on γ and H."""
        base = setting(problem, Scaffold(1e-6, 1), batches)
        curvatures = np.linalg.eigvalsh(problem.client_hessians(base.optimum))
        coarse = replace(base, tolerance=COARSE, settled=SETTLED)
        return cls(coarse, float(curvatures.min()), float(curvatures.max()), noise_scale)

    def curve(self, gamma: float, H: int, rounds: int) -> tuple[Array, float, float]:
        """Predicted squared errors of rounds 0 to `rounds`, the plateau, and its variance part."""
        s = replace(self.base, gamma=gamma, H=H, steps=steps(gamma, H, self.smallest, self.largest, STEPS))
        state = settle(s)
        variance = self.noise_scale * float(np.trace(state.cov_theta))
        with np.errstate(over="ignore", invalid="ignore"):
            squares, variances = curve_parts(s, state, rounds)
        if not np.isfinite(squares).all():
            raise InvalidInput("the mean diverges on its way")
        return squares + self.noise_scale * variances, variance + float(state.bias @ state.bias), variance

    def outcome(self, gamma: float, H: int, aim: float, most_rounds: int) -> Outcome:
        """Rounds to the aim, by curves of doubling length."""
        rounds = min(FIRST_ROUNDS, most_rounds)
        while True:
            try:
                curve, plateau, variance = self.curve(gamma, H, rounds)
            except InvalidInput:  # it does not contract
                return Outcome(math.inf, math.inf, math.inf)
            below = np.flatnonzero(curve <= aim)
            if below.size:
                return Outcome(_crossing(curve, int(below[0]), aim), plateau, variance)
            if rounds == most_rounds or plateau >= aim:
                return Outcome(math.inf, plateau, variance)
            rounds = min(4 * rounds, most_rounds)


def _crossing(curve: Array, first: int, aim: float) -> float:
    """Where the curve meets the aim, on a straight line in log scale between two rounds."""
    if first == 0:
        return 0.0
    before, after = math.log(curve[first - 1]), math.log(max(curve[first], 1e-300))
    return first - 1 + (before - math.log(aim)) / (before - after)


@dataclass(frozen=True)
class Found:
    """The cheapest way to the target that the search found."""

    step_size: float
    local_steps: int
    rounds: int
    predicted_mse: float
    plateau: float
    variance_part: float


@one_blas_thread
def sharp(
    problem: Glm,
    batches: Batches,
    *,
    target: float,
    most_local_steps: int,
    most_rounds: int,
    round_cost: float,
    gradient_cost: float,
    advance: Callable[[int, int], None] = lambda done, total: None,
) -> Found:
    """γ, H, T with the least T (round_cost + H gradient_cost) whose predicted error is at most the target.

    Raises
    ------
    InvalidInput
        If nothing within the limits reaches the target; says which limit binds.
    """
    aim = AIM * target
    model = _sampled(problem, batches)
    start = float(model.base.optimum @ model.base.optimum)
    if start <= target:
        raise InvalidInput(
            f"θ = 0 is already within target_mse={target:g} of the optimum ({start:.3g}): nothing to run"
        )
    grid = [H for H in (4**k for k in range(20)) if most_local_steps > H] + [most_local_steps]

    def cost(rounds: float, H: int) -> float:
        return rounds * (round_cost + H * gradient_cost)  # a fraction of a round is fewer local steps in it

    best: tuple[float, int, float, float] | None = None  # cost, H, γ, rounds
    rising = 0
    for k, H in enumerate(reversed(grid)):  # long rounds first: their curves are the shortest
        gamma, rounds = best_step_size(model, H, aim, most_rounds)
        advance(k + 1, len(grid) + 1)
        if math.isinf(rounds):
            continue
        now = cost(rounds, H)
        if best is None or now < best[0]:
            best, rising = (now, H, gamma, rounds), 0
        else:
            rising += 1
            if rising == 2:
                break
    if best is None:
        raise _out_of_reach(target, most_local_steps, most_rounds)
    found = _polished(problem, batches, model, aim, best[1], best[2], max(1, math.ceil(best[3])), most_rounds)
    advance(len(grid) + 1, len(grid) + 1)
    return found


def best_step_size(
    model: Model, H: int, aim: float, most_rounds: int, guess: float | None = None
) -> tuple[float, float]:
    """(γ, T) with the fewest rounds for H local steps, near the guess if there is one; T = inf if no γ will do."""

    @cache
    def rounds(log_gamma: float) -> float:
        return model.outcome(math.exp(log_gamma), H, aim, most_rounds).rounds

    top = math.log(_largest_useful(model, H, aim) if guess is None else 1.6 * guess)
    low, high = top - math.log(20.0 if guess is None else 2.5), top
    a, b = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
    for _ in range(GOLDEN_STEPS if guess is None else GOLDEN_STEPS - 4):
        if rounds(a) <= rounds(b):
            high, b = b, a
            a = high - GOLDEN * (high - low)
        else:
            low, a = a, b
            b = low + GOLDEN * (high - low)
    chosen = min((a, b), key=rounds)
    return math.exp(chosen), rounds(chosen)


def _largest_useful(model: Model, H: int, aim: float) -> float:
    """About the largest γ whose plateau is below the aim: plateaus are nearly linear in γ."""
    gamma = 1.0 / model.largest
    for _ in range(40):
        plateau = model.outcome(gamma, H, 0.0, 1).plateau
        if plateau <= aim:
            return gamma
        gamma *= max(0.1, min(0.7, aim / plateau)) if math.isfinite(plateau) else 0.5
    return gamma


def _sampled(problem: Glm, batches: Batches) -> Model:
    """The predictor on evenly spaced clients, with the noise of the mean as with all of them."""
    if problem.n_clients <= 2 * SAMPLE:
        return Model.of(problem, batches)
    chosen = np.linspace(0, problem.n_clients - 1, SAMPLE).round().astype(np.int64)
    sample = problem.subset(chosen)
    return Model.of(sample, batches, noise_scale=_spread(problem) / _spread(sample))


def _spread(problem: Glm) -> float:
    """Σ w_c²: the variance of a weighted mean of independent terms of variance one."""
    return float(problem.weights @ problem.weights)


def _polished(
    problem: Glm, batches: Batches, model: Model, aim: float, H: int, gamma: float, T: int, most_rounds: int
) -> Found:
    """The least H that reaches the aim in T rounds: by halving on the sample, then by secants on all clients."""
    low, high, step = H // 4, H, gamma
    while high - low > max(1, H // 32):
        middle = (low + high) // 2
        there, rounds = best_step_size(model, middle, aim, most_rounds, step) if middle else (step, math.inf)
        low, high, step = (low, middle, there) if rounds <= T else (middle, high, step)
    whole = model if model.base.problem is problem else Model.of(problem, batches)
    H, found = high, []
    for _ in range(TRIES):
        curve, plateau, variance = whole.curve(step, H, T)
        found.append(Found(step, H, T, float(curve[T]), plateau, variance))
        if CLOSE * aim <= curve[T] <= aim:
            break
        if plateau > 0.98 * aim:  # noise alone: smaller steps, as many more of them, and one more round
            ratio = max(0.5, 0.9 * aim / plateau)
            step, H, T = step * ratio, math.ceil(H / ratio), min(T + 1, most_rounds)
        else:
            other = math.ceil(1.2 * H) if curve[T] > aim else int(0.8 * H)
            if other == 0:
                break
            slope = math.log(model.curve(step, other, T)[0][T] / model.curve(step, H, T)[0][T]) / (other - H)
            wanted = H + math.log(0.95 * aim / curve[T]) / min(slope, -1e-9)
            H = max(1, min(2 * H, max(H // 2, math.ceil(wanted))))
    fine = [one for one in found if one.predicted_mse <= aim * FINE]
    if not fine:
        raise InvalidInput("no plan found that holds for all clients; ask for a larger target")
    return max(fine, key=lambda one: one.predicted_mse)


def _out_of_reach(target: float, most_local_steps: int, most_rounds: int) -> InvalidInput:
    """The refusal when no step size reaches the aim within the limits, which it names."""
    steps_in_all = most_local_steps * most_rounds
    return InvalidInput(
        f"target_mse={target:g} is out of reach: {most_rounds} rounds of at most {most_local_steps} local steps "
        f"({steps_in_all:,} gradients per client) are too few for a step size whose noise stays below it; allow "
        f"more rounds or local steps, a larger batch or a larger target"
    )
