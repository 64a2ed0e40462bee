"""The search behind plans: look at settings by short simulations, move by factors, verify the best once.

`descend` halves and doubles settings, then takes smaller factors, for as long as that helps. `Request` values
settings that are to reach a target, `PrivateSearch` settings that are to spend a budget; both verify the best.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from fedscaffold.core.errors import Diverged, NoPlateau, OutOfReach
from fedscaffold.core.privacy import RecordLevel
from fedscaffold.core.protocols import Method
from fedscaffold.core.random.stream import Batches
from fedscaffold.core.types import Array
from fedscaffold.methods import Scaffold
from fedscaffold.planning.measured import ErrorCurve, Meter, Subject, measured_curve
from fedscaffold.privacy.accounting import noise_for
from fedscaffold.problems import Logistic, Ridge
from fedscaffold.theory.exact.law import ExactLaw, exact_law, is_quick

AIM = 0.93  # of the target: errors of a few percent in what is measured do not miss it then
WORK = 2e5  # local steps of a look, a hundredth of a second; verifying takes up to fifty times as many
LOOKS = 100.0  # times WORK for all looks together: with dear rounds, the proposal has to do
ACCURACY = 0.04  # relative standard error of a verified error
SAMPLE = 4000  # records that private searches look at: errors differ by percents from errors of all records
Make = Callable[[float, int], Method]  # γ, H → the method with these settings
Settings = tuple[float, ...]
Value = tuple[float, float]  # compared as tuples


def descend(
    ask: Callable[[Settings], Value], start: Settings, moves: Sequence[Settings], *, factors: Sequence[float],
    most: int, gain: float = 0.98,
) -> Settings:  # fmt: skip
    """Return the best settings that moves by factors lead to: every setting s becomes s · factor^move.

    The first factor is taken as long as it helps, then the second, ..., and at most `most` settings are asked
    for. The second number of a value must fall to a share `gain` of itself, as values are noisy.
    """
    known: dict[Settings, Value] = {}

    def value(at: Settings) -> Value:
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


class Outcome(NamedTuple):
    """Settings, the rounds until the aim (None if it was not reached), their cost, and the lowest error."""

    gamma: float
    H: int
    rounds: int | None = None
    cost: float = math.inf
    error: float = math.inf

    @property
    def value(self) -> Value:
        """Sort key: the cost if the aim is reached, otherwise the error."""
        return (1.0, self.error) if self.rounds is None else (0.0, self.cost)


class Verified(NamedTuple):
    """A method with its precise error curve, and the exact law that the curve is from, if there is one."""

    method: Method
    curve: ErrorCurve
    law: ExactLaw | None = None


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

    @property
    def aim(self) -> float:
        """The error to reach in predictions."""
        return AIM * self.target

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

    def cheapest(self, make: Make, begin: Outcome, most_cost: float, *, averaged: bool) -> Outcome:
        """Return the cheapest of the settings around others, as far as short simulations say."""
        assert begin.rounds is not None
        seen: dict[tuple[float, int], Outcome] = {}
        length, spent = begin.rounds * begin.gamma * begin.H, 0.0

        def ask(at: Settings) -> Value:
            nonlocal spent
            gamma, H = at[0], int(np.clip(round(at[1]), 1, self.most_local_steps))
            if (gamma, H) not in seen:
                if spent > LOOKS * WORK:
                    return 2.0, math.inf
                limit, guess = min([most_cost, *(one.cost for one in seen.values())]), length / (gamma * H)
                seen[gamma, H], work = self._look(Outcome(gamma, H), make, guess, limit, averaged=averaged)
                spent += work
            return seen[gamma, H].value

        moves = ((1.0, 0.0), (0.0, 1.0), (0.0, -1.0), (-1.0, 0.0), (-1.0, 1.0), (1.0, -1.0))
        alone = math.isinf(most_cost)  # other methods begin at Scaffold's plan, and need fewer looks
        descend(
            ask, (begin.gamma, float(begin.H)), moves, factors=(2.0, 1.4, 1.15) if alone else (2.0, 1.4),
            most=24 if alone else 10,
        )  # fmt: skip
        return min(seen.values(), key=lambda one: one.value)

    def _look(
        self, at: Outcome, make: Make, guess: float, most_cost: float, *, averaged: bool
    ) -> tuple[Outcome, float]:
        """Run a method until its mean error is at the aim, and return the work; `guess` sets the repetitions."""
        method = make(at.gamma, at.H)
        each, subject = self.cost(method), Subject(self.problem, method, self.batches, self.optimum)
        most = int(min(self.most_rounds, most_cost / each))
        if most < 1:
            return at, 0.0
        R = subject.repetitions(WORK / max(1.0, min(guess, most)), 4, 400)
        slow = max(3.0 * guess + 8.0, 10.0 * WORK / (R * subject.work))  # rounds of settings that are far too slow
        most = int(min(most, slow))
        meter, smooth, sums = Meter(self.optimum, averaged=averaged), [math.inf], [0.0]

        def look(round: int, theta: Array) -> bool:
            meter.add(round, theta)
            if round == 0:
                return False
            width = 1 if averaged else 1 + round // 8  # means over rounds, as repetitions are few
            sums.append(sums[-1] + meter.error(round))
            smooth.append((sums[round] - sums[round - width]) / width)
            late = round >= max(16.0, 0.5 * guess) and round & (round - 1) == 0
            stuck = late and smooth[round] > 0.9 * smooth[round // 2]
            return stuck or smooth[round] <= self.aim

        try:
            subject.follow(look, rounds=most, repetitions=R)
        except Diverged:
            return at, len(smooth) * R * subject.work
        T, error = len(smooth) - 1, min(smooth)
        if error <= self.aim:
            at = at._replace(rounds=T, cost=T * each)
        return at._replace(error=error), T * R * subject.work

    def settled(self, make: Make, best: Outcome, *, averaged: bool) -> Verified:
        """Verify settings, and return their rounds up to the first at the aim; raise OutOfReach if there is none.

        If the aim is not reached after all, γ is made smaller, or more rounds are looked at. Of step sizes that
        reach it in as many rounds, small ones are safer.
        """
        assert best.rounds is not None
        gamma, most, exact = best.gamma, math.ceil(1.3 * best.rounds) + 1, not averaged
        for _ in range(8):
            most, lowest = min(self.most_rounds, most), math.inf
            found = self._verified(make(gamma, best.H), most, averaged=averaged, exact=exact)
            if found is not None:
                exact, T = found.law is not None, found.curve.first(self.aim, self.target)
                if T is not None:
                    break
                if found.curve.falls(self.aim) and most < self.most_rounds:
                    most = math.ceil(1.5 * most)
                    continue
                lowest = float(found.curve.errors.min())
            factor = float(np.clip(0.9 * self.aim / lowest, 0.4, 0.8))  # noise grows as γ does
            gamma, most = factor * gamma, math.ceil(most / factor)
        else:
            raise OutOfReach(
                f"a squared error of {self.target:g} is out of reach within {self.most_rounds:,} rounds"
            )
        factor = 0.8
        while factor < 0.96 and found.curve.errors[T] < 0.6 * self.target and found.curve.is_precise(T):
            slower = self._verified(make(factor * gamma, best.H), T, averaged=averaged, exact=exact)
            if slower is None or slower.curve.first(self.aim, self.target) is None:
                factor = math.sqrt(factor)
            else:
                found, gamma = slower, factor * gamma
        return found._replace(curve=found.curve.until(T))

    def _verified(self, method: Method, rounds: int, *, averaged: bool, exact: bool) -> Verified | None:
        """Return a precise curve, the exact one if it is quick, or the mean of runs; None if they diverge."""
        try:
            if exact and is_quick(self.problem, method, self.batches, rounds):
                law = exact_law(self.problem, method, self.batches, rounds=rounds)
                assert law.curve is not None
                return Verified(method, ErrorCurve(law.curve, np.zeros_like(law.curve)), law)
        except NoPlateau:  # a few rounds may still reach the target
            pass
        subject = Subject(self.problem, method, self.batches, self.optimum)

        def enough(curve: ErrorCurve, repetitions: int) -> bool:
            T = curve.first(self.aim, self.target)
            at = 1 + int(curve.errors[1:].argmin()) if T is None else T
            most = 10 * WORK if T is None else 50 * WORK
            return (
                bool(curve.spread[at] <= ACCURACY * curve.errors[at]) or repetitions * rounds * subject.work > most
            )

        try:  # fewer than eight repetitions may agree by chance
            curve = measured_curve(subject, rounds, work=8 * WORK, enough=enough, averaged=averaged, least=8)
        except Diverged:
            return None
        return Verified(method, curve)


@dataclass(frozen=True, eq=False)
class PrivateSearch:
    """Reach the least error that a privacy budget allows: settings are a clip, γ, H and T of Scaffold.

    Every local step spends budget, so the noise grows with the number of steps.
    """

    problem: Any
    batches: Batches
    delta: float
    most: tuple[int, int]  # H and T
    optimum: Array
    noises: dict[tuple[float, int], float] = field(default_factory=dict)

    @cached_property
    def few(self) -> tuple[Any, float, Array]:
        """The problem with about SAMPLE evenly spaced records, their share of all, and their θ*."""
        problem, make = self.problem, {"ridge": Ridge, "logistic": Logistic}.get(self.problem.kind)
        share = SAMPLE / int(problem.sizes.sum())
        if share > 0.7 or make is None:
            return problem, 1.0, self.optimum
        rows = [
            begin + np.linspace(0, size - 1, max(2, round(share * size))).round().astype(np.int64)
            for begin, size in zip(problem.offsets[:-1].tolist(), problem.sizes.tolist(), strict=True)
        ]
        few = make(
            [problem.x[own] for own in rows], [problem.y[own] for own in rows], l2=problem.l2,
            weights=problem.weights, n_unpenalised=int((problem.penalty == 0.0).sum()) if problem.l2 else 0,
        )  # fmt: skip
        return few, share, few.optimum()

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

    def start(self) -> Settings:
        """Return the median norm of the records' gradients at θ = 0, 1/L, one local step and eight rounds."""
        few = self.few[0]
        norms = np.abs(few.d1(np.zeros(len(few.y)), few.y)) * np.linalg.norm(few.x, axis=1)
        clip = float(np.median(norms)) or 1.0
        return clip, 1.0 / few.smoothness(Batches()), 1.0, float(min(8, self.most[1]))

    def best(self, epsilon: float, start: Settings) -> Settings:
        """Return the settings of the least error on the sampled records that factors lead to."""
        few, share, optimum = self.few

        def ask(at: Settings) -> Value:
            clip, H, T = at[0], *self.rounded(at)
            noise = self.about(epsilon, H * T) * (share if self.batches.size is None else 1.0)
            method, privacy = (
                Scaffold(step_size=at[1], local_steps=H),
                RecordLevel(clip=clip, noise_multiplier=noise),
            )
            subject, meter = Subject(few, method, self.batches, optimum, privacy), Meter(optimum, averaged=False)
            try:
                subject.follow(meter.add, rounds=T, repetitions=subject.repetitions(2.5 * WORK / T, 8, 128))
            except Diverged:
                return 0.0, math.inf
            return 0.0, meter.error(T)

        moves = (
            (0.0, 1.0, 0.0, 0.0), (0.0, -1.0, 0.0, 0.0), (1.0, 0.0, 0.0, 0.0), (-1.0, 0.0, 0.0, 0.0),
            (0.0, 0.0, 0.0, 1.0), (0.0, 0.0, 0.0, -1.0), (0.0, -1.0, 0.0, 1.0), (0.0, 1.0, 0.0, -1.0),
            (0.0, 0.0, 1.0, 0.0), (0.0, 0.0, -1.0, 0.0), (-1.0, 1.0, 0.0, 0.0),
        )  # fmt: skip
        return descend(ask, start, moves, factors=(2.0, 1.4, 1.15), most=90, gain=0.995)

    def rounded(self, at: Settings) -> tuple[int, int]:
        """Return H and T as a run takes them."""
        H, T = (int(np.clip(round(one), 1, most)) for one, most in zip(at[2:], self.most, strict=True))
        return H, T

    def verified(self, epsilon: float, at: Settings) -> tuple[Verified, RecordLevel]:
        """Return the curve on all records, with the noise that the steps need exactly."""
        H, T = self.rounded(at)
        method = Scaffold(step_size=at[1], local_steps=H)
        privacy = RecordLevel(clip=at[0], noise_multiplier=self.noise(epsilon, H * T))
        subject = Subject(self.problem, method, self.batches, self.optimum, privacy)

        def enough(curve: ErrorCurve, repetitions: int) -> bool:
            precise = bool((curve.spread <= 0.03 * curve.errors).all())
            return precise or repetitions * T * subject.work > 100 * WORK

        return Verified(method, measured_curve(subject, T, work=1e6, enough=enough)), privacy
