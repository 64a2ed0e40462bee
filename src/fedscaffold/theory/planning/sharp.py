"""Which step size, local steps and rounds reach a target at the least cost, by the sharp predictor.

For H local steps, the number of rounds T(γ) that the curve needs is large for small γ (slow) and for large γ
(the plateau comes near the target). With the linear model, which is fast, a search over log γ finds the best, a
search over H = 1, 4, 16, ... the best H. From there on the sharp predictor decides: it says how many rounds are
needed, whether larger or smaller γ and H cost less, and whether a round can be saved.
"""

import math
from dataclasses import dataclass, field

import numpy as np

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.progress import Advance
from fedscaffold.core.threads import one_blas_thread
from fedscaffold.theory.planning.curve_model import CurveModel
from fedscaffold.theory.planning.linear_model import LinearModel
from fedscaffold.theory.planning.out_of_reach import out_of_reach
from fedscaffold.theory.planning.plan import Plan
from fedscaffold.theory.planning.request import PlanRequest
from fedscaffold.theory.planning.search import best_step_size
from fedscaffold.theory.supported import is_quadratic

AIM = 0.93  # of the target, so that a few percent of error in the prediction do no harm
LEAST = 0.6  # of the target: what falls below it could have cost less
TRIES = 12  # predictions until the aim is reached
MOVES = 6  # further predictions, to lower the cost
FEW_ROUNDS = 5  # where saving one is worth a try
FIRST_ROUNDS = 16
NEARLY = 0.3  # of a round: what the linear model may be wrong by


@dataclass(frozen=True, eq=False)
class Candidate:
    """γ and H, and the first round T in which the predicted error is below the aim."""

    gamma: float
    H: int
    T: int
    cost: float
    reached: float  # the predicted error after T rounds


@one_blas_thread
def sharp_plan(request: PlanRequest, advance: Advance) -> Plan:
    """γ, H, T with the least cost whose predicted error is at most the target; `advance` reports the progress.

    Raises
    ------
    InvalidInput
        If nothing within the limits reaches the target; says which limit binds.
    """
    start = float(request.optimum @ request.optimum)
    if start <= request.target:
        raise InvalidInput(
            f"θ = 0 is already within a squared error of {request.target:g} of the optimum ({start:.3g}): there "
            "is nothing to run"
        )
    aim, longest, most_rounds = AIM * request.target, request.most_local_steps, request.most_rounds
    linear = LinearModel.of(request.problem, request.batches, request.optimum)
    grid = [H for H in (4**k for k in range(20)) if longest > H] + [longest]
    guesses: list[tuple[float, float, int]] = []  # cost, γ, H
    for k, H in enumerate(reversed(grid)):  # long rounds first: their curves are the shortest
        gamma, rounds = best_step_size(linear, H, aim, most_rounds)
        guesses.append((request.cost(max(1.0, rounds), H) if rounds <= most_rounds else math.inf, gamma, H))
        advance(k + 1, len(grid) + 1)
        if len(guesses) > 2 and guesses[-1][0] > guesses[-2][0] > guesses[-3][0]:
            break
    search = Search(request, CurveModel.of(request), linear, aim)
    for _, gamma, H in sorted(guesses)[:3]:
        if search.approach(gamma, H):
            break
    if search.best is None:
        raise out_of_reach(linear, request.target, aim, longest, most_rounds)
    search.improve()
    advance(len(grid) + 1, len(grid) + 1)
    return search.plan()


