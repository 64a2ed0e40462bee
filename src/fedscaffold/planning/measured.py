"""Measure the plateau and the error curve of any method by runs of the simulator, with standard errors.

Repetitions of a run are independent, so their spread gives standard errors, and products of the mean errors of two
repetitions have the squared bias as their expectation. The amount of work follows from the problem and from what
was measured: the same call gives the same numbers on any machine, unless the time limit ends it.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from fedscaffold.core.errors import Diverged, InvalidInput, NoPlateau
from fedscaffold.core.privacy import Privacy
from fedscaffold.core.protocols import Method, Problem
from fedscaffold.core.random.stream import Batches
from fedscaffold.core.types import Array
from fedscaffold.methods import Scaffold
from fedscaffold.simulation.run_method import run_to_end
from fedscaffold.simulation.setup import validate_run
from fedscaffold.theory.expansion import FirstOrderLaw, first_order_law

NORMAL = 2.576  # the 99.5 % quantile of the normal law
STUDENT = {1: 63.657, 2: 9.925, 3: 5.841, 4: 4.604}  # that of Student's law, by degrees of freedom
BLOCKS = 32  # a plateau is divided into at most this many blocks of rounds; it is judged from 16 on
PERTURBATION = 1e-9  # distance of a start from θ*, relative to 1 + ‖θ*‖: an unstable method leaves θ* then
LARGEST_COVARIANCE = 500  # dimensions up to which the covariance of θ is measured
MOST_ROUNDS = 200_000  # of a plateau; only a time limit of many minutes gets there
SEED = 20_250_713  # runs that users compare predictions with have other seeds
SHARES = (0.0, 0.1, 0.25, 0.5, 0.75)  # of the rounds, that an average of iterates may leave out
clock = time.perf_counter


@dataclass(frozen=True, eq=False)
class Subject:
    """A run to measure: problem, method, batches, privacy, and the optimum that errors are measured from."""

    problem: Problem
    method: Method
    batches: Batches
    optimum: Array
    privacy: Privacy | None = None

    def follow(
        self,
        look: Callable[[int, Array], bool],
        *,
        rounds: int,
        repetitions: int,
        seed: int = SEED,
        theta0: Array | None = None,
        control_variates0: Array | None = None,
    ) -> None:
        """Run rounds until they are done or `look` returns True; it gets the round and θ of every repetition.

        Raises
        ------
        Diverged
            If θ grows beyond all bounds.
        """
        setup = validate_run(
            self.problem, self.method, rounds=1, batch_size=self.batches.size, sampling=self.batches.sampling,
            seed=seed, repetitions=repetitions, engine="auto", theta0=theta0, privacy=self.privacy,
            control_variates0=control_variates0,
        )  # fmt: skip
        run_to_end(
            replace(setup, rounds=rounds), None, record=lambda state: look(state.round, state.theta), file=None,
            arrays=lambda: ({}, {}), progress=lambda done: None,
        )  # fmt: skip

    @property
    def local_steps(self) -> float:
        """Number of local steps of a client in a round, on average."""
        uniform = (np.arange(16) + 0.5) / 16
        return float(self.method.local_step_counts(self.problem.n_clients, uniform).mean())

    @property
    def work(self) -> float:
        """Number of local steps of all clients in a round, in steps of ten records with twenty features."""
        problem = self.problem
        records = float(np.mean(problem.sizes)) if self.batches.size is None else self.batches.size
        participants = self.method.participants(problem.n_clients)
        drawing = 2000.0 if participants < problem.n_clients else 0.0  # a cohort takes as long to draw
        return drawing + participants * self.local_steps * (0.5 + records * problem.dim / 400.0)

    def repetitions(self, work: float, least: int, most: int) -> int:
        """Return how many repetitions of one round do this much work, within limits and in half a gigabyte."""
        fit = max(2, int(6e7 / (self.problem.n_clients * self.problem.dim)))
        return int(min(np.clip(work / self.work, least, most), fit))

    def is_random(self) -> bool:
        """Return whether two repetitions differ after two rounds."""
        seen: list[Array] = []

        def look(round: int, theta: Array) -> bool:
            seen.append(theta)
            return False

        self.follow(look, rounds=2, repetitions=2)
        return bool((seen[-1][0] != seen[-1][1]).any())

    def law(self, method: Method) -> FirstOrderLaw | None:
        """Return the first-order law of a method on the problem; None if there is none."""
        problem: Any = self.problem
        try:
            return first_order_law(problem, method, self.batches)
        except (InvalidInput, np.linalg.LinAlgError):
            return None

    def memory(self) -> float:
        """Return about how many rounds it takes until errors have fallen by e; 0 if the problem does not say.

        By first order the model forgets as max |1 − γλ|^H does, and control variates in about γHλ/2 rounds.
        """
        N, gamma, H = self.problem.n_clients, self.method.step_size, self.local_steps
        law = self.law(Scaffold(step_size=gamma, local_steps=max(1, round(H))))
        if law is None:
            return 0.0
        model = 1.0 / (1.0 - law.rate) if law.rate < 1.0 else 0.0
        return max(model, 0.5 * gamma * H * law.largest_curvature) * N / self.method.participants(N)

    def start(self, repetitions: int, *, random: bool) -> dict[str, Any]:
        """Return models near the stationary law, drawn from the first-order law if possible, and ξ*_c.

        Control variates are left out if the method has none or the problem has no gradients.
        """
        problem: Any = self.problem
        rng, d, size = np.random.default_rng(SEED), problem.dim, float(np.linalg.norm(self.optimum))
        draws = rng.normal(size=(repetitions, d))
        theta = self.optimum + PERTURBATION * (1.0 + size) * draws / np.sqrt(d)
        law = self.law(self.method) if random and self.privacy is None and d <= LARGEST_COVARIANCE else None
        if law is not None and law.rate < 1.0 and law.mse <= size**2:
            lam, U = np.linalg.eigh(law.cov_theta)
            theta = theta + law.bias + draws * np.sqrt(np.maximum(lam, 0.0)) @ U.T
        found = {"theta0": theta}
        if hasattr(problem, "client_gradients"):
            gradients = problem.client_gradients(self.optimum)
            variates = problem.weights @ gradients - gradients
            try:
                self.method.init_clients(1, problem.weights, d, variates)
            except InvalidInput:
                return found
            found["control_variates0"] = variates
        return found


def measured_plateau(subject: Subject, *, accuracy: float, seconds: float) -> "MeasuredPlateau":
    """Run the method near θ* until its error is known to a relative standard error, or the time is over.

    Raises
    ------
    NoPlateau
        If the run diverges, or its error grows faster and faster when the time is over.
    """
    begin = clock()
    try:
        random, memory = subject.is_random(), subject.memory()
        most = int(np.clip(4000 / max(memory, 1.0), 64, 512))  # slow methods need rounds instead
        # rounds of about 0.02 s if possible; with two repetitions a hundred rounds of 10,000 clients take seconds
        repetitions = subject.repetitions(4e5, 2, most) if random else 1
        blocks = _Blocks(subject.optimum, repetitions)

        def look(round: int, theta: Array) -> bool:
            if round == 0:
                return False
            blocks.add(theta)
            over = clock() - begin > seconds and round >= 4
            return over or (blocks.can_be_judged and MeasuredPlateau(blocks, memory).is_enough(accuracy))

        start: dict[str, Any] = subject.start(repetitions, random=random)
        subject.follow(look, rounds=MOST_ROUNDS, repetitions=repetitions, **start)
    except Diverged as error:
        raise NoPlateau(f"there is no plateau: {error}") from None
    found = MeasuredPlateau(blocks, memory)
    if not found.settled(accuracy):
        if found.explodes:
            raise NoPlateau(
                f"no plateau was seen within {seconds:g} seconds: after {blocks.rounds:,} rounds the squared "
                f"error is {found.mse:.3g} and grows; take a smaller step size, or allow more seconds"
            )
        found.standard_error = max(found.standard_error, abs(found.change))
    if found.vanishes:  # up to rounding
        found.mse, found.standard_error, found.bias = 0.0, 0.0, 0.0 * found.bias
        found.cov_theta = None if found.cov_theta is None else 0.0 * found.cov_theta
    return found


class _Blocks:
    """Sums over consecutive blocks of rounds, which become twice as long once there are BLOCKS."""

    def __init__(self, optimum: Array, repetitions: int) -> None:
        self.optimum, self.rounds, self.length, self.count = optimum, 0, 1, 0
        self.errors = np.zeros((BLOCKS, repetitions, 1 + optimum.size))  # Σ ‖e‖² and Σ e
        size = optimum.size if optimum.size <= LARGEST_COVARIANCE else 0
        self.products = np.zeros((BLOCKS, size, size))  # Σ e eᵀ over rounds and repetitions

    def add(self, theta: Array) -> None:
        """Take in θ of every repetition after a round."""
        if self.count == BLOCKS and self.rounds % self.length == 0:
            for sums in (self.errors, self.products):
                sums[: BLOCKS // 2] = sums[::2] + sums[1::2]
                sums[BLOCKS // 2 :] = 0.0
            self.length, self.count = 2 * self.length, BLOCKS // 2
        self.count += self.rounds % self.length == 0
        self.rounds += 1
        e = theta - self.optimum
        self.errors[self.count - 1, :, 0] += np.square(e).sum(axis=1)
        self.errors[self.count - 1, :, 1:] += e
        if self.products.size:
            self.products[self.count - 1] += e.T @ e

    @property
    def can_be_judged(self) -> bool:
        """Whether 16, 18, 20, ... blocks have just ended: whoever looks often sees small errors by chance."""
        return self.rounds % self.length == 0 and self.count >= BLOCKS // 2 and self.count % 2 == 0


class MeasuredPlateau:
    """Means over the last two thirds of the rounds, and over parts of them.

    `mse` has a `standard_error`; `bias`, (d,), has a norm such that its square estimates ‖E θ − θ*‖² without bias;
    `cov_theta` is (d, d), or None for many dimensions.

    The part of the start that is left in the means counts as an error too: the mean, or more if the first block is
    further from it, which falls by e in `memory` rounds.
    """

    def __init__(self, blocks: _Blocks, memory: float) -> None:
        n, R, first = blocks.count, blocks.errors.shape[1], blocks.count // 3
        lengths = np.full(n, blocks.length)
        lengths[-1] = blocks.rounds - blocks.length * (n - 1)
        rounds = int(lengths[first:].sum())

        def parts(count: int) -> list[Array]:
            """Return the mean squared errors of every repetition in consecutive parts of about equal length."""
            found = np.array_split(np.arange(first, n), count)
            return [blocks.errors[part, :, 0].sum(axis=0) / lengths[part].sum() for part in found]

        (early, late), thirds = parts(2), parts(3)
        bend = thirds[2] - 2.0 * thirds[1] + thirds[0]  # on the way to a plateau growth slows down
        self.explodes = bool(late.mean() > 1.2 * early.mean() and bend.mean() > 2.0 * _error_of_mean(bend))
        self.mse = float(parts(1)[0].mean())
        self.change, self.grown = float((late - early).mean()), float(late.mean() / max(early.mean(), 1e-300))
        # of few repetitions, three or more parts that are longer than errors are remembered count as samples
        few = 1 < R < 16
        count = int(np.clip(0.6 * rounds / memory, 1, 16)) if few and memory else 3
        spread = _error_of_mean(np.concatenate(parts(min(max(count, 2), n - first) if few else 1)))
        self.has_samples = not few or count >= 3
        self.change_error = 2.0 * spread if few else _error_of_mean(late - early)
        left = 0.0
        if memory:
            gap = max(self.mse, abs(float(blocks.errors[0, :, 0].mean()) / lengths[0] - self.mse))
            left = gap * min(1.0, memory / rounds) * float(np.exp(-blocks.length * first / memory))
        self.standard_error = float(np.hypot(spread, left))
        self.zero = 100.0 * (PERTURBATION * (1.0 + float(np.linalg.norm(blocks.optimum)))) ** 2
        means = blocks.errors[first:n, :, 1:].sum(axis=0) / rounds
        mean = means.mean(axis=0)
        square = float(mean @ mean)
        if R > 1:  # products of different repetitions
            square = max(0.0, float((R * R * square - np.square(means).sum()) / (R * (R - 1))))
        norm = float(np.linalg.norm(mean))
        self.bias = mean * (np.sqrt(min(square, self.mse)) / norm if norm > 0.0 else 0.0)
        self.cov_theta: Array | None = None
        if blocks.products.size:
            self.cov_theta = blocks.products[first:n].sum(axis=0) / (R * rounds) - np.outer(self.bias, self.bias)

    def settled(self, accuracy: float) -> bool:
        """Return whether both halves agree within their errors."""
        return abs(self.change) <= 2.0 * self.change_error + 0.2 * accuracy * self.mse or self.vanishes

    @property
    def vanishes(self) -> bool:
        """Whether errors are as small as the perturbation of the start and do not grow."""
        return self.mse <= self.zero and self.grown <= 1.0

    def is_enough(self, accuracy: float) -> bool:
        """Return whether the plateau is reached and its error is known well enough."""
        known = self.has_samples and self.standard_error <= accuracy * self.mse
        return self.settled(accuracy) and (known or self.vanishes)


def _of_few(n: int) -> float:
    """Return the factor on the standard error of a mean of n samples with which 2.576 of it hold 99 %.

    By Student's law: 25 for two samples, 1.57 for six and 1.04 for fifty.
    """
    if n - 1 in STUDENT:
        return STUDENT[n - 1] / NORMAL
    z, found = NORMAL, 1.0
    for power, terms in enumerate(((1, 1), (3, 16, 5), (-15, 17, 19, 3)), start=1):  # Fisher's, in 1/(n − 1)
        found += sum(c * z ** (2 * k) for k, c in enumerate(terms)) / ((4, 96, 384)[power - 1] * (n - 1) ** power)
    return found


def _error_of_mean(samples: Array) -> float:
    """Return the standard error of the mean of samples, larger if they are few; 0 for one sample."""
    n = samples.size
    return _of_few(n) * float(samples.std(ddof=1)) / np.sqrt(n) if n > 1 else 0.0


class ErrorCurve(NamedTuple):
    """Mean squared errors of rounds 0, 1, ..., their standard errors, and how many rounds averages leave out."""

    errors: Array
    spread: Array
    after: list[int] | None = None
    repetitions: int = 1

    def first(self, aim: float, target: float) -> int | None:
        """Return the first round after the start at an aim, and below a target by two standard errors (98 %).

        Errors with standard errors above 5 % are means over a quarter of the rounds, as a dip is chance. If these
        come from single runs that differ by more than a factor three, rare runs decide about the mean, and there
        may be worse ones: such rounds do not count.
        """
        t = np.arange(self.errors.size)
        width = np.where(self.spread > 0.05 * self.errors, 1 + t // 4, 1)
        sums = np.cumsum(np.pad([self.errors, self.spread], ((0, 0), (1, 0))), axis=1)
        errors, spread = (sums[:, t + 1] - sums[:, t + 1 - width]) / width
        sound = (spread <= 0.05 * errors) | (spread * np.sqrt(self.repetitions) <= 3.0 * errors)
        below = np.flatnonzero((errors <= aim) & (errors + 2.0 * spread <= target) & (t > 0) & sound)
        return int(below[0]) if below.size else None

    def falls(self, aim: float) -> bool:
        """Return whether more rounds are missing: the error is above an aim, still falls, and is not chance.

        If an earlier error was lower by more than chance, the noise has grown since, and more rounds do not help.
        """
        last, middle = self.errors[-1], self.errors[self.errors.size // 2]
        lowest = last <= self.errors.min() + 2.0 * self.spread[-1]
        return bool(lowest and last > aim and last < 0.9 * middle and self.spread[-1] <= 0.2 * last)

    def is_precise(self, T: int) -> bool:
        """Return whether the standard error after T rounds is at most 5 %."""
        return bool(self.spread[T] <= 0.05 * self.errors[T])

    def until(self, T: int) -> "ErrorCurve":
        """Return the first T rounds."""
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

    def curve(self) -> ErrorCurve:
        """Return the mean errors of all rounds, each of its best tail."""
        R, best = self.repetitions, [int(one.argmin()) for one in self.sums]
        means = np.array([one[k] for one, k in zip(self.sums, best, strict=True)]) / R
        squares = np.array([one[k] for one, k in zip(self.squares, best, strict=True)]) / R
        variances = np.maximum(squares - means**2, 0.0) / max(R - 1, 1)
        spread = _of_few(R) * np.sqrt(variances) if R > 1 else 0.0 * means
        after = [int(SHARES[k] * t) for t, k in enumerate(best)] if self.averaged else None
        return ErrorCurve(means, spread, after, R)


def measured_curve(
    subject: Subject, rounds: int, *, work: float, enough: Callable[[ErrorCurve, int], bool],
    averaged: bool = False, least: int = 2,
) -> ErrorCurve:  # fmt: skip
    """Measure E‖θ_t − θ*‖² for t = 0, ..., rounds from θ_0 = 0, or of averages, by independent repetitions.

    The first repetitions, at least `least`, take about `work` local steps; later ones double them, up to ten times
    as many, until `enough` of the curve and the number of repetitions. Diverged is raised if θ grows without end.
    """
    meter = Meter(subject.optimum, averaged=averaged)
    repetitions = subject.repetitions(work / rounds, least, 1024) if subject.is_random() else 1
    while True:
        subject.follow(meter.add, rounds=rounds, repetitions=repetitions, seed=SEED + 1 + meter.repetitions)
        curve = meter.curve()
        if meter.repetitions == 1 or enough(curve, meter.repetitions):
            return curve
        repetitions = min(meter.repetitions, subject.repetitions(10.0 * work / rounds, 2, 8192))
