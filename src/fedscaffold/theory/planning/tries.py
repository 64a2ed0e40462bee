"""Tries of the sharp predictor, each of which corrects the linear model that proposes the next."""

import math
from dataclasses import dataclass, field

import numpy as np

from fedscaffold.core.types import Array
from fedscaffold.theory.planning.curve_model import CurveModel
from fedscaffold.theory.planning.linear_model import Correction, LinearModel
from fedscaffold.theory.planning.request import PlanRequest
from fedscaffold.theory.planning.search import Guess, LinearSearch

LEAST = 0.6  # of the target: what falls below it could have cost less
PROPOSALS = 8  # of the linear model
CHEAPER = 0.98  # of the cost: what a proposal must promise
SMALLER = 0.75  # times a step size that failed: what is tried next
FADED = 0.05  # of the noise: a mean that is smaller says nothing about its pace
EXTENSIONS, STUCK = 4, 1e-3  # how often a curve is prolonged, and with which fall in a round it is not
APPROACHES, FIRST_ROUNDS = 12, 16  # tries where no proposal reaches the aim, and rounds of their curves at first
LUCKY = 0.2  # of the linear model's mean: less is where noise happens to pull the mean to θ*
FEW_ROUNDS, PROBES = 5, 8  # where saving a round is worth a try, and how many tries
DEAR_PROBES = 2  # tries for a round where each takes long
STRETCHES = ((1.4, 1.0), (1.0, 1.4), (1.4, 1.4), (1.0, 2.0))  # of γ and H


@dataclass(frozen=True, eq=False)
class Candidate:
    """γ and H, and the first round T in which the predicted error is below the aim."""

    gamma: float
    H: int
    T: int
    cost: float
    reached: float  # the predicted error after T rounds
    expected: bool  # whether the mean's part is about what the linear model says, and no lucky cancellation