@dataclass(eq=False)
class Search:
    """Tries of the sharp predictor, of which the cheapest that reaches the aim is kept."""

    request: PlanRequest
    model: CurveModel
    linear: LinearModel
    aim: float
    best: Candidate | None = None
    tried: dict[tuple[float, int], Candidate | None] = field(default_factory=dict)

    def ask(self, gamma: float, H: int, rounds: int) -> Candidate | None:
        """The candidate of γ and H, None where it does not reach the aim in `rounds`, or would be too dear."""
        key = (round(math.log(gamma), 6), H)
        if key in self.tried:
            return self.tried[key]
        self.tried[key] = candidate = self._asked(gamma, H, rounds)
        if candidate is not None and self._better(candidate):
            self.best = candidate
        return candidate

    def _asked(self, gamma: float, H: int, rounds: int) -> Candidate | None:
        T, most = min(max(rounds, 1), self.request.most_rounds), self.request.most_rounds
        if self.best is not None:
            most = min(most, int(self.best.cost / self.request.cost(1, H)))
        while True:
            curve = self.model.curve(gamma, H, T)
            if curve is None:
                return None
            below = np.flatnonzero(curve[1:] <= self.aim)
            if below.size:
                first = int(below[0]) + 1
                return Candidate(gamma, H, first, self.request.cost(first, H), float(curve[first]))
            stuck = T > 4 and curve[-1] > 0.999 * curve[-2]
            if most <= T or stuck:
                return None
            T = min(4 * T, most)

    def _better(self, one: Candidate) -> bool:
        """Whether a candidate is to be preferred: cheaper, or as cheap and nearer to the aim."""
        if self.best is None:
            return True
        return (one.cost, -one.reached) < (self.best.cost, -self.best.reached)

    def approach(self, gamma: float, H: int) -> bool:
        """Lower γ, or raise H, until the aim is reached; whether it is."""
        for _ in range(TRIES):
            if self.ask(gamma, H, FIRST_ROUNDS) is not None:
                return True
            found = self.model.predict(gamma, H)
            if found is None:
                gamma *= 0.6
            elif found.mse > 0.9 * self.aim:  # noise alone: smaller steps, as many more of them
                ratio = max(0.3, min(0.9, 0.85 * self.aim / found.mse))
                gamma, H = gamma * ratio, min(math.ceil(H / ratio), self.request.most_local_steps)
            elif self.request.most_local_steps > H:
                H = min(2 * H, self.request.most_local_steps)
            else:
                gamma *= 1.25
        return False

    def improve(self) -> None:
        """Lower the cost: fewer local steps, other step sizes, a round less."""
        for _ in range(MOVES):
            assert self.best is not None
            before = self.best
            if before.reached < LEAST * self.request.target:
                self._shorten()
            elif before.T <= FEW_ROUNDS:
                self._save_a_round()
            for factor, stretch in ((1.3, 1.0), (1.0, 0.8), (1.0, 1.25), (0.77, 1.0)):
                H = max(1, round(stretch * before.H))
                if self.request.most_local_steps >= H and (factor != 1.0 or H != before.H):
                    self.ask(factor * before.gamma, H, before.T + 1)
            if self.best is before:
                break
        assert self.best is not None
        if self.best.reached < LEAST * self.request.target:
            self._shorten()
        if self.best.reached < LEAST * self.request.target:
            self._soften()

    def _shorten(self) -> None:
        """The least H with which as many rounds reach the aim, by halving the interval."""
        assert self.best is not None
        best = self.best
        low, high = 0, best.H
        while high - low > max(1, high // 16):
            middle = (low + high) // 2
            one = self.ask(best.gamma, middle, best.T)
            low, high = (low, middle) if one is not None and one.T <= best.T else (middle, high)

    def _soften(self) -> None:
        """The smallest γ with which as many rounds reach the aim: steps no larger than they need to be."""
        assert self.best is not None
        best = self.best
        low, high = 0.1 * best.gamma, best.gamma
        while high > 1.1 * low and self.best.reached < LEAST * self.request.target:
            middle = math.sqrt(low * high)
            one = self.ask(middle, best.H, best.T)
            low, high = (low, middle) if one is not None and one.T <= best.T else (middle, high)

    def _save_a_round(self) -> None:
        """A round less with more local steps, where that is cheaper."""
        assert self.best is not None
        best, T = self.best, self.best.T - 1
        if T < 1:
            return
        limit = self.request.most_local_steps
        ladder = sorted({min(limit, math.ceil(best.H * grow)) for grow in (1.1, 1.3, 1.6, 2.2, 3.0, 5.0)})
        for H in ladder:
            if self.request.cost(T, H) >= best.cost:
                return
            gamma, rounds = best_step_size(self.linear, H, self.aim, best.T)
            if rounds > T + NEARLY:
                continue
            for trial in (gamma, best.gamma):
                one = self.ask(trial, H, T)
                if one is not None and one.T <= T:
                    return

    def plan(self) -> Plan:
        """The plan of the cheapest candidate."""
        best = self.best
        assert best is not None
        found = self.model.predict(best.gamma, best.H, best.T)
        if found is None or found.curve is None:
            raise InvalidInput("no plan found whose plateau exists; ask for a larger target")
        variance = found.mse_variance_part
        bias = 0.0 if is_quadratic(self.request.problem) else found.mse_bias_part
        useful = self.request.problem.n_clients * variance / bias if bias else math.inf
        return self.request.plan(
            "sharp",
            best.gamma,
            best.H,
            best.T,
            variance_part=variance,
            bias_part=bias,
            predicted_mse=float(found.curve[-1]),
            curve=found.curve,
            max_useful_clients=useful,
        )
