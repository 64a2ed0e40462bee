"""The search behind plans: look at settings by short simulations, move by factors, verify the best once.

`Request.look` runs a method until its mean error over a few repetitions is at the aim. `descend` halves and
doubles settings, then takes smaller factors, for as long as that helps. `Request.settle` measures the best
settings precisely, or takes their exact law, and reads off the number of rounds.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fedscaffold.core.errors import Diverged, InvalidInput, OutOfReach
from fedscaffold.core.protocols import Method
from fedscaffold.core.random.stream import Batches
from fedscaffold.core.types import Array
from fedscaffold.planning.measured import SEED, Subject
from fedscaffold.planning.prediction import How
from fedscaffold.theory.exact import ExactLaw, exact_law, is_exact

AIM = 0.93  # of the target: errors of a few percent in what is measured do not miss it then
WORK = 1e6  # local steps of a look, about a tenth of a second; a verification takes up to twelve times as many
ACCURACY = 0.04  # relative standard error of a verified error
SHARES = (0.0, 0.1, 0.25, 0.5, 0.75)  # of the rounds, that an average of iterates may leave out
Make = Callable[[float, int], Method]  # γ, H → the method with these settings
Settings = tuple[float, ...]


class Outcome(NamedTuple):
    """Settings, the rounds until the aim (None if it was not reached), their cost, and the lowest error."""

    gamma: float
    H: int
    rounds: int | None
    cost: float
    error: float

    @property
    def rank(self) -> tuple[float, float]:
        """Sort key: the cost if the aim is reached, otherwise the error."""
        return (1.0, self.error) if self.rounds is None else (0.0, self.cost)


class SettledRun(NamedTuple):
    """A verified outcome: its curve up to the last round, and the rounds that an average leaves out."""

    method: Method
    curve: Array
    standard_error: float
    how: How
    after: int | None
    law: ExactLaw | None  # with the plateau, if the curve is exact

    @property
    def rounds(self) -> int:
        """Number of rounds."""
        return self.curve.size - 1


class Meter:
    """Mean squared errors by round over repetitions, of θ_t or of averages of θ_t with several tails."""

    def __init__(self, optimum: Array, *, averaged: bool) -> None:
        self.optimum, self.averaged, self.repetitions = optimum, averaged, 0
        self.sums: list[Array] = []  # over repetitions, of squared errors, one for each share that is left out
        self.squares: list[Array] = []  # of their squares
        self.totals: list[Array] = []  # of errors up to each round, for averages

    def add(self, round: int, theta: Array) -> bool:
        """Take in θ of every repetition after a round; False, as no error ends a run."""
        e = theta - self.optimum
        if round == 0:
            self.repetitions += len(e)
            self.totals = [np.zeros_like(e)]
        means = [e]
        if self.averaged and round > 0:
            self.totals.append(self.totals[-1] + e)
            tails = (int(share * round) for share in SHARES)
            means = [(self.totals[-1] - self.totals[after]) / (round - after) for after in tails]
        errors = np.stack([np.square(each).sum(axis=1) for each in means])
        if round == len(self.sums):
            self.sums.append(np.zeros(len(means)))
            self.squares.append(np.zeros(len(means)))
        self.sums[round] += errors.sum(axis=1)
        self.squares[round] += np.square(errors).sum(axis=1)
        return False

    def error(self, round: int) -> float:
        """Return the mean error after a round, of the best tail."""
        return float(self.sums[round].min()) / self.repetitions

    def curve(self) -> Array:
        """Return the mean errors of all rounds."""
        return np.array([self.error(t) for t in range(len(self.sums))])

    def standard_error(self, round: int) -> float:
        """Return the standard error of the error after a round; 0 for a single repetition."""
        k, R = int(self.sums[round].argmin()), self.repetitions
        mean = self.sums[round][k] / R
        return math.sqrt(max(self.squares[round][k] / R - mean**2, 0.0) / (R - 1)) if R > 1 else 0.0

    def after(self, round: int) -> int | None:
        """Return how many rounds the best tail leaves out; None for last iterates."""
        return int(SHARES[int(self.sums[round].argmin())] * round) if self.averaged else None


@dataclass(frozen=True, eq=False)
class Request:
    """Reach E‖θ_T − θ*‖² ≤ target from θ_0 = 0 at the least cost, within limits on H and T."""

    problem: Any
    batches: Batches
    optimum: Array  # θ*, (dim,)
    target: float
    most_local_steps: int
    most_rounds: int
    round_cost: float
    gradient_cost: float

    def gradients(self, method: Method) -> float:
        """Return a client's stochastic gradients in a round, on average; a full one counts as its batches."""
        N = self.problem.n_clients
        steps = float(method.local_step_counts(N, (np.arange(64) + 0.5) / 64).mean())
        if method.exchange in ("full", "own") and self.batches.size is not None:
            steps += float(self.problem.sizes.mean()) / self.batches.size
        elif method.exchange is not None:
            steps += 1.0
        return method.participants(N) / N * steps

    def cost(self, method: Method) -> float:
        """Return round_cost · vectors/2 + gradients · gradient_cost: the mean cost of a round to a client."""
        N = self.problem.n_clients
        vectors = method.participants(N) / N * method.vectors_per_round
        return 0.5 * vectors * self.round_cost + self.gradients(method) * self.gradient_cost

    def subject(self, method: Method) -> Subject:
        """Return the run of a method."""
        return Subject(self.problem, method, self.batches, self.optimum)

    def look(
        self, make: Make, gamma: float, H: int, *, rounds: float, most_cost: float, averaged: bool = False
    ) -> Outcome:
        """Run a method until its mean error is at the aim; `rounds` is a guess that sets the repetitions."""
        method = make(gamma, H)
        each, subject = self.cost(method), self.subject(method)
        most = int(min(self.most_rounds, most_cost / each))
        nothing = Outcome(gamma, H, None, math.inf, math.inf)
        if most < 1:
            return nothing
        R = subject.repetitions(WORK / max(1.0, min(rounds, most)), 4, 400)
        most = min(most, max(32, int(30 * WORK / (R * subject.work))))  # of settings that are far too slow
        meter, smooth = Meter(self.optimum, averaged=averaged), [math.inf]

        def look(round: int, theta: Array) -> bool:
            meter.add(round, theta)
            if round == 0:
                return False
            width = 1 if averaged else 1 + round // 8  # means over rounds, as repetitions are few
            smooth.append(float(np.mean([meter.error(t) for t in range(round - width + 1, round + 1)])))
            late = round >= max(16.0, 0.5 * rounds) and round & (round - 1) == 0
            stuck = late and smooth[round] > 0.9 * smooth[round // 2]
            return stuck or smooth[round] <= AIM * self.target

        try:
            subject.follow(look, rounds=most, repetitions=R)
        except Diverged:
            return nothing
        if smooth[-1] > AIM * self.target:
            return nothing._replace(error=min(smooth))
        T = len(smooth) - 1
        return Outcome(gamma, H, T, T * each, smooth[-1])

    def settle(self, make: Make, best: Outcome, *, averaged: bool = False) -> SettledRun:
        """Verify settings precisely, and return their curve up to the first round at the aim.

        If the aim is not reached after all, γ is made smaller, or more rounds are looked at.

        Raises
        ------
        OutOfReach
            If that does not help within the limits.
        """
        assert best.rounds is not None
        gamma, rounds = best.gamma, float(best.rounds)
        for _ in range(8):
            method, most = make(gamma, best.H), min(self.most_rounds, math.ceil(1.3 * rounds) + 1)
            falls = False
            try:
                found = self._verified(method, most, averaged=averaged)
                T = found.first(AIM * self.target)
                if T is not None:
                    return self._no_less(make, best.H, found.until(T), averaged=averaged)
                falls = bool(found.curve[-1] < 0.9 * found.curve[most // 2])
            except Diverged:
                pass
            if falls and most < self.most_rounds:
                rounds *= 1.5
            else:
                gamma, rounds = 0.8 * gamma, 1.25 * rounds
        raise OutOfReach(f"a squared error of {self.target:g} is out of reach within {self.most_rounds:,} rounds")

    def _no_less(self, make: Make, H: int, found: SettledRun, *, averaged: bool) -> SettledRun:
        """Return the smallest of some step sizes that reach the aim in as many rounds: smaller ones are safer."""
        T = found.rounds
        while found.curve[-1] < 0.6 * self.target:
            slower = self._verified(make(0.8 * found.method.step_size, H), T, averaged=averaged)
            if slower.curve[T] > AIM * self.target:
                break
            found = slower.until(T)
        return found

    def _verified(self, method: Method, rounds: int, *, averaged: bool) -> "Verified":
        """Return a precise curve: the exact one, or the mean of as many repetitions as it takes."""
        N = self.problem.n_clients
        plain = method.kind in ("scaffold", "fedavg") and method.participants(N) == N and not averaged
        if plain and is_exact(self.problem, method, self.batches):
            try:
                law = exact_law(self.problem, method, self.batches, rounds=rounds)
                assert law.curve is not None
                return Verified(method, law.curve, law)
            except InvalidInput:  # without a plateau a few rounds may still reach the target
                pass
        subject, meter = self.subject(method), Meter(self.optimum, averaged=averaged)
        R = subject.repetitions(3 * WORK / rounds, 4, 1000) if subject.is_random() else 1
        while True:
            subject.follow(meter.add, rounds=rounds, repetitions=R, seed=SEED + 1 + meter.repetitions)
            found = Verified(method, meter.curve(), meter)
            T = found.first(AIM * self.target) or rounds
            spent = meter.repetitions * rounds * subject.work
            if meter.standard_error(T) <= ACCURACY * found.curve[T] or spent > 12 * WORK:
                return found


class Verified(NamedTuple):
    """A precise curve of a method, exact or measured."""

    method: Method
    curve: Array
    source: Meter | ExactLaw

    def first(self, aim: float) -> int | None:
        """Return the first round at an aim."""
        below = np.flatnonzero(self.curve[1:] <= aim)
        return int(below[0]) + 1 if below.size else None

    def until(self, T: int) -> SettledRun:
        """Return the outcome of a run of T rounds."""
        curve, source = self.curve[: T + 1], self.source
        if isinstance(source, ExactLaw):
            return SettledRun(self.method, curve, 0.0, "exact", None, source)
        return SettledRun(self.method, curve, source.standard_error(T), "measured", source.after(T), None)


def descend(
    ask: Callable[[Settings], tuple[float, float]],
    start: Settings,
    moves: Sequence[Settings],
    *,
    factors: Sequence[float],
    most: int,
    gain: float = 0.98,
) -> Settings:
    """Return the best settings that moves by factors lead to: every setting s becomes s · factor^move.

    Parameters
    ----------
    ask
        Value of settings, compared as tuples; asked once for each.
    start, moves
        Where to begin, and exponents of the factor, one for each setting.
    factors
        First factor, second, ...; each as long as it helps.
    most
        How often to ask at most.
    gain
        The second number of a value must fall to this share of itself, as values are noisy.
    """
    known: dict[Settings, tuple[float, float]] = {}

    def value(at: Settings) -> tuple[float, float]:
        key = tuple(float(f"{one:.6g}") for one in at)
        if key not in known:
            known[key] = ask(at)
        return known[key]

    best, lowest = start, value(start)
    for factor in factors:
        ordered, failed = list(moves), 0
        while failed < len(ordered) and len(known) < most:
            move = ordered[0]
            tried = tuple(one * factor**exponent for one, exponent in zip(best, move, strict=True))
            found = value(tried)
            if found[0] < lowest[0] or (found[0] == lowest[0] and found[1] < gain * lowest[1]):
                best, lowest, failed = tried, found, 0
                opposite = tuple(-exponent for exponent in move)
                ordered.sort(key=lambda one: one == opposite)  # where it came from is looked at last
            else:
                failed += 1
                ordered.append(ordered.pop(0))
    return best
