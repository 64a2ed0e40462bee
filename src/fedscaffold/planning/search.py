"""The search behind plans: look at settings by short simulations, move by factors, verify the best once.

`Request.look` runs a method until its mean error over a few repetitions is at the aim. `descend` halves and
doubles settings, then takes smaller factors, for as long as that helps. `Request.settle` measures the best
settings precisely, or takes their exact law if that is quick, and reads off the number of rounds. `PrivateSearch`
does the same with a clip and the noise that a privacy budget needs as two more coordinates.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from fedscaffold.core.errors import Diverged, InvalidInput, OutOfReach
from fedscaffold.core.privacy import RecordLevel
from fedscaffold.core.protocols import Method
from fedscaffold.core.random.stream import Batches
from fedscaffold.core.types import Array, IntArray
from fedscaffold.methods import Scaffold
from fedscaffold.planning.measured import SEED, Subject, measured_curve
from fedscaffold.planning.prediction import How
from fedscaffold.privacy.accounting import noise_for
from fedscaffold.problems import Logistic, Ridge
from fedscaffold.theory.exact.law import ExactLaw, exact_law, is_quick

AIM = 0.93  # of the target: errors of a few percent in what is measured do not miss it then
WORK = 4e5  # local steps of a look, a few hundredths of a second; verifying takes up to thirty times as many
ACCURACY = 0.04  # relative standard error of a verified error
SAMPLE = 4000  # records that private searches look at: errors differ by percents from errors of all records
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


class ErrorCurve(NamedTuple):
    """A precise error curve: errors of all rounds, standard errors, and the rounds that averages leave out."""

    method: Method
    errors: Array
    spread: Array
    after: list[int] | None = None
    law: ExactLaw | None = None  # with the plateau, if the curve is exact

    @property
    def how(self) -> How:
        """Whether the curve is exact or measured."""
        return "measured" if self.law is None else "exact"

    def first(self, aim: float) -> int | None:
        """Return the first round at an aim."""
        below = np.flatnonzero(self.errors[1:] <= aim)
        return int(below[0]) + 1 if below.size else None

    def until(self, T: int) -> "ErrorCurve":
        """Return the curve of a run of T rounds."""
        return self._replace(errors=self.errors[: T + 1], spread=self.spread[: T + 1])


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

    def curve(self, method: Method) -> ErrorCurve:
        """Return the mean errors of all rounds, each of its best tail."""
        R, best = self.repetitions, [int(one.argmin()) for one in self.sums]
        means = np.array([one[k] for one, k in zip(self.sums, best, strict=True)]) / R
        squares = np.array([one[k] for one, k in zip(self.squares, best, strict=True)]) / R
        spread = np.sqrt(np.maximum(squares - means**2, 0.0) / max(R - 1, 1))
        after = [int(SHARES[k] * t) for t, k in enumerate(best)] if self.averaged else None
        return ErrorCurve(method, means, spread, after)


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

    def settle(self, make: Make, best: Outcome, *, averaged: bool = False) -> ErrorCurve:
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
            most, falls = min(self.most_rounds, math.ceil(1.3 * rounds) + 1), False
            try:
                found = self.verified(make(gamma, best.H), most, averaged=averaged)
                T = found.first(AIM * self.target)
                if T is not None:
                    return self._no_less(make, best.H, found.until(T), averaged=averaged)
                falls = bool(found.errors[-1] < 0.9 * found.errors[most // 2])
            except Diverged:
                pass
            if falls and most < self.most_rounds:
                rounds *= 1.5
            else:
                gamma, rounds = 0.8 * gamma, 1.25 * rounds
        raise OutOfReach(f"a squared error of {self.target:g} is out of reach within {self.most_rounds:,} rounds")

    def _no_less(self, make: Make, H: int, found: ErrorCurve, *, averaged: bool) -> ErrorCurve:
        """Return the smallest of some step sizes that reach the aim in as many rounds: smaller ones are safer."""
        T = found.errors.size - 1
        while found.errors[-1] < 0.6 * self.target:
            slower = self.verified(make(0.8 * found.method.step_size, H), T, averaged=averaged)
            if slower.errors[T] > AIM * self.target:
                break
            found = slower
        return found

    def verified(self, method: Method, rounds: int, *, averaged: bool) -> ErrorCurve:
        """Return a precise curve: the exact one if it is quick, or the mean of as many repetitions as it takes."""
        if not averaged and is_quick(self.problem, method, self.batches):
            try:
                law = exact_law(self.problem, method, self.batches, rounds=rounds)
                assert law.curve is not None
                return ErrorCurve(method, law.curve, np.zeros_like(law.curve), None, law)
            except InvalidInput:  # without a plateau a few rounds may still reach the target
                pass
        subject, meter = self.subject(method), Meter(self.optimum, averaged=averaged)
        R = subject.repetitions(8 * WORK / rounds, 4, 1000) if subject.is_random() else 1
        while True:
            subject.follow(meter.add, rounds=rounds, repetitions=R, seed=SEED + 1 + meter.repetitions)
            found = meter.curve(method)
            T = found.first(AIM * self.target) or rounds
            spent = meter.repetitions * rounds * subject.work
            if found.spread[T] <= ACCURACY * found.errors[T] or spent > 30 * WORK:
                return found


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


@dataclass(frozen=True, eq=False)
class PrivateSearch:
    """Simulated errors of Scaffold with a clip, γ, H and T under privacy budgets of one problem.

    Every local step spends budget, so the noise grows with the number of steps.
    """

    problem: Any
    batches: Batches
    delta: float
    most: tuple[int, int]  # H and T
    optimum: Array
    noises: dict[tuple[float, int], float] = field(default_factory=dict)

    @cached_property
    def few(self) -> tuple[Any, float]:
        """The problem with some of its records, and their share of all."""
        return _sampled(self.problem)

    @cached_property
    def best_of_few(self) -> Array:
        """θ* of these records."""
        few = self.few[0]
        return self.optimum if few is self.problem else few.optimum()

    def noise(self, epsilon: float, steps: int) -> float:
        """Return the least noise multiplier for a budget; the client with the fewest records needs the most."""
        if (epsilon, steps) not in self.noises:
            self.noises[epsilon, steps] = noise_for(
                epsilon=epsilon, steps=steps, delta=self.delta, batch_size=self.batches.size,
                records=int(self.problem.sizes.min()), sampling=self.batches.sampling,
            )  # fmt: skip
        return self.noises[epsilon, steps]

    def about(self, epsilon: float, steps: int) -> float:
        """Return about the same; with batches interpolated between powers of four, as each takes long to find."""
        if self.batches.size is None:
            return self.noise(epsilon, steps)
        low, high = 4 ** math.floor(math.log(steps, 4)), 4 ** math.ceil(math.log(steps, 4))
        ends = [math.log(self.noise(epsilon, end)) for end in (low, high)]
        return math.exp(float(np.interp(math.log(steps), np.log([low, high]), ends)))

    def rounded(self, at: Settings) -> tuple[float, float, int, int]:
        """Return clip, γ, H and T as a run takes them."""
        H, T = (int(np.clip(round(one), 1, most)) for one, most in zip((at[2], at[3]), self.most, strict=True))
        return at[0], at[1], H, T

    def start(self) -> Settings:
        """Return the median norm of the records' gradients at θ = 0, 1/L, one local step and eight rounds."""
        few = self.few[0]
        norms = np.abs(few.d1(np.zeros(len(few.y)), few.y)) * np.linalg.norm(few.x, axis=1)
        clip = float(np.median(norms)) or 1.0
        return clip, 1.0 / few.smoothness(Batches()), 1.0, float(min(8, self.most[1]))

    def error(self, epsilon: float, at: Settings) -> float:
        """Return the mean error after the last round on the sampled records; infinite if runs diverge."""
        clip, gamma, H, T = self.rounded(at)
        few, share = self.few
        noise = self.about(epsilon, H * T) * (share if self.batches.size is None else 1.0)
        subject = Subject(
            few, Scaffold(step_size=gamma, local_steps=H), self.batches, self.best_of_few,
            RecordLevel(clip=clip, noise_multiplier=noise),
        )  # fmt: skip
        meter = Meter(self.best_of_few, averaged=False)
        try:
            R = subject.repetitions(2.5 * WORK / T, 8, 128)
            subject.follow(meter.add, rounds=T, repetitions=R)
        except Diverged:
            return math.inf
        return meter.error(T)

    def best(self, epsilon: float, start: Settings) -> Settings:
        """Return the settings of the least error that factors lead to."""
        moves = (
            (0.0, 1.0, 0.0, 0.0), (0.0, -1.0, 0.0, 0.0), (1.0, 0.0, 0.0, 0.0), (-1.0, 0.0, 0.0, 0.0),
            (0.0, 0.0, 0.0, 1.0), (0.0, 0.0, 0.0, -1.0), (0.0, -1.0, 0.0, 1.0), (0.0, 1.0, 0.0, -1.0),
            (0.0, 0.0, 1.0, 0.0), (0.0, 0.0, -1.0, 0.0), (-1.0, 1.0, 0.0, 0.0),
        )  # fmt: skip
        return descend(
            lambda at: (0.0, self.error(epsilon, at)), start, moves, factors=(2.0, 1.4, 1.15), most=90, gain=0.995
        )

    def verified(self, epsilon: float, at: Settings) -> tuple[ErrorCurve, RecordLevel]:
        """Return the curve on all records, with the noise that the steps need exactly."""
        clip, gamma, H, T = self.rounded(at)
        method = Scaffold(step_size=gamma, local_steps=H)
        privacy = RecordLevel(clip=clip, noise_multiplier=self.noise(epsilon, H * T))
        subject = Subject(self.problem, method, self.batches, self.optimum, privacy)
        curve, errors = measured_curve(subject, T, accuracy=0.03, seconds=3.0)
        return ErrorCurve(method, curve, errors), privacy


def _sampled(problem: Any) -> tuple[Any, float]:
    """Return the problem with about SAMPLE evenly spaced records, and their share of all."""
    total, make = int(problem.sizes.sum()), {"ridge": Ridge, "logistic": Logistic}.get(problem.kind)
    share = SAMPLE / total
    if share > 0.7 or make is None:
        return problem, 1.0
    rows: list[IntArray] = []
    for begin, size in zip(problem.offsets[:-1].tolist(), problem.sizes.tolist(), strict=True):
        rows.append(begin + np.linspace(0, size - 1, max(2, round(share * size))).round().astype(np.int64))
    few = make(
        [problem.x[own] for own in rows], [problem.y[own] for own in rows], l2=problem.l2, weights=problem.weights,
        n_unpenalised=int((problem.penalty == 0.0).sum()) if problem.l2 else 0,
    )  # fmt: skip
    return few, share
