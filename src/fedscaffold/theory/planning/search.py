"""Which step size and local steps cost least by the linear model, corrected by what is known of its errors."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from fedscaffold.theory.planning.linear_model import Correction, LinearModel
from fedscaffold.theory.planning.request import PlanRequest

GRID = 2.0 ** (1.0 / 6.0)  # step sizes are its powers, so that what the linear model says of one is asked once
HIGHEST = 600  # power of GRID
FAR, NEAR = (6, 3, 1), (1,)  # strides along the grid, without and with a neighbour's γ
MOST_STRIDES = 8  # of one length
COARSE_STEPS = 4  # ratio of neighbouring local steps in the first pass
REFINEMENTS = (2.0, math.sqrt(2.0), 2.0**0.25)
FEW_ROUNDS = 12  # up to here a whole round more or less matters
SECANTS = 4


@dataclass(frozen=True)
class Guess:
    """γ and H, the rounds that they need with a fraction, and what whole rounds cost."""

    gamma: float
    H: int
    rounds: float
    cost: float


class LinearSearch:
    """A search with the linear model and a correction; what was asked once is not asked again.

    Parameters
    ----------
    model
        The linear model of the problem.
    request
        Limits and prices.
    aim
        The error to reach.
    correction
        Factors of the model's two parts; none by default.
    largest
        The largest γ for a number of local steps; none by default.
    """

    def __init__(
        self,
        model: LinearModel,
        request: PlanRequest,
        aim: float,
        correction: Correction | None = None,
        largest: Callable[[int], float] = lambda H: math.inf,
    ) -> None:
        self.model, self.request, self.aim = model, request, aim
        self.correction, self.largest = correction, largest
        self.found: dict[int, Guess] = {}

    def outcome(self, gamma: float, H: int, aim: float, most_rounds: int) -> tuple[float, float]:
        """Rounds and plateau, as of the linear model."""
        return self.model.outcome(gamma, H, aim, most_rounds, self.correction)

    def at(self, H: int) -> Guess:
        """The γ with the fewest rounds for H local steps."""
        if H not in self.found:
            near = min(self.found, key=lambda other: abs(math.log(other / H)), default=None)
            gamma, rounds = self.best_step_size(H, None if near is None else self.found[near])
            most = self.request.most_rounds
            cost = self.request.cost(max(1, math.ceil(rounds)), H) if rounds <= most else math.inf
            self.found[H] = Guess(gamma, H, rounds, cost)
        return self.found[H]

    def best_step_size(self, H: int, near: Guess | None = None) -> tuple[float, float]:
        """(γ, T) with the fewest rounds; T above the limit is rough. From the γ of nearby local steps if given."""
        highest, most = place(self.largest(H)), self.most_rounds(H)

        @cache
        def rounds(k: int) -> float:
            return self.outcome(GRID**k, H, self.aim, most)[0] if k <= highest else math.inf

        strides: tuple[int, ...] = FAR
        k = highest
        if near is not None and math.isfinite(near.rounds) and 0.4 < near.H / H < 2.5:
            k, strides = min(place(near.gamma * math.sqrt(near.H / H)), highest), NEAR
        if strides == FAR or math.isinf(rounds(k)):
            k, strides = self.useful(H, highest), FAR
        k = descend(rounds, k, strides)
        return GRID**k, rounds(k)

    def most_rounds(self, H: int) -> int:
        """Rounds of H local steps worth counting: with more they would cost more than the best guess so far."""
        cost = min((guess.cost for guess in self.found.values()), default=math.inf)
        return int(min(self.request.most_rounds, 1.0 + cost / self.request.cost(1, H)))

    def useful(self, H: int, highest: int) -> int:
        """A place near the best one: the highest whose plateau is below the aim, or a little lower."""
        k = min(place(1.0 / self.model.largest), highest)
        for _ in range(40):
            rounds, plateau = self.outcome(GRID**k, H, self.aim, 1)
            if plateau <= self.aim or rounds <= 1.0:
                break
            factor = max(0.1, min(0.7, self.aim / plateau)) if math.isfinite(plateau) else 0.5
            k += min(-1, round(math.log(factor) / math.log(GRID)))
        return k

    def cheapest(self, advance: Callable[[int, int], None] = lambda done, of: None) -> Guess:
        """The guess of the least cost within the limits."""
        longest = self.request.most_local_steps
        grid = [H for H in (COARSE_STEPS**k for k in range(20)) if longest > H] + [longest]
        costs: list[float] = []
        for k, H in enumerate(reversed(grid)):  # long rounds first: their curves are the shortest
            costs.append(self.at(H).cost)
            advance(k + 1, len(grid) + 1)
            if len(costs) > 2 and costs[-1] > costs[-2] > costs[-3]:
                break
        return self.refined(self.best())

    def around(self, guess: Guess) -> Guess:
        """The guess of the least cost near another, which another correction has led to."""
        for factor in (1.0, 2.0, 0.5):
            self.at(self.limited(factor * guess.H))
        return self.refined(self.best())

    def refined(self, best: Guess) -> Guess:
        """Neighbours of the best local steps ever closer, and those for which whole rounds are just enough."""
        for ratio in REFINEMENTS:
            for H in (best.H * ratio, best.H / ratio):
                self.at(self.limited(H))
            best = self.best()
        if best.rounds < FEW_ROUNDS:
            for T in {math.floor(best.rounds), math.ceil(best.rounds), math.ceil(best.rounds) + 1} - {0}:
                self.just_enough(best, T)
        return self.best()

    def just_enough(self, best: Guess, T: int) -> None:
        """Look for the fewest local steps with which T rounds are enough: between those that are and are not."""
        guess, low, high = best, 0, self.request.most_local_steps + 1
        for _ in range(SECANTS):
            if guess.rounds <= T:
                high = min(high, guess.H)
            else:
                low = max(low, guess.H)
            ratio = max(0.25, min(4.0, max(guess.rounds, 0.25) / T))
            H = math.ceil(guess.H * ratio**1.2) if math.isfinite(guess.rounds) else 2 * guess.H
            H = min(max(H, low + 1), high - 1)
            if not low < H < high or self.request.cost(T, H) >= 1.5 * best.cost:
                return
            guess = self.at(H)

    def best(self) -> Guess:
        """The cheapest guess so far, and of equally cheap ones the one that needs the fewest rounds."""
        return min(self.found.values(), key=lambda guess: (guess.cost, guess.rounds))

    def limited(self, H: float) -> int:
        """A whole number of local steps within the limits."""
        return max(1, min(self.request.most_local_steps, round(H)))


def place(gamma: float) -> int:
    """Which place on the grid of step sizes is the highest up to γ."""
    return math.floor(math.log(gamma) / math.log(GRID) + 1e-9) if math.isfinite(gamma) else HIGHEST


def descend(function: Callable[[int], float], k: int, strides: tuple[int, ...]) -> int:
    """Where a function of whole numbers is least: ever smaller strides downhill from k; down where it is inf."""
    for stride in strides:
        for _ in range(MOST_STRIDES):
            lower, upper = k - stride, k + stride
            if math.isinf(function(k)) or function(lower) < function(k):
                k = lower
            elif function(upper) < function(k):
                k = upper
            else:
                break
    return k