@dataclass(eq=False)
class Tries:
    """Tries of the sharp predictor, of which the cheapest that reaches the aim is kept."""

    request: PlanRequest
    model: CurveModel
    linear: LinearModel
    aim: float
    best: Candidate | None = None
    correction: Correction = field(default_factory=Correction)
    failed: list[tuple[float, int]] = field(default_factory=list)  # γ and H that diverge, or rest above the aim
    tried: dict[tuple[float, int], Candidate | None] = field(default_factory=dict)

    def best_from(self, guess: Guess) -> Candidate | None:
        """The cheapest candidate that tries from a guess on lead to; None where nothing reaches the aim."""
        self._propose(guess)
        if self.best is None:
            self._approach(guess.gamma, guess.H)
        if self.best is not None:
            self._save_rounds()
            self._come_nearer()
        return self.best

    def linear_search(self) -> LinearSearch:
        """A search with the linear model as it is corrected so far."""
        return LinearSearch(self.linear, self.request, self.aim, self.correction, self.largest)

    def largest(self, H: int) -> float:
        """The largest γ to be tried with H local steps."""
        stable = math.inf if self.model.stability is None else self.model.stability.limit(H)
        return min([stable, *(SMALLER * gamma for gamma, steps in self.failed if steps < 2 * H < 4 * steps)])

    def ask(self, gamma: float, H: int, rounds: int) -> Candidate | None:
        """The candidate of γ and H, None where it does not reach the aim in about `rounds` or is too dear."""
        gamma = min(gamma, self.largest(H))
        key = (round(math.log(gamma), 3), H)
        if key not in self.tried:
            self.tried[key] = candidate = self._asked(gamma, H, max(rounds, 1))
            if candidate is not None and self._better(candidate):
                self.best = candidate
        return self.tried[key]

    def _asked(self, gamma: float, H: int, rounds: int) -> Candidate | None:
        most = self.request.most_rounds
        if self.best is not None:
            most = min(most, int(self.best.cost / self.request.cost(1, H)))
        T = min(rounds + 1 + rounds // 4, max(most, 1))
        last: tuple[Array, Array] | None = None
        for _ in range(EXTENSIONS):
            parts = last = self.model.parts(gamma, H, T)
            if parts is None:
                self.failed.append((gamma, H))
                return None
            curve = np.add(*parts)
            below = np.flatnonzero(curve[1:] <= self.aim)
            if below.size:
                t = int(below[0]) + 1
                self._learn(gamma, H, parts, t)
                expected = self.model.exact or self.correction.mean >= LUCKY
                return Candidate(gamma, H, t, self.request.cost(t, H), float(curve[t]), expected)
            pace = math.log(curve[-2] / curve[-1])
            if pace < STUCK:
                self.failed.append((gamma, H))
            if most <= T or pace < STUCK:
                break
            T = min(T + math.ceil(1.3 * math.log(curve[-1] / self.aim) / pace) + 1, 8 * T, most)
        assert last is not None
        self._learn(gamma, H, last, int(np.add(*last)[1:].argmin()) + 1)
        return None

    def _learn(self, gamma: float, H: int, parts: tuple[Array, Array], t: int) -> None:
        """Correct the linear model by what the sharp one says after t rounds."""
        linear = self.linear.parts(gamma, H, t)
        if linear is None:
            return
        mean, noise = linear
        square, variance = float(parts[0][t]), float(parts[1][t])
        factor = self.correction.mean
        if mean > FADED * noise:
            factor = min(max(square / max(mean, 1e-300), 1e-3), 1e3)
        else:
            variance += square  # a bias, which grows with γ as the noise does
        self.correction = Correction(factor, variance / noise if noise > 0.0 else 1.0, gamma)

    def _better(self, one: Candidate) -> bool:
        """Whether a candidate is to be preferred: cheaper, or as cheap and nearer to the aim."""
        if self.best is None:
            return True
        if self.best.expected and not one.expected:
            return False
        return (one.cost, -one.reached) < (self.best.cost, -self.best.reached)

    def _propose(self, guess: Guess) -> None:
        """Ask about proposals of the linear model, until they would no longer be cheaper."""
        for _ in range(PROPOSALS):
            known = len(self.tried)
            found = self.ask(guess.gamma, guess.H, math.ceil(min(guess.rounds, self.request.most_rounds)))
            lucky = found is not None and not found.expected and self.best is not None and self.best.expected
            if len(self.tried) == known or lucky:  # what was learnt of luck would lead back to what is known
                return
            search = self.linear_search()
            guess = search.around(guess)
            if math.isinf(guess.cost):
                guess = search.cheapest()
            if math.isinf(guess.cost) or (self.best is not None and guess.cost > CHEAPER * self.best.cost):
                return

    def _approach(self, gamma: float, H: int) -> None:
        """Lower γ, or raise H, until the aim is reached."""
        for _ in range(APPROACHES):
            if self.ask(gamma, H, FIRST_ROUNDS) is not None:
                return
            found = self.model.predict(gamma, H)
            if found is None:
                gamma *= 0.6
            elif found.variance + found.bias > 0.9 * self.aim:  # noise alone: smaller steps, as many more of them
                ratio = max(0.3, min(0.9, 0.85 * self.aim / (found.variance + found.bias)))
                gamma, H = gamma * ratio, min(math.ceil(H / ratio), self.request.most_local_steps)
            elif self.request.most_local_steps > H:
                H = min(2 * H, self.request.most_local_steps)
            else:
                gamma *= 1.25

    def _save_rounds(self) -> None:
        """Where there are few rounds, try with larger steps and more of them whether one can be saved."""
        left = PROBES
        while left > 0:
            assert self.best is not None
            before = self.best
            if not 1 < before.T <= FEW_ROUNDS:
                return
            for gamma, H in self._stretched(before)[:left]:
                left -= 1
                self.ask(gamma, H, before.T - 1)
                if self.best is not before:
                    break
            else:
                return

    def _stretched(self, one: Candidate) -> list[tuple[float, int]]:
        """Larger γ and H that might save a round; where a try takes long, the two that promise most."""
        found = [
            (larger * one.gamma, min(math.ceil(more * one.H), self.request.most_local_steps))
            for larger, more in STRETCHES
        ]
        found = [(gamma, H) for gamma, H in found if self.request.cost(one.T - 1, H) < one.cost]
        if self.model.exact:
            return found
        rounds = {
            each: self.linear.outcome(*each, self.aim, one.T, self.correction)[0] for each in dict.fromkeys(found)
        }
        promising = [each for each in rounds if rounds[each] < one.T - 0.5]
        return sorted(promising, key=lambda each: rounds[each])[:DEAR_PROBES]

    def _come_nearer(self) -> None:
        """Where the error falls far below the target, do with fewer local steps, or with smaller ones."""
        assert self.best is not None
        best, least = self.best, LEAST * self.request.target
        low, high = 0, best.H
        while self.best.reached < least and high - low > max(1, high // 16):
            middle = (low + high) // 2
            one = self.ask(best.gamma, middle, best.T)
            low, high = (low, middle) if one is not None and one.T <= best.T else (middle, high)
        best = self.best
        small, large = 0.1 * best.gamma, best.gamma
        while self.best.reached < least and large > 1.1 * small:
            between = math.sqrt(small * large)
            one = self.ask(between, best.H, best.T)
            small, large = (small, between) if one is not None and one.T <= best.T else (between, large)
