"""The predictor as the planner uses it: how many rounds a step size and local steps need to reach an aim."""

import math
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from fedscaffold.core.capabilities import SmoothProblem
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.random.batches import Batches
from fedscaffold.core.types import Array
from fedscaffold.methods import Scaffold
from fedscaffold.theory.prediction.curve import curve_parts
from fedscaffold.theory.prediction.local_steps import steps
from fedscaffold.theory.prediction.plateau import PlateauState, solve_stationary
from fedscaffold.theory.prediction.setting import SETTLED, STEPS, Setting, setting

COARSE = 1e-2  # of the interpolation
GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0
GOLDEN_STEPS = 7
FIRST_ROUNDS = 32


@dataclass(frozen=True, eq=False)
class CurveModel:
    """The predictor on a problem, or on a sample of its clients whose noise counts `noise_scale` times."""

    base: Setting
    smallest: float  # curvature of any client in any direction
    largest: float
    noise_scale: float

    @classmethod
    def of(
        cls, problem: SmoothProblem, batches: Batches, *, optimum: Array | None = None, noise_scale: float = 1.0
    ) -> "CurveModel":
        """The model of a problem: compute everything that does not depend on γ and H."""
        base = setting(problem, Scaffold(step_size=1e-6, local_steps=1), batches, optimum)
        curvatures = np.linalg.eigvalsh(problem.client_hessians(base.optimum))
        coarse = replace(base, tolerance=COARSE, settled=SETTLED)
        return cls(coarse, float(curvatures.min()), float(curvatures.max()), noise_scale)

    def settled(self, gamma: float, H: int) -> tuple[Setting, PlateauState]:
        """Setting and stationary law for the step size γ and H local steps."""
        s = replace(self.base, gamma=gamma, H=H, steps=steps(gamma, H, self.smallest, self.largest, STEPS))
        return s, solve_stationary(s)

    def curve(self, gamma: float, H: int, rounds: int) -> tuple[Array, float, float]:
        """Predicted squared errors of rounds 0 to `rounds`, the plateau, and its variance part."""
        return self._curve(*self.settled(gamma, H), rounds)

    def _curve(self, s: Setting, state: PlateauState, rounds: int) -> tuple[Array, float, float]:
        variance = self.noise_scale * float(np.trace(state.cov_theta))
        with np.errstate(over="ignore", invalid="ignore"):
            squares, variances = curve_parts(s, state, rounds)
        if not np.isfinite(squares).all():
            raise InvalidInput("the mean diverges on its way")
        return squares + self.noise_scale * variances, variance + float(state.bias @ state.bias), variance

    def outcome(self, gamma: float, H: int, aim: float, most_rounds: int) -> tuple[float, float]:
        """Rounds until the curve is below the aim, with a fraction, inf if it never is; and the plateau.

        By curves of growing length; where the rounds are more than `most_rounds`, they are extrapolated at the
        pace of the slowest direction.
        """
        rounds = min(FIRST_ROUNDS, most_rounds)
        try:
            s, state = self.settled(gamma, H)
            while True:
                curve, plateau, _ = self._curve(s, state, rounds)
                below = np.flatnonzero(curve <= aim)
                if below.size:
                    return _crossing(curve, int(below[0]), aim), plateau
                if plateau >= aim:
                    return math.inf, plateau
                if rounds == most_rounds:
                    radius = float(np.abs(np.linalg.eigvals(state.A)).max())
                    shrink = (curve[-1] - plateau) / (aim - plateau)
                    return rounds + math.log(shrink) / (-2.0 * math.log(radius)), plateau
                rounds = min(4 * rounds, most_rounds)
        except InvalidInput:  # it does not contract
            return math.inf, math.inf


def _crossing(curve: Array, first: int, aim: float) -> float:
    """Where the curve meets the aim, on a straight line in log scale between two rounds."""
    if first == 0:
        return 0.0
    before, after = math.log(curve[first - 1]), math.log(max(curve[first], 1e-300))
    return first - 1 + (before - math.log(aim)) / (before - after)


def best_step_size(
    model: CurveModel, H: int, aim: float, most_rounds: int, guess: float | None = None
) -> tuple[float, float]:
    """(γ, T) with the fewest rounds for H local steps, near a guess if there is one; T > most_rounds is rough."""

    @cache
    def rounds(log_gamma: float) -> float:
        return model.outcome(math.exp(log_gamma), H, aim, most_rounds)[0]

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


def _largest_useful(model: CurveModel, H: int, aim: float) -> float:
    """About the largest γ whose plateau is below the aim: plateaus are nearly linear in γ."""
    gamma = 1.0 / model.largest
    for _ in range(40):
        _, plateau = model.outcome(gamma, H, 0.0, 1)
        if plateau <= aim:
            return gamma
        gamma *= max(0.1, min(0.7, aim / plateau)) if math.isfinite(plateau) else 0.5
    return gamma
